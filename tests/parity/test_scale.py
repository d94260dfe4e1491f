"""Ten times the clients cost no more memory and no more time a round."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from tests.conftest import BAD, GOOD, ROOT

TEXTS_EACH = 2


def run(clients: int, folder: Path) -> tuple[float, float]:
    """Peak memory in MB, and the median seconds of a round."""
    rows = [{"text": f"{(GOOD if i % 2 else BAD)[i % 5]} {i}", "label": i % 2} for i in range(clients * TEXTS_EACH)]
    split = [{**row, "split": "train"} for row in rows] + [{**row, "split": "test"} for row in rows[:50]]
    (folder / f"{clients}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in split))
    settings = {
        "data.name": folder / f"{clients}.jsonl", "data.clients": clients, "data.validation": 0.0, "data.partition": "iid",
        "rounds": 15, "cohort.size": 10, "model.embedding": 8, "model.hidden": 8, "vocabulary.size": 500,
    }  # fmt: skip
    (folder / "c.toml").write_text("")
    command = [sys.executable, "-m", "lexfed.cli", "run", folder / "c.toml", "--out", folder / f"run-{clients}"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    records = [json.loads(line) for line in (folder / f"run-{clients}" / "rounds.jsonl").read_text().splitlines()]
    assert records[-1]["metrics"]["scored_clients"] == clients, "all of them were scored at the end"
    return usage.ru_maxrss / 1024, statistics.median(record["seconds"] for record in records)


def test_ten_thousand_clients_cost_what_a_thousand_cost(tmp_path: Path) -> None:
    memory_1k, seconds_1k = run(1_000, tmp_path)
    memory_10k, seconds_10k = run(10_000, tmp_path)
    print(f"1,000 clients: {memory_1k:.0f} MB, {1000 * seconds_1k:.1f} ms a round")
    print(f"10,000 clients: {memory_10k:.0f} MB, {1000 * seconds_10k:.1f} ms a round")
    assert memory_10k < 1.1 * memory_1k
    assert seconds_10k < 1.5 * seconds_1k, "flat, up to this machine's noise"
