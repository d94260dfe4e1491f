"""Options are chosen by what organisations score on texts that they hold out for choosing."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lexfed.core.errors import ConfigError
from lexfed.corpus.population import Data
from lexfed.deployment import choosing
from lexfed.deployment.driving import deployed, drive, prepared, read_deployment
from lexfed.experiment.config import Config
from lexfed.records import rundir
from lexfed.records.rundir import RunDir
from lexfed.runs.launch import Manner
from lexfed.site.policy import Policy
from tests.organisations import QUICK, Local, close, desk, server_keys, site
from tests.unit.test_own_sites import CLASSIFIER, IDENTITIES, LANGUAGE, VECTORS, logs, texts_of

SMALL = CLASSIFIER.format(method="fedavg").replace("rounds = 3", "rounds = 1")
PROMISED = SMALL + '[privacy]\nplacement = "central"\nnoise = 1.0\n'
LEARNED = "train.lr=0.0001,0.01"


@dataclass
class Federation:
    """Four organisations that live through several federations."""

    folder: Path
    train: Callable[[Path], RunDir]
    lines: list[str] = field(default_factory=list)

    def write(self, text: str) -> Path:
        path = self.folder / "federation.toml"
        path.write_text(text)
        return path

    def choose(
        self, text: str, *choices: str, train: Callable[[Path], RunDir] | None = None
    ) -> dict[str, Any]:
        candidates = choosing.candidates(self.write(text), [], choices, len(IDENTITIES))
        out = self.folder / "out"

        def prepare(config: Config, folder: Path) -> RunDir:
            return prepared(config, self.folder / "keys", folder, QUICK)

        choosing.choose(candidates, out, prepare, train or self.train, self.lines.append)
        found: dict[str, Any] = json.loads((out / "choice.json").read_text())
        return found

    def books(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in self.folder.glob("site*/ledger.json")]


@contextmanager
def organisations(folder: Path, method: str = "fedavg", **allowed: Any) -> Iterator[Federation]:
    policy = Policy(methods=(method,), **allowed)
    server_keys(folder / "keys", IDENTITIES)
    desks = {}
    for number in range(len(IDENTITIES)):
        data = Data(name=str(texts_of(number, folder / f"site{number}")), partition="iid")
        mine = site(folder / f"site{number}", number, IDENTITIES, policy, data=data)
        desks[number] = desk(mine)
    carrier = Local(desks)
    try:
        yield Federation(folder, lambda run: drive(carrier, run, Manner(quiet=True)))
    finally:
        close(desks.values())


def test_the_best_values_are_written_as_a_configuration(tmp_path: Path) -> None:
    """Each candidate is a federation of its own, scored on validation texts, and the sites' books
    pay for each.
    """
    with organisations(tmp_path) as sites:
        choice = sites.choose(SMALL, LEARNED)
        books = sites.books()
    runs = [RunDir(tmp_path / "out" / str(n)) for n in (1, 2)]
    assert [run.config().evaluation.split for run in runs] == ["validation"] * 2
    assert len({read_deployment(run.path).federation for run in runs}) == 2
    scores = [run.summary()["global_accuracy"] for run in runs]
    assert [candidate["score"] for candidate in choice["candidates"]] == scores
    assert choice["figure"] == "global_accuracy"
    assert choice["best"] == (1 if scores[0] >= scores[1] else 2)
    chosen = deployed(tmp_path / "out/chosen.toml", [], len(IDENTITIES))
    value = choice["candidates"][choice["best"] - 1]["values"]["train.lr"]
    wanted = deployed(tmp_path / "federation.toml", [f"train.lr={value}"], len(IDENTITIES))
    assert chosen == wanted
    assert chosen.evaluation.split == "test"
    # a round of training and a score, of each of two candidates
    assert {book["exchanges"] for book in books} == {4}
    table = "\n".join(sites.lines)
    assert "train.lr" in table
    assert "global accuracy" in table
    assert "refused" not in logs(tmp_path)


def test_a_site_that_grants_less_than_all_candidates_stops_the_choice(tmp_path: Path) -> None:
    """The second candidate finds every book spent: it has no score, and can't be chosen."""
    with organisations(tmp_path, exchanges=2) as sites:
        choice = sites.choose(SMALL, LEARNED)
    assert choice["candidates"][1]["score"] is None
    assert choice["best"] == 1
    assert "(policy.exchanges)" in logs(tmp_path)


class KilledError(Exception):
    pass


