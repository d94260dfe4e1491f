"""Ten times the clients cost no more memory and no more time a round."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import BAD, GOOD, ROOT, needs_data

TEXTS_EACH = 2


def peak_memory(command: list[object]) -> float:
    """Run a command to its end; the most memory it ever had, in MB.

    Through a small process between it and us: what a process has when it forks counts as its
    child's peak, and this one has
    imported whatever any test needs.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", _BETWEEN, *map(str, command)]
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout) / 1024


_BETWEEN = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@needs_data
@pytest.mark.slow
def test_a_thousand_private_tables_over_a_public_one_fit_in_600_mb(tmp_path: Path) -> None:
    """1,000 clients with the 100k x 100 vectors train and are scored."""
    settings = {
        "method": "fedevocab", "data.name": "sst2", "data.clients": 1000, "rounds": 3, "cohort.size": 50,
        "vocabulary.vectors": "glove_6b_100d_top100k.npz", "model.embedding": 100, "model.hidden": 16,
        "train.max_length": 32, "evaluation.limit": 50,
    }  # fmt: skip
    (tmp_path / "c.toml").write_text("")
    command: list[object] = [
        sys.executable,
        "-m",
        "lexfed.cli",
        "run",
        tmp_path / "c.toml",
        "--out",
        tmp_path / "run",
    ]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    memory = peak_memory(command)
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    print(
        f"1,000 private tables: {memory:.0f} MB, {summary['parameters_private']:,.0f} private parameters a client"
    )
    assert summary["clients"] == 1000
    assert memory < 600
    # what is kept on disk follows the words a client uses: 60 short texts, not 100,000 words
    kept = [
        path.stat().st_size for path in (tmp_path / "run/checkpoint/clients").rglob("*.safetensors")
    ]
    assert max(kept) < 400_000 < 100_000 * 100 * 2


def run(clients: int, folder: Path) -> tuple[float, float]:
    """Peak memory in MB, and the seconds of the quickest round: the others met other work on
    the machine.
    """
    rows = [
        {"text": f"{(GOOD if i % 2 else BAD)[i % 5]} {i}", "label": i % 2}
        for i in range(clients * TEXTS_EACH)
    ]
    split = [{**row, "split": "train"} for row in rows] + [
        {**row, "split": "test"} for row in rows[:50]
    ]
    (folder / f"{clients}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in split))
    settings = {
        "data.name": folder / f"{clients}.jsonl", "data.clients": clients, "data.validation": 0.0, "data.partition": "iid",
        "rounds": 40, "cohort.size": 10, "model.embedding": 8, "model.hidden": 8, "vocabulary.size": 500,
    }  # fmt: skip
    (folder / "c.toml").write_text("")
    command: list[object] = [
        sys.executable,
        "-m",
        "lexfed.cli",
        "run",
        folder / "c.toml",
        "--out",
        folder / f"run-{clients}",
    ]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    memory = peak_memory(command)
    records = [
        json.loads(line)
        for line in (folder / f"run-{clients}" / "rounds.jsonl").read_text().splitlines()
    ]
    assert records[-1]["metrics"]["scored_clients"] == clients, "all of them were scored at the end"
    return memory, min(record["seconds"] for record in records)


@pytest.mark.slow
def test_ten_thousand_clients_cost_what_a_thousand_cost(tmp_path: Path) -> None:
    memory_1k, seconds_1k = run(1_000, tmp_path)
    memory_10k, seconds_10k = run(10_000, tmp_path)
    print(f"1,000 clients: {memory_1k:.0f} MB, {1000 * seconds_1k:.1f} ms for a round")
    print(f"10,000 clients: {memory_10k:.0f} MB, {1000 * seconds_10k:.1f} ms for a round")
    assert memory_10k < 1.1 * memory_1k
    # a cost that grew with the clients would be ten times as large; beside other tests a round of
    # 30 ms is met by their work
    assert seconds_10k < 2 * seconds_1k, "flat, up to this machine's noise"
