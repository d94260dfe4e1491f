"""Labels for new texts: what is used is what was scored."""

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pytest
import torch

import lexfed as package
from lexfed.api import Run
from lexfed.core.errors import LexfedError
from lexfed.corpus.sources import Saved
from lexfed.experiment.assembly import assemble
from lexfed.federation import request
from lexfed.federation.server_optimizer import released
from lexfed.learning.training_verbs import EVALUATE
from lexfed.metrics import classification as metrics
from lexfed.records import checkpoint
from lexfed.runtime.simulation import Site, site_of
from lexfed.runtime.store import Store
from lexfed.use.opening import opened
from lexfed.use.predicting import evaluator_of, predict, predicted
from tests.conftest import DATA, Lexfed, Trained, named, small_vectors

METHODS: dict[str, dict[str, object]] = {
    "fedavg": {},
    "fedavg averaged": {"server__average": 0.5},
    "fedavg_finetune": {},
    "fedprox": {},
    "lg_fedavg": {"lg_fedavg__interpolation": 0.5},
    "fedrecon": {},
    "fedevocab": {},
    "fedevocab paper": {"fedevocab__preset": "paper", "fedevocab__vocabulary": "own"},
    "fedevocab public": {"vocabulary__vectors": small_vectors(), "model__embedding": 12},
    "local_only": {},
    "centralised": {},
}


def of(trained: Trained, name: str) -> Run:
    settings = METHODS[name]
    if name == "fedevocab paper":
        settings = {**settings, "fedevocab__adaptive": True}
    return trained(name.split()[0], **settings)


def scores(run: Run, site: Site) -> Iterator[dict[str, float]]:
    """What `evaluate` says, client by client, those who never trained last."""
    state = checkpoint.load(run.directory.checkpoint).state
    state = replace(state, params=released(state.params, state.opt_state))
    message = request(state, ask=1, split="test")
    people = site.population
    for client in range(len(people) + people.unseen):
        reply = site.answer(EVALUATE, client, message)
        assert reply is not None
        yield {name: value.item() for name, value in reply.arrays.items()}


@pytest.mark.parametrize("name", METHODS)
def test_predictions_have_the_accuracy_that_was_recorded(name: str, trained: Trained) -> None:
    """To the last digit, for every client, and for one that never took part."""
    run = of(trained, name)
    site = site_of(assemble(run.config), Store(run.directory.clients))
    people, recorded, use = site.population, list(scores(run, site)), opened(run.path)
    texts, labels = list(people.common_test), people.common_test.labels
    found = []
    for client, said in enumerate(recorded):
        for at_home in (False, True):
            rows = predicted(use, texts, client, at_home).rows()
            places = [people.labels.index(row["label"]) for row in rows]
            confusion = metrics.confusion_matrix(labels, np.array(places), people.classes)
            if at_home:
                shares = metrics.label_shares(people.client(client).train.labels, people.classes)
                assert metrics.local_accuracy(confusion, shares) == said["local_accuracy"]
            else:
                assert metrics.accuracy(confusion) == said["accuracy"]
                found.append(metrics.accuracy(confusion))
    assert np.mean(found[: len(people)]) == run.summary["global_accuracy_mean"]
    if people.unseen:
        assert found[-1] == pytest.approx(run.summary["unseen_accuracy"])
    assert max(abs(accuracy - 0.5) for accuracy in found) > 0.02, "not one label for everything"
    assert len(found) == (1 if name == "centralised" else 5)


def test_so_they_have_where_secrets_are_not_derived(trained: Trained) -> None:
    run = trained("fedrecon", secrets="system")
    site = site_of(assemble(run.config), Store(run.directory.clients))
    texts, labels = list(site.population.common_test), site.population.common_test.labels
    for client, said in enumerate(scores(run, site)):
        found = run.predict(texts, client)["label"]
        right = [("bad", "good")[true] == label for true, label in zip(labels, found, strict=True)]
        assert np.mean(right) == said["accuracy"]


ODD = ["zzyzx qwrtl", "", "   ", None, "a fine film 😀 नमस्ते", "film " * 400]


