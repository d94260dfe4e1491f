"""Exported folders are opened by other programs, which know nothing of lexfed."""

import json
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lexfed.api import Run, run
from lexfed.core.errors import LexfedError
from lexfed.core.params import Params
from lexfed.core.seeds import root
from lexfed.experiment import config as configuration
from lexfed.federation import ServerState
from lexfed.language.language_task import TOKENIZER
from lexfed.models import language_model
from lexfed.models.language_model import LanguageModel
from lexfed.use import language_files, model_card
from lexfed.use.predicting import predict
from lexfed.vocabulary import learned
from lexfed.wire import Message, decode, encode
from tests.conftest import ROOT, Lexfed, Trained, named, no_pictures, small_vectors
from tests.unit.test_generating import written  # noqa: F401
from tests.unit.test_tokenizer_for_free import folder  # noqa: F401

TEXTS = [
    *(row["text"] for row in named()[:20]),
    "zzyzx qwrtl -- !!",
    "",
    "ΟΔΟΣ नमस्ते 😀👍🏽 it's ½ e\u0301",
    "film " * 40,
]

# It runs in the exported folders' own programs; whoever imports lexfed there fails.
OUTSIDE = """
import importlib.util, json, runpy, sys
from pathlib import Path
sys.modules["lexfed"] = None
import torch
for folder, inputs in json.loads(Path(sys.argv[1]).read_text()).items():
    spec = importlib.util.spec_from_file_location("load", Path(folder) / "load.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    logits = module.load()
    rows = [logits(x if isinstance(x, str) else torch.tensor(x)).tolist() for x in inputs]
    (Path(sys.argv[2]) / Path(folder).name).write_text(json.dumps(rows))
if isinstance(x := inputs[0], str):
    sys.argv = ["load.py", x]
    runpy.run_path(str(Path(folder) / "load.py"), run_name="__main__")
"""


def inputs(folders: dict[Path, Any]) -> Any:
    return next(iter(folders.values()))


