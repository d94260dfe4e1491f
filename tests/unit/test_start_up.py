"""Nothing that a run does not use is imported before it begins: who waits for a short run mostly
waits for imports.
"""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

SPEED = ROOT / "benchmarks" / "speed"
# what only some runs need, and what no run needs; each takes from a quarter of a second to two
HEAVY = (
    "scipy", "matplotlib", "dp_accounting", "numba", "tokenizers", "transformers", "datasets",
    "tensorboard", "flwr", "sympy", "torch._dynamo", "torch._inductor", "IPython", "sklearn",
)  # fmt: skip


@pytest.fixture
def start_up(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SPEED))
    return importlib.import_module("start_up")


def test_a_run_begins_without_what_it_does_not_use(start_up: Any, tmp_path: Path) -> None:
    seen = start_up.run(start_up.write(tmp_path), tmp_path / "run")
    assert "torch" in seen["modules"]
    assert not set(seen["modules"]) & set(HEAVY)
    assert (tmp_path / "run/report.html").exists()
    # the benchmark measures seconds; here is only seen that its clocks go
    assert 0 < seen["cpu_s"] < seen["first_round_cpu_s"] < seen["whole_cpu_s"]


@pytest.mark.slow
def test_a_run_begins_within_a_second_and_a_half_of_torch(start_up: Any, tmp_path: Path) -> None:
    config = start_up.write(tmp_path)
    tries = [
        start_up.run(config, tmp_path / f"run-{number}")["cpu_s"] - start_up.import_torch()
        for number in range(3)
    ]
    print(f"seconds of CPU beyond import torch: {tries}")
    assert min(tries) < 1.5


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["run", "--help"]])
def test_help_needs_no_torch(words: list[str]) -> None:
    code = (
        "import json, sys\nfrom lexfed.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    modules = set(json.loads(done.stdout.splitlines()[-1]))
    assert not modules & {"torch", "numpy", "pyarrow", *HEAVY}


def test_marks_are_where_they_are_looked_for() -> None:
    """Three planes of Unicode are searched; a newer Python may know others."""
    import unicodedata

    from lexfed.vocabulary.splitting import _marks

    points = map(chr, range(sys.maxunicode + 1))
    assert {c for c in points if unicodedata.category(c)[0] == "M"} <= set(_marks())
