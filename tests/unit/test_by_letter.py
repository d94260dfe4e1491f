"""Organisations that are asked by letter: the same bits as a simulation, for every method."""

from pathlib import Path

import pytest
import torch

from lexfed.experiment.config import Config
from lexfed.records import checkpoint
from lexfed.runs import launch
from lexfed.runs.launch import Manner
from tests.conftest import ROOT
from tests.organisations import like_the_simulation, loaded

QUICK = ROOT / "experiments/quick"
SMALL = ("data.limit=300", "rounds=2", "evaluation.every=0")
CLASSIFIER = (
    *SMALL, "data.clients=3", "data.classes=2", "cohort.sampling=everyone", "model.hidden=16", "model.embedding=16",
    "vocabulary.size=500", "evaluation.limit=50",
)  # fmt: skip


def same(config: Config, tmp_path: Path) -> None:
    ours = launch.begin(config, tmp_path / "simulation", None, Manner(quiet=True))
    theirs = like_the_simulation(config, tmp_path / "deployment")
    one, other = (checkpoint.load(run.checkpoint).state.params for run in (ours, theirs))
    assert set(one) == set(other)
    for name, value in one.items():
        assert torch.equal(value, other[name]), name
    assert [r["bytes_up"] for r in ours.records()] == [r["bytes_up"] for r in theirs.records()]


@pytest.mark.parametrize(
    "method",
    ["fedavg", "fedavg_finetune", "fedprox", "lg_fedavg", "fedrecon"],
)
def test_a_classifier_is_the_simulations_to_the_bit(method: str, tmp_path: Path) -> None:
    same(loaded(QUICK / "fedavg.toml", *CLASSIFIER, f"method={method}"), tmp_path)


def test_fedevocab_keeps_its_words_and_is_the_simulations(tmp_path: Path) -> None:
    same(loaded(QUICK / "private.toml", *CLASSIFIER), tmp_path)


@pytest.mark.parametrize(("method", "clients"), [("local_only", 3), ("centralised", 1)])
def test_who_trains_alone(method: str, clients: int, tmp_path: Path) -> None:
    """`centralised` is the one place that holds everything: a federation of one."""
    settings = [s for s in CLASSIFIER if not s.startswith(("rounds", "cohort", "data.clients"))]
    more = (f"method={method}", f"data.clients={clients}", f"{method}.epochs=1")
    same(loaded(QUICK / "fedavg.toml", *settings, *more), tmp_path)


VECTORS = (
    "data.limit=600", "data.clients=3", "rounds=2", "word2vec.dimension=20", "agreement.minimum=3",
)  # fmt: skip


def test_an_agreed_list_and_its_vectors(tmp_path: Path) -> None:
    same(loaded(QUICK / "agreed.toml", *VECTORS), tmp_path)


LANGUAGE = (
    "data.clients=4", "data.unseen=1", "rounds=3", "cohort.size=3", "cohort.sampling=poisson",
    "tokenizer_for_free.switch=[2]", "tokenizer_for_free.sample_words=300", "tokenizer.size=300",
    "language_model.width=16", "privacy.noise_cohort=none", "privacy.population=none",
    "privacy.noise=0.5", "privacy.epsilon=none",
)  # fmt: skip


@pytest.mark.slow
def test_a_tokenizer_for_free(tmp_path: Path) -> None:
    same(loaded(QUICK / "learned.toml", *LANGUAGE), tmp_path)


SECURE = ("secure.sums=true",)


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        ("fedavg.toml", (*CLASSIFIER, *SECURE, "evaluation.clients=3")),
        ("private.toml", (*CLASSIFIER, *SECURE, "evaluation.clients=3")),
        pytest.param("agreed.toml", (*VECTORS, *SECURE), marks=pytest.mark.slow),
        ("learned.toml", (*LANGUAGE, *SECURE, "privacy.placement=none", "privacy.noise=none",
                          "evaluation.clients=3", "data.unseen=3")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_secure_sums_by_letter(file: str, settings: tuple[str, ...], tmp_path: Path) -> None:
    same(loaded(QUICK / file, *settings), tmp_path)