def outside(folders: dict[Path, Any], place: Path) -> dict[Path, Any]:
    """What the programs in these folders say of their inputs, in a process without lexfed."""
    (place / "outside.py").write_text(OUTSIDE)
    (place / "inputs.json").write_text(json.dumps({str(path): x for path, x in folders.items()}))
    (place / "answers").mkdir()
    command = [sys.executable, "-P", "outside.py", "inputs.json", "answers"]
    clean = {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=place, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (done.stdout.split()[:1] in (["good"], ["bad"])) == isinstance(inputs(folders)[0], str)
    return {path: json.loads((place / "answers" / path.name).read_text()) for path in folders}


def run_card(place: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the card's own example makes, run in its folder."""
    (program,) = re.findall(r"```python\n(.*?)```", (place / "README.md").read_text(), re.S)
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.delitem(sys.modules, "load", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made: dict[str, Any] = {}
    exec(program, made)
    return made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_plain_torch_gives_the_logits_of_lexfed(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the common model, of clients' own ones with all kinds of tables, of attention, and of
    everybody who trained alone.
    """
    public = {"vocabulary__vectors": small_vectors(), "model__embedding": 12}
    other = {"fedevocab__vectors": [small_vectors()], "fedevocab__preset": "paper"}
    cases: dict[str, tuple[Run, int | None]] = {
        "common": (trained("fedavg"), None),
        "attention": (trained("fedavg", model__pooling="attention", rounds=1), None),
        "max": (trained("fedavg", model__pooling="max", rounds=1), None),
        "fine-tuned": (trained("fedavg_finetune"), 1),
        "own-words": (trained("fedevocab"), 2),
        "newcomer": (trained("fedevocab"), 4),
        "own-and-public": (trained("fedevocab", **public), 0),
        "projected": (trained("fedevocab", **other), 3),
        "parted": (trained("fedrecon"), 1),
        "lower-layers": (trained("lg_fedavg", lg_fedavg__interpolation=0.5), 3),
        "alone": (trained("local_only"), 0),
    }
    for name, (model, client) in cases.items():
        assert model.export(tmp_path / name, client) == tmp_path / name
    everyone = trained("local_only").export(tmp_path / "everyone")
    each = [everyone / f"client-{client:04d}" for client in range(4)]
    answers = outside(dict.fromkeys([*(tmp_path / name for name in cases), *each], TEXTS), tmp_path)
    for name, (model, client) in cases.items():
        expected = predict(model.path, TEXTS, client).logits
        np.testing.assert_allclose(answers[tmp_path / name], expected, atol=1e-5, err_msg=name)
        about = json.loads((tmp_path / name / "model.json").read_text())
        assert about["labels"] == ["bad", "good"]
        private = name not in ("common", "attention", "max")
        files = [tmp_path / name, *(tmp_path / name).iterdir()]
        assert all((mode(path) & 0o077 == 0) == private for path in files), name
    shown = run_card(tmp_path / "common", monkeypatch)["logits"]
    torch.testing.assert_close(shown, predict(cases["common"][0].path, ["a text"]).logits[0])
    assert sorted(path.name for path in everyone.iterdir()) == [
        "README.md",
        *(p.name for p in each),
    ]
    assert all(mode(path) & 0o077 == 0 for path in everyone.rglob("*"))
    for client, place in enumerate(each):
        expected = predict(trained("local_only").path, TEXTS, client).logits
        np.testing.assert_allclose(answers[place], expected, atol=1e-5)


def test_without_a_client_a_private_part_stays_where_it_is(
    trained: Trained, lexfed: Lexfed, tmp_path: Path
) -> None:
    for method in ("fedevocab", "lg_fedavg", "fedrecon"):
        result = lexfed("export", trained(method).path, "--to", method)
        assert result.returncode == 0, result.stderr
        assert "not a whole one" in result.stdout
        shared = decode((trained(method).artifacts / "model.safetensors").read_bytes()).arrays
        body = load_file(tmp_path / method / "model.safetensors")
        assert set(body) == set(shared)
        private = {"private_rows"} if method == "fedrecon" else {"embedding.weight"}
        assert not private & set(body)
        assert sorted(path.name for path in (tmp_path / method).iterdir()) == [
            "README.md",
            "model.safetensors",
        ]


def tiny_bert(place: Path) -> str:
    """An encoder of a few numbers, with the word pieces of BERT."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    from lexfed.models.encoder import resolve

    tokenizer = AutoTokenizer.from_pretrained(resolve("minilm"))
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=len(tokenizer), intermediate_size=16, **shape)
    BertModel(config).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return str(place)


@pytest.mark.parametrize("name", ["tiny", pytest.param("minilm", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("method", "client"), [("fedavg", None), ("fedevocab", 1)])
def test_transformers_opens_a_fine_tuned_encoder(
    name: str,
    method: str,
    client: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

    setup = {
        "method": method,
        "rounds": 1,
        "data": {"clients": 2, "limit": 8, "test": 0.02, "validation": 0.0},
        "model": {"name": tiny_bert(tmp_path / "tiny") if name == "tiny" else name},
        "cohort": {"size": 2},
        "train": {"batch": 4, "lr": 1e-3, "max_length": 12},
    }
    corpus = {name: [row[name] for row in named()] for name in ("text", "label")}
    with no_pictures():
        model = run(setup, corpus=corpus, out=tmp_path / "run", quiet=True)
    place = model.export(tmp_path / "out", client)
    tokenizer = AutoTokenizer.from_pretrained(place)
    theirs = AutoModelForSequenceClassification.from_pretrained(place).eval()
    inputs = tokenizer(TEXTS, truncation=True, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = theirs(**inputs).logits
    expected = predict(model.path, TEXTS, client).logits
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)
    shown = run_card(place, monkeypatch)["logits"]
    of_card = predict(model.path, ["a text"], client).logits
    torch.testing.assert_close(shown, of_card, atol=1e-5, rtol=0)
    assert theirs.config.id2label == {0: "bad", 1: "good"}
    body = AutoModel.from_pretrained(place).get_parameter("pooler.dense.weight")
    ours = decode((model.artifacts / "model.safetensors").read_bytes()).arrays
    assert torch.equal(body, ours["bert.pooler.dense.weight"])
    assert all((mode(path) & 0o077 == 0) == (client is not None) for path in place.iterdir())
    texts = "".join(p.read_text() for p in place.iterdir() if p.suffix in (".json", ".md"))
    assert str(tmp_path) not in texts
    assert "site-packages" not in texts, "where a model lay on our disk is nobody's business"


SENTENCES = [["a", "fine", "film", "."], ["no", "fun", "at", "all"], ["dull"]]


FORMS: dict[str, dict[str, Any]] = {
    "lstm": {"layers": 2, "width": 8},
    "lstm-untied": {"layers": 1, "width": 6, "tied": False},
    "transformer": {"layers": 2, "width": 8, "heads": 2, "context": 16},
    "transformer-untied": {"layers": 1, "width": 8, "heads": 4, "context": 16, "tied": False},
}


def test_language_models_without_lexfed(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    source = learned.learn(SENTENCES, "bpe", 280, "here")
    size, ids = (
        len(source.tokenizer.tokens),
        [source.tokenizer.sequence(words) for words in SENTENCES],
    )
    models: dict[str, tuple[LanguageModel, Params]] = {}
    for name, form in FORMS.items():
        table = {"name": name.partition("-")[0], **form}
        config = configuration.parse({"method": "tokenizer_for_free", "language_model": table})
        model = language_model.build(config.language_model)
        params = {n: 5 * v for n, v in model.init(size, root(0)).items()}
        params["output.bias"] = torch.randn(size)
        models[name] = model, params
        (tmp_path / name).mkdir()
        state = ServerState(params).with_blob(TOKENIZER, source.to_bytes())
        language_files.write(tmp_path / name, config, state)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "lstm")
    assert [tokenizer(" ".join(words))["input_ids"] for words in SENTENCES] == ids
    answers = outside({tmp_path / name: ids for name in FORMS}, tmp_path)
    for name, (model, params) in models.items():
        output = params.get("output.weight", params["embedding.weight"])
        for row, found in zip(ids, answers[tmp_path / name], strict=True):
            hidden = model.hidden(params, torch.tensor([row]), None)[0]
            expected = hidden @ output.T + params["output.bias"]
            np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-5)


def test_a_language_model_with_a_promise_has_a_careful_card(
    written: Any,  # noqa: F811
    lexfed: Lexfed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No figure that was made without noise, and no seed."""
    model = written(seed=1234)
    assert model.summary["promise"]["holds"]
    assert lexfed("export", model.path, "--to", "out").returncode == 0
    card = (tmp_path / "out/README.md").read_text()
    assert model.summary["privacy"] in card
    assert "epsilon of the deployment" in card
    assert "perplexity" not in card
    assert "1234" not in card
    assert "The seed is not told here" in card
    refused = lexfed("export", model.path, "--to", "again", "--client", 1)
    assert "has one model for all: leave out --client" in refused.stderr
    assert not (tmp_path / "again").exists()
    shown = run_card(tmp_path / "out", monkeypatch)
    assert len(shown["logits"]) == len(shown["ids"])
    assert shown["ids"][0] == shown["tokenizer"].bos_token_id


def test_word_vectors_are_gensims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gensim.models import KeyedVectors

    source = ROOT / "tests/data/format-1/agreed"
    shutil.copytree(source, tmp_path / "run")
    place = Run(tmp_path / "run").export(tmp_path / "out")
    for name, binary in (("vectors.bin", True), ("vectors.txt", False)):
        theirs = KeyedVectors.load_word2vec_format(str(place / name), binary=binary)
        ours = KeyedVectors.load_word2vec_format(str(source / "artifacts" / name), binary=binary)
        assert theirs.index_to_key == ours.index_to_key
        assert np.array_equal(theirs.vectors, ours.vectors)
    assert len(run_card(place, monkeypatch)["vectors"]) == len(theirs)


# --- the card, and what can go wrong -------------------------------------------------------------


def test_the_card_says_what_it_is_and_how_to_make_it_again(
    trained: Trained, tmp_path: Path
) -> None:
    model = trained("fedevocab", vocabulary__vectors=small_vectors(), model__embedding=12)
    card = (model.export(tmp_path / "out", 1) / "README.md").read_text()
    assert "Licence: unknown." in card, "nobody knows the licence of a file"
    assert "Zhang et al., EMNLP 2022" in card
    assert "Nothing is promised" in card
    assert f"{100 * model.summary['global_accuracy']:.1f} %" in card
    assert str(model.path.parent) not in card, "where texts lie is nobody's business"
    (block,) = re.findall(r"```toml\n(.*?)```", card, re.S)
    again, before = configuration.parse(tomllib.loads(block)), model.config
    read = [
        key
        for key in configuration.differences(again, before)
        if key.split(".")[0] not in ("local_only", "centralised", "lg_fedavg", "fedprox")
    ]
    by_their_names = {"data.name", "vocabulary.vectors"}
    assert set(read) - {"vocabulary.corpus"} == by_their_names, "fedevocab reads no word list"


def test_known_data_has_its_licence(trained: Trained) -> None:
    config = configuration.changed(trained("fedavg").config, ["data.name=wikitext2"])
    card = model_card.card(config, trained("fedavg").summary, "A model.", "Use it.")
    assert "Licence: CC BY-SA" in card
    assert "WikiText-2" in card


def test_an_existing_folder_is_refused_and_nothing_is_half_written(
    trained: Trained, lexfed: Lexfed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = trained("fedavg").path
    (tmp_path / "taken").mkdir()
    refused = lexfed("export", path, "--to", "taken")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "taken exists already; choose another --to" in refused.stderr
    for words in (["--client", "9"], ["--client", "-1"]):
        refused = lexfed("export", path, "--to", "new", *words)
        assert "there is no client" in refused.stderr

    def broken(*arguments: object) -> str:
        raise OSError(28, "No space left on device", "README.md")

    monkeypatch.setattr(model_card, "card", broken)
    refused = lexfed("export", path, "--to", "deep/new")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert [p.name for p in tmp_path.iterdir()] == ["taken"], "not even what was begun"


def test_a_run_that_has_not_ended_is_not_exported(trained: Trained, tmp_path: Path) -> None:
    shutil.copytree(trained("fedavg").path, tmp_path / "run")
    (tmp_path / "run/summary.json").unlink()
    with pytest.raises(LexfedError, match="is unfinished: round"):
        Run(tmp_path / "run").export(tmp_path / "out")
    with pytest.raises(LexfedError, match="not a run directory"):
        Run(tmp_path).export(tmp_path / "out")


def test_a_checkpoint_of_another_run_is_refused(trained: Trained, tmp_path: Path) -> None:
    shutil.copytree(trained("fedavg").path, tmp_path / "run")
    text = (tmp_path / "run/config.toml").read_text()
    (tmp_path / "run/config.toml").write_text(text.replace("seed = 0", "seed = 5"))
    with pytest.raises(LexfedError, match="of another run"):
        Run(tmp_path / "run").predict(["a"])


def test_what_is_written_can_be_read_as_a_message_too(trained: Trained, tmp_path: Path) -> None:
    place = trained("fedavg").export(tmp_path / "out")
    data = (place / "model.safetensors").read_bytes()
    assert encode(Message(decode(data).arrays)) == data