@pytest.mark.parametrize("name", ["fedavg", "fedevocab", "fedevocab public", "fedrecon"])
@pytest.mark.parametrize("client", [None, 0, 4])
def test_odd_texts_have_labels_too(name: str, client: int | None, trained: Trained) -> None:
    rows = of(trained, name).predict(ODD, client)
    assert len(rows) == len(ODD)
    assert set(rows["label"]) <= {"good", "bad"}
    assert np.allclose(rows["p_good"] + rows["p_bad"], 1, atol=1e-5)
    assert np.allclose(rows[["p_good", "p_bad"]].max(axis=1), rows["probability"])
    assert rows.iloc[1].equals(rows.iloc[3]), "a text that is missing is an empty one"


def test_without_a_client_it_is_the_common_model_or_that_of_somebody_new(trained: Trained) -> None:
    texts = [row["text"] for row in named()[:5]]
    common = predict(trained("fedavg").path, texts)
    assert common.whose == "the common model"
    assert torch.equal(common.logits, predict(trained("fedavg").path, texts, 2).logits)
    fitted = predict(trained("fedavg_finetune").path, texts)
    assert torch.equal(fitted.logits, common.logits), "before any client's fine-tuning"
    assert "before a client fits it" in fitted.whose
    assert not torch.equal(predict(trained("fedavg_finetune").path, texts, 2).logits, common.logits)
    new = predict(of(trained, "fedevocab public").path, texts)
    assert "there is no common model" in new.whose
    assert "without words" not in new.whose
    assert not torch.equal(
        new.logits, predict(of(trained, "fedevocab public").path, texts, 0).logits
    )
    assert "without words" in predict(trained("fedevocab").path, texts).whose
    assert "never took part" in predict(trained("fedevocab").path, texts, 4).whose
    assert "nothing was trained" in predict(trained("local_only").path, texts, 4).whose
    with pytest.raises(LexfedError, match="no common one: name a client with --client, 0 to 4"):
        predict(trained("local_only").path, texts)


def test_a_method_that_scores_in_its_own_way_is_told_how_to_predict(trained: Trained) -> None:
    method = assemble(trained("fedavg").config).method
    mute = replace(method, client={EVALUATE: lambda message, client, state: (None, state)})
    with pytest.raises(LexfedError, match=r"answer EVALUATE with lexfed\.learning\.evaluation"):
        evaluator_of(mute)


def test_a_prediction_changes_nothing_in_the_run(trained: Trained) -> None:
    run = of(trained, "fedevocab public")

    def seen() -> dict[Path, tuple[int, int]]:
        files = [path for path in run.path.rglob("*") if path.is_file()]
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in files}

    before, threads = seen(), torch.get_num_threads()
    run.predict(["a fine film"], 4)
    run.predict(["a fine film"])
    assert seen() == before
    assert torch.get_num_threads() == threads


def test_what_the_classes_are_called_is_kept(trained: Trained, tmp_path: Path) -> None:
    assert json.loads((trained("fedavg").artifacts / "labels.json").read_text()) == ["bad", "good"]
    import datasets

    numbers = [int(row["label"] == "bad") for row in named()]  # not in alphabetical order
    texts = [row["text"] for row in named()]
    beside = {"text": texts, "label": numbers, "label_name": [row["label"] for row in named()]}
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["good", "bad"])}
    )
    hub = datasets.Dataset.from_dict({"text": texts, "label": numbers}, features=features)
    for source in (beside, hub, datasets.DatasetDict({"train": hub, "test": hub})):
        corpus = package.load_corpus(source)
        assert corpus.label_names == ("good", "bad")
        Saved(tmp_path / "saved.arrow").write(corpus)
        again = package.load_corpus(tmp_path / "saved.arrow")
        assert again.label_names == ("good", "bad")
        assert again.labels.tolist() == corpus.labels.tolist()
    doubtful = package.load_corpus({**beside, "label_name": ["good"] * len(texts)})
    assert doubtful.label_names is None, "one name for two classes is none"
    assert package.partition({"text": texts, "label": numbers}, clients=2).labels == (0, 1)


@pytest.mark.skipif(not DATA, reason="LEXFED_DATA is not set")
def test_named_data_sets_keep_their_names() -> None:
    names = package.load_corpus("20news").label_names
    assert names is not None
    assert (len(names), names[0]) == (20, "alt.atheism")


# --- the command ---------------------------------------------------------------------------------


