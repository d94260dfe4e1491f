"""Any number of workers gives the same bits as none."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lexfed.runtime.forking import warm_up, without_main
from lexfed.runtime.workers import Orders, _said, _sweep, _taken, _work
from lexfed.wire import Message
from tests.conftest import Lexfed

METHODS = {
    "fedavg": [],
    "fedavg with everything going wrong": [
        "cohort.dropout=0.2",
        "cohort.lost=0.2",
        "cohort.stale=0.2",
        "cohort.size=5",
    ],
    "fedavg with Poisson cohorts and Yogi": [
        "cohort.sampling=poisson",
        "server.optimizer=yogi",
        "server.lr=0.1",
    ],
    "local_only": ["method=local_only"],
    "local_only with everything going wrong": [
        "method=local_only",
        "cohort.lost=0.3",
        "cohort.stale=0.3",
    ],
}
VARYING = ("seconds", "evaluation_seconds")


def figures(run: Path) -> tuple[object, ...]:
    """All that a run leaves behind, but for its time."""
    summary = json.loads((run / "summary.json").read_text())
    records = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    tables = {
        str(p.relative_to(run)): p.read_bytes()
        for p in sorted((run / "checkpoint/clients").rglob("*.safetensors"))
    }
    weights = (run / "artifacts/model.safetensors").read_bytes()
    without_time = [
        {k: v for k, v in table.items() if k not in VARYING} for table in (summary, *records)
    ]
    return without_time, tables, weights


@pytest.mark.parametrize("case", METHODS)
def test_the_number_of_workers_changes_nothing(
    case: str, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    settings = [word for setting in METHODS[case] for word in ("--set", setting)]
    for count in (0, 1, 2, 3) if case == "fedavg" else (0, 2):
        result = lexfed("run", tiny, "--out", f"w{count}", "--workers", count, *settings)
        assert result.returncode == 0, result.stderr
    assert figures(tmp_path / "w0") == figures(tmp_path / "w2")
    if case == "fedavg":
        assert figures(tmp_path / "w0") == figures(tmp_path / "w1") == figures(tmp_path / "w3")


def test_an_error_in_a_worker_is_one_line_here(tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    """The private tables that the workers read are damaged."""
    assert lexfed("run", tiny, "--out", "a", "--set", "method=local_only").returncode == 0
    for file in (tmp_path / "a/checkpoint/clients").rglob("*.safetensors"):
        file.write_bytes(b"rubbish")
    (tmp_path / "a/summary.json").unlink()
    tail = (tmp_path / "a/rounds.jsonl").read_text().splitlines()[:1]
    (tmp_path / "a/rounds.jsonl").write_text("\n".join(tail) + "\n")
    result = lexfed("run", "a", "--resume", "--workers", 2)
    assert result.returncode == 2
    assert "is damaged" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_worker_ends_quietly_when_the_run_ends_with_its_bytes_unread(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Closing a socket that still holds bytes resets it: the worker meets an error, no end."""
    context = warm_up()
    ours, theirs = context.Pipe()
    orders = Orders("", str(tmp_path / "clients"), None)
    theirs.send_bytes(b"a reply that nobody takes")
    ours.close()
    process = context.Process(target=_work, args=(theirs, orders), daemon=True)
    with without_main():
        process.start()
    theirs.close()
    process.join(timeout=60)
    assert process.exitcode == 0
    assert "Traceback" not in capfd.readouterr().err


def test_a_large_message_goes_in_a_file_that_is_gone_when_it_was_read(tmp_path: Path) -> None:
    large = Message({"delta/x": torch.randn(400, 300)}, {"clients": 3}, {"words": b"some"})
    small = Message({"delta/x": torch.randn(4)}, {"clients": 3})
    for message, files in ((large, 1), (small, 0)):
        said = _said(message, tmp_path)
        assert len(list(tmp_path.iterdir())) == files
        assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
        taken = _taken(said)
        assert not list(tmp_path.iterdir())
        assert torch.equal(taken.arrays["delta/x"], message.arrays["delta/x"])
        assert (taken.meta, taken.blobs) == (message.meta, message.blobs)


def test_what_a_killed_worker_left_on_its_way_is_swept_up(
    tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    assert lexfed("run", tiny, "--out", "a", "--workers", 2).returncode == 0
    clients = tmp_path / "a/checkpoint/clients"
    assert not list(clients.glob(".passing*"))
    _said(Message({"delta/x": torch.randn(400, 300)}), clients)
    (file,) = clients.glob(".passing*")
    file.with_name(f".{file.name}.1.2").write_bytes(b"half of it")
    _sweep(clients)
    assert not list(clients.glob(".*passing*"))
    _said(Message({"delta/x": torch.randn(400, 300)}), clients)
    result = lexfed("run", "a", "--resume", "--workers", 2, "--set", "rounds=3")
    assert result.returncode == 0, result.stderr
    assert not list(clients.glob(".passing*"))


def test_only_the_fork_server_ends_without_taking_itself_apart() -> None:
    code = "import lexfed.runtime.preloaded, sys; sys.exit(3)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 3
