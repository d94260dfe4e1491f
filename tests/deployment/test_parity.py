"""Over a real SuperLink and real SuperNodes: the same weights as the simulation, bit for bit."""

from pathlib import Path

import pytest
import torch

from lexfed.experiment.config import Config
from lexfed.records import checkpoint
from lexfed.runs import launch
from lexfed.runs.launch import Manner
from tests.deployment.loopback import federation, left_behind
from tests.organisations import loaded
from tests.unit.test_by_letter import CLASSIFIER, LANGUAGE, QUICK, SECURE, VECTORS


def same_bits(config: Config, tmp_path: Path, insecure: bool = False) -> None:
    ours = launch.begin(config, tmp_path / "simulation", None, Manner(quiet=True))
    with federation(config, tmp_path / "real", insecure) as real:
        theirs = real.serve()
    one, other = (checkpoint.load(run.checkpoint).state for run in (ours, theirs))
    assert one.round == other.round
    assert set(one.params) == set(other.params)
    for name, value in one.params.items():
        assert torch.equal(value, other.params[name]), name
    assert left_behind(tmp_path / "real") == []


def test_one_of_them_is_in_every_test_run(tmp_path: Path) -> None:
    """FedeVocab, two organisations, one round; without TLS, which the others have."""
    few = ("data.clients=2", "rounds=1", "evaluation.last=1")
    same_bits(loaded(QUICK / "private.toml", *CLASSIFIER, *few), tmp_path, insecure=True)


@pytest.mark.deployment
@pytest.mark.parametrize(
    ("file", "settings"),
    [
        ("private.toml", (*CLASSIFIER, "evaluation.last=1")),
        ("agreed.toml", VECTORS),
        ("learned.toml", LANGUAGE),
        ("private.toml", (*CLASSIFIER, *SECURE, "evaluation.clients=3")),
    ],
    ids=["fedevocab", "word2vec", "tokenizer", "fedevocab-secure"],
)
def test_the_papers_methods_with_tls_and_node_keys(
    file: str, settings: tuple[str, ...], tmp_path: Path
) -> None:
    same_bits(loaded(QUICK / file, *settings), tmp_path)
