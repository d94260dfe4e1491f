"""Formats have numbers: what an older lexfed wrote is read, what a newer one wrote is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from lexfed.core.params import Params
from lexfed.wire import decode
from tests.conftest import ROOT, Lexfed

# Runs of lexfed 0.1 (commit 79332b5), two or three rounds each. Beside them, sum and length of what
# that commit's own resumed runs end with (lexfed run RUN --resume --set rounds=4): to five digits,
# because processors differ in the last bits of a float.
OLD = ROOT / "tests" / "data" / "format-1"
ENDS: dict[str, dict[str, tuple[float, float]]] = {
    # these are not that commit's: private rows of who joins now come from a stream cipher
    "private": {
        "lstm.weight_ih_l0": (-1.776589, 2.182975),
        "lstm.weight_hh_l0_reverse": (1.881663, 2.012472),
        "lstm.bias_hh_l0": (-0.700489, 0.871572),
        "output.weight": (-0.090207, 0.842109),
    },
    "learned": {
        "embedding.weight": (-0.436614, 3.821749),
        "lstm.weight_ih_l0": (-8.149142, 3.482442),
        "lstm.weight_hh_l0": (-2.813417, 3.638468),
        "output.bias": (-17.489641, 10.969938),
    },
    # nor these: all pairs of a centre are now scored before its rows move
    "agreed": {"vectors": (-0.515253, 0.905389)},
}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    shutil.copytree(OLD, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize("run", ENDS)
def test_a_run_of_the_first_format_goes_on_as_it_would_have(
    run: str, old: Path, lexfed: Lexfed
) -> None:
    result = lexfed("run", run, "--resume", "--set", "rounds=4")
    assert result.returncode == 0, result.stderr
    found = left_behind(old / run / "artifacts")
    for name, end in ENDS[run].items():
        value = found[name].double()
        assert (float(value.sum()), float(value.norm())) == pytest.approx(end, abs=2e-5), name


def left_behind(artifacts: Path) -> Params:
    if (artifacts / "vectors.txt").exists():
        head, *lines = (artifacts / "vectors.txt").read_text().splitlines()
        assert head == "33 4"
        return {"vectors": torch.tensor([[float(n) for n in line.split()[1:]] for line in lines])}
    return decode((artifacts / "model.safetensors").read_bytes()).arrays


def test_a_resumed_old_run_can_be_resumed_again(old: Path, lexfed: Lexfed) -> None:
    """Its file keeps the keys it was written with, so its checkpoint is still its own."""
    for rounds in (3, 4):
        assert lexfed("run", "private", "--resume", "--set", f"rounds={rounds}").returncode == 0


def test_an_old_wire_can_be_audited(old: Path, lexfed: Lexfed) -> None:
    words = ("audit", "wire", "--truth", "private", "--attack", "labels", "--out", "found")
    result = lexfed(*words)
    assert result.returncode == 0, result.stderr
    rows = json.loads((old / "found/audit.json").read_text())
    assert [(row["attack"], row["uploads"]) for row in rows] == [("labels", 3)]


def test_an_old_language_model_has_a_tokenizer_and_no_word_list(old: Path, lexfed: Lexfed) -> None:
    result = lexfed("vocab", "inspect", "learned")
    assert result.returncode == 2
    assert "holds no common vocabulary" in result.stderr


def test_an_old_configuration_runs_again(old: Path, lexfed: Lexfed) -> None:
    """Resolved files hold every key, and are not refused for those that the method does not
    read.
    """
    assert (
        lexfed("run", "agreed/config.toml", "--out", "again", "--set", "rounds=1").returncode == 0
    )


@pytest.fixture
def fresh(tiny: Path, lexfed: Lexfed, tmp_path: Path) -> Path:
    words = ("--out", "run", "--set", "method=fedevocab", "--record-wire", "wire")
    assert lexfed("run", tiny, *words).returncode == 0
    return tmp_path


def test_everything_that_is_written_says_its_format(fresh: Path) -> None:
    numbers = [
        json.loads((fresh / place / "format.json").read_text())["format"]
        for place in ("run", "run/checkpoint/clients", "wire")
    ]
    manifest = json.loads((fresh / "run/checkpoint/state.json").read_text())
    assert [*numbers, manifest["format"], manifest["ledger_format"]] == [1, 1, 1, 1, 3]
    assert (fresh / "run/config.toml").read_text().startswith("format = 1\n")


NEWER = {
    "run": ("run/format.json", ("run", "run", "--resume", "--set", "rounds=5")),
    "client store": (
        "run/checkpoint/clients/format.json",
        ("run", "run", "--resume", "--set", "rounds=5"),
    ),
    "checkpoint": ("run/checkpoint/state.json", ("run", "run", "--resume", "--set", "rounds=5")),
    "wire": ("wire/format.json", ("audit", "wire", "--truth", "run")),
}


@pytest.mark.parametrize("what", NEWER)
def test_what_a_newer_lexfed_wrote_is_refused_in_one_line(
    what: str, fresh: Path, lexfed: Lexfed
) -> None:
    file, words = NEWER[what]
    content = json.loads((fresh / file).read_text())
    (fresh / file).write_text(json.dumps({**content, "format": 99}))
    result = lexfed(*words)
    assert result.returncode == 2
    assert "newer" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_newer_configuration_is_refused_in_one_line(tiny: Path, lexfed: Lexfed) -> None:
    tiny.write_text("format = 99\n" + tiny.read_text())
    result = lexfed("run", tiny)
    assert result.returncode == 2
    assert "newer" in result.stderr


def test_a_newer_ledger_is_refused(fresh: Path, lexfed: Lexfed) -> None:
    manifest = fresh / "run/checkpoint/state.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "ledger_format": 99}))
    result = lexfed("run", "run", "--resume", "--set", "rounds=5")
    assert result.returncode == 2
    assert "ledger" in result.stderr