def test_what_is_finished_is_not_run_again_and_what_was_killed_goes_on(tmp_path: Path) -> None:
    started: list[str] = []

    with organisations(tmp_path) as sites:

        def train(folder: Path) -> RunDir:
            started.append(folder.name)
            if started == ["1"]:
                raise KilledError
            return sites.train(folder)

        with pytest.raises(KilledError):
            sites.choose(SMALL, LEARNED, train=train)
        out = tmp_path / "out"
        assert json.loads((out / "choice.json").read_text())["best"] is None
        assert not (out / "chosen.toml").exists()
        before = read_deployment(out / "1").federation
        second = choosing.candidates(tmp_path / "federation.toml", [], [LEARNED], 4)[1]
        rundir.create(out / "2", second.config)  # killed before the federation had a name
        choice = sites.choose(SMALL, LEARNED, train=train)
        assert started == ["1", "1", "2"]
        assert read_deployment(out / "1").federation == before
        assert all(candidate["score"] is not None for candidate in choice["candidates"])
        assert sites.choose(SMALL, LEARNED, train=train) == choice
        assert started == ["1", "1", "2"]
        with pytest.raises(ConfigError, match=r"another choice: its train\.lr differs"):
            sites.choose(SMALL, "train.lr=0.02,0.03", train=train)


@pytest.mark.slow
def test_a_candidate_that_diverges_is_none_to_choose(tmp_path: Path) -> None:
    with organisations(tmp_path) as sites:
        choice = sites.choose(SMALL, "train.lr=1e12,0.01")
    assert choice["best"] == 2
    assert choice["candidates"][0]["stopped"] == "diverged"
    assert choice["candidates"][0]["score"] is None


@pytest.mark.parametrize(
    ("text", "choices", "line"),
    [
        (SMALL, ["train.speed=1,2"], "unknown key 'train.speed'"),
        (SMALL, ["word2vec.lr=0.1,0.2"], "does not read word2vec.lr"),
        (SMALL, ["train.lr=0.1,0.1"], "candidates 1 and 2 are the same"),
        (SMALL, ["train.lr=0.1", "train.lr=0.2"], "names train.lr twice"),
        (SMALL, ["train.lr"], "--choose wants key=value,value"),
        (SMALL, ["train.lr=0.1,"], "--choose wants key=value,value"),
        (SMALL, ["evaluation.limit=3,4"], "evaluation.limit says how candidates are scored"),
        (SMALL, ["train.lr=0.1,fast"], "train.lr must be a number"),
        (PROMISED, ["train.lr=0.1,0.2"], r"can't be chosen under \[privacy\]: nobody is asked"),
    ],
)
def test_what_can_not_be_chosen(text: str, choices: list[str], line: str, tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=line):
        choosing.candidates(path, [], choices, len(IDENTITIES))


def test_all_combinations_are_tried(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    path.write_text(SMALL)
    found = choosing.candidates(path, [], ["train.lr=0.1,0.2", "train.epochs=1,2,3"], 4)
    assert [(c.config.train.lr, c.config.train.epochs) for c in found] == [
        (0.1, 1), (0.1, 2), (0.1, 3), (0.2, 1), (0.2, 2), (0.2, 3),
    ]  # fmt: skip


def test_language_models_are_chosen_on_validation_texts(tmp_path: Path) -> None:
    """By perplexity, and not on the texts that the chosen one is scored on."""
    text = LANGUAGE.replace("rounds = 3", "rounds = 1").replace("switch = [2]", "switch = []")
    with organisations(tmp_path, "tokenizer_for_free") as sites:
        choice = sites.choose(text, "train.lr=0.1")
        run = prepared(
            deployed(tmp_path / "out/chosen.toml", [], 4), tmp_path / "keys", tmp_path / "t", QUICK
        )
        tested = sites.train(run.path).summary()
    assert choice["figure"] == "word_perplexity"
    assert choice["better"] == "lower"
    assert (
        choice["candidates"][0]["score"] == RunDir(tmp_path / "out/1").summary()["word_perplexity"]
    )
    assert tested["word_perplexity"] != choice["candidates"][0]["score"]


def test_word_vectors_are_chosen_by_their_loss(tmp_path: Path) -> None:
    text = VECTORS.replace("rounds = 2", "rounds = 1")
    with organisations(tmp_path, "federated_word2vec") as sites:
        choice = sites.choose(text, "word2vec.lr=0.001,0.05")
    scores = [candidate["score"] for candidate in choice["candidates"]]
    assert choice["figure"] == "heldout_loss"
    assert scores[1] < scores[0]
    assert choice["best"] == 2
