"""The benchmark against peers does the work that it says: everybody ends in the same weights."""

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SPEED = Path(__file__).parents[2] / "benchmarks" / "speed"


def played(monkeypatch: pytest.MonkeyPatch, script: str, *words: object) -> None:
    monkeypatch.syspath_prepend(str(SPEED))
    monkeypatch.setattr(sys, "argv", [script, *map(str, words)])
    importlib.import_module(script).main()


def weights(path: Path) -> dict[str, Any]:
    with np.load(path) as found:
        return {name: found[name] for name in found}


@pytest.mark.parametrize("variable", [False, True])
def test_lexfed_and_a_bare_loop_of_torch_end_a_round_in_the_same_weights(
    variable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SPEED))
    work = importlib.import_module("work")
    little = work.Work("little", 300, 12, variable, users=40, cohort=20, lr=1.0, clip=0.2)
    work.write(little, tmp_path)
    played(monkeypatch, "run_lexfed", tmp_path, "plan", "--rounds", 2)
    played(monkeypatch, "run_lexfed", tmp_path, "run", "--agree", tmp_path / "ours.npz")
    played(monkeypatch, "run_floor", tmp_path, "--agree", tmp_path / "floor.npz")
    start, ours = weights(tmp_path / "start.npz"), weights(tmp_path / "ours.npz")
    floor = weights(tmp_path / "floor.npz")
    assert start.keys() == ours.keys() == floor.keys()
    for name, value in ours.items():
        assert np.abs(value - start[name]).max() > 1e-4, "it has moved"
        np.testing.assert_allclose(value, floor[name], rtol=0, atol=1e-6)
