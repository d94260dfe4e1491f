"""The examples run, as they stand: from the command line, and as scripts without a main guard."""

import ast
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lexfed.wire import decode
from tests.conftest import ROOT, Lexfed, lexfed_process
from tests.parity.test_resume import progress, wait_until
from tests.parity.test_workers import figures

EXAMPLES = ROOT / "examples"
SMALL = ("--set", "data.limit=300", "--set", "evaluation.limit=60")


def code_lines(path: Path) -> int:
    """Lines of a file that hold code: no docstring, no comment, no blank."""
    source = path.read_text()
    strings = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(source.splitlines(), 1)
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in strings
        for number, line in lines
    )


def test_a_method_of_ones_own_is_short() -> None:
    assert len((EXAMPLES / "own_method.py").read_text().splitlines()) < 40
    assert code_lines(EXAMPLES / "own_method.py") < 30


@pytest.mark.slow
def test_it_runs_with_workers_is_killed_and_resumed_and_ends_with_the_same_bits(
    lexfed: Lexfed, tmp_path: Path
) -> None:
    config = EXAMPLES / "own_method.toml"
    whole = lexfed("run", config, "--out", "whole", *SMALL)
    assert whole.returncode == 0, whole.stderr
    run = tmp_path / "killed"
    process = lexfed_process("run", config, "--out", run, "--workers", 2, *SMALL, cwd=tmp_path)
    wait_until(lambda: progress(run) > 1 or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert 1 < progress(run) < 6, "it was killed on the way"
    # from another folder than the configuration's: its module is found on the path
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{EXAMPLES}"}
    words = [sys.executable, "-m", "lexfed", "run", str(run), "--resume", "--workers", "2"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert figures(run) == figures(tmp_path / "whole")


def test_its_own_table_is_checked(lexfed: Lexfed) -> None:
    result = lexfed("run", EXAMPLES / "own_method.toml", "--set", "sign_fedavg.sclae=2.0")
    assert result.returncode == 2
    assert "did you mean 'scale'?" in result.stderr


def test_its_option_changes_the_result(lexfed: Lexfed, tmp_path: Path) -> None:
    one = ("--set", "rounds=1", *SMALL)
    for name, scale in (("a", 1.0), ("b", 0.5)):
        words = ("--out", name, *one, "--set", f"sign_fedavg.scale={scale}")
        assert lexfed("run", EXAMPLES / "own_method.toml", *words).returncode == 0
    weights = [(tmp_path / name / "artifacts/model.safetensors").read_bytes() for name in "ab"]
    assert weights[0] != weights[1]


@pytest.mark.parametrize("method", ["fedavg", "fedevocab"])
def test_a_model_of_ones_own_works_with_shared_and_with_private_tables(
    method: str, lexfed: Lexfed, tmp_path: Path
) -> None:
    """The file is a method's of one's own: with another method in its place, its table stays."""
    words = ["--set", "model.name=own_model:MODEL", "--set", f"method={method}", "--workers", 2]
    words += ["--set", "rounds=2", *SMALL]
    result = lexfed("run", EXAMPLES / "own_method.toml", "--out", "run", *words)
    assert result.returncode == 0, result.stderr
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert 0.3 < summary["global_accuracy"] < 1
    assert (summary["parameters_private"] > 0) == (method == "fedevocab")


def test_a_verb_of_ones_own_sends_fewer_bytes_and_all_of_it_is_fedavg(
    lexfed: Lexfed, tmp_path: Path
) -> None:
    """And what its file says of its share is checked."""
    words = ["--set", "rounds=2", *SMALL]
    for name, share in (("tenth", 0.1), ("whole", 1.0)):
        own = ("--set", "method=sparse_uploads:METHOD", "--set", f"sparse_uploads.share={share}")
        done = lexfed("run", EXAMPLES / "own_method.toml", "--out", name, *own, *words)
        assert done.returncode == 0, done.stderr
    done = lexfed(
        "run", EXAMPLES / "own_method.toml", "--out", "fedavg", "--set", "method=fedavg", *words
    )
    assert done.returncode == 0, done.stderr
    found = {
        name: json.loads((tmp_path / name / "summary.json").read_text())
        for name in ("tenth", "whole", "fedavg")
    }
    # a place and a value for each number that is sent; FedAvg leaves out the rows of nobody's words
    assert found["tenth"]["bytes_up"] < 0.11 * found["whole"]["bytes_up"]
    assert found["fedavg"]["bytes_up"] < 0.5 * found["whole"]["bytes_up"]
    assert found["tenth"]["bytes_up_per_client_round"] < found["tenth"]["bytes_up"]
    models = [
        decode((tmp_path / name / "artifacts/model.safetensors").read_bytes()).arrays
        for name in ("whole", "fedavg")
    ]
    for name, value in models[0].items():
        torch.testing.assert_close(value, models[1][name], rtol=1e-4, atol=1e-6)
    wrong = ("--set", "method=sparse_uploads:METHOD", "--set", "sparse_uploads.share=2.0")
    done = lexfed("run", EXAMPLES / "own_method.toml", *wrong)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "sparse_uploads.share must be above 0 and at most 1" in done.stderr


SLOWER = [pytest.param(name, marks=pytest.mark.slow) for name in ("private", "agreed", "learned")]


@pytest.mark.parametrize("script", ["own_data", *SLOWER])
def test_the_scripts_run_without_a_main_guard(script: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, str(EXAMPLES / f"{script}.py")]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "main" not in (EXAMPLES / f"{script}.py").read_text()
    assert done.stdout.strip()