def write(path: Path, texts: list[str]) -> Path:
    if path.suffix == ".txt":
        path.write_text("".join(f"{text}\n" for text in texts))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"text": text, "id": 1}) + "\n" for text in texts))
    elif path.suffix == ".csv":
        pandas.DataFrame({"text": texts}).to_csv(path, index=False)
    else:
        pa.parquet.write_table(pa.table({"text": texts}), path)
    return path


@pytest.mark.parametrize("ending", [".txt", ".csv", ".jsonl", ".parquet"])
def test_files_in_and_out(ending: str, trained: Trained, lexfed: Lexfed, tmp_path: Path) -> None:
    texts, run = ["a fine film", "", "dull, dull"], trained("fedavg")
    file = write(tmp_path / f"new{ending}", texts)
    expected = run.predict(texts)
    for out in ("found.csv", "found.jsonl"):
        result = lexfed("predict", run.path, "--in", file, "--out", out)
        assert result.returncode == 0, result.stderr
        assert result.stdout == f"results: {out}\nmodel: the common model\n"
    with (tmp_path / "found.csv").open() as table:
        rows = list(csv.DictReader(table))
    lines = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert [row["label"] for row in rows] == list(expected["label"])
    assert [float(row["p_good"]) for row in rows] == list(expected["p_good"])
    assert [{**line, "row": str(line["row"])} for line in lines] == [
        {**row, **{k: float(v) for k, v in row.items() if k.startswith("p")}} for row in rows
    ]
    shown = lexfed("predict", run.path, "--in", file, "--client", 1)
    assert "model: client 1, with the common model" in shown.stdout
    assert [line.split()[1] for line in shown.stdout.splitlines()[1:4]] == list(expected["label"])


def test_the_column_may_have_another_name(trained: Trained, lexfed: Lexfed, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("note,more\na fine film,1\n")
    run = trained("fedavg").path
    result = lexfed("predict", run, "--in", "new.csv", "--text", "note")
    assert result.returncode == 0, result.stderr
    refused = lexfed("predict", run, "--in", "new.csv")
    assert "has no text column 'text' (did you mean 'note'?); name it" in refused.stderr


WRONG = {
    "no such file": (["--in", "nowhere.csv"], "there is no file nowhere.csv"),
    "no table": (["--in", "new.pdf"], "has an unknown ending"),
    "an empty file": (["--in", "empty.csv"], "empty.csv is empty"),
    "broken rows": (["--in", "broken.csv"], "broken.csv can't be read as csv"),
    "no such client": (["--in", "new.txt", "--client", "5"], "there is no client 5: they are numbered 0 to 4"),
    "a negative client": (["--in", "new.txt", "--client", "-1"], "there is no client -1"),
    "another ending": (["--in", "new.txt", "--out", "a.xlsx"], "--out ends in .csv or .jsonl"),
    "an existing target": (["--in", "new.txt", "--out", "new.csv"], "new.csv exists already"),
    "a folder that is not there": (["--in", "new.txt", "--out", "x/a.csv"], "there is no folder x"),
    "at home nowhere": (["--in", "new.txt", "--at-home"], "name it with --client"),
    "no file": ([], "Missing option '--in'"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_meant_is_one_line(
    case: str, trained: Trained, lexfed: Lexfed, tmp_path: Path
) -> None:
    secret = "my-secret-diary"
    (tmp_path / "new.txt").write_text(f"{secret}\n")
    (tmp_path / "new.pdf").write_text(secret)
    (tmp_path / "new.csv").write_text(f"text\n{secret}\n")
    (tmp_path / "empty.csv").touch()
    (tmp_path / "broken.csv").write_text(f"text\n{secret}, {secret}, {secret}\n{secret}\n")
    before = sorted(tmp_path.iterdir())
    words, expected = WRONG[case]
    result = lexfed("predict", trained("fedavg").path, *words)
    assert (result.returncode, result.stdout) == (2, "")
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1
    assert secret not in result.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_wrong_calls_in_python(trained: Trained, tmp_path: Path) -> None:
    run = trained("fedavg")
    assert len(run.predict("one text alone")) == 1
    for texts, message in (([], "no text"), ([1.5], "is float"), (["\ud800"], "half a character")):
        with pytest.raises(LexfedError, match=message):
            run.predict(texts)
    with pytest.raises(LexfedError, match="not a run directory"):
        predict(tmp_path, ["a"])
