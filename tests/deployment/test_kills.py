"""Processes that are killed in the middle of a round, and come back."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import pytest
import torch

from lexfed.deployment import key_making, processes, serving
from lexfed.deployment.processes import ProcessError
from lexfed.records import checkpoint
from lexfed.records.rundir import RunDir
from lexfed.runs import launch
from lexfed.runs.launch import Manner
from lexfed.wire import decode
from tests.conftest import ROOT
from tests.deployment.loopback import Federation, federation, left_behind
from tests.organisations import loaded
from tests.unit.test_by_letter import CLASSIFIER, QUICK

pytestmark = pytest.mark.deployment
FIVE = (*CLASSIFIER, "rounds=5", "evaluation.last=1")


def in_the_background(real: Federation) -> tuple[Thread, list[RunDir | Exception]]:
    done: list[RunDir | Exception] = []

    def serve() -> None:
        try:
            done.append(real.serve())
        except Exception as error:
            done.append(error)

    thread = Thread(target=serve)
    thread.start()
    return thread, done


def finished(thread: Thread, done: list[RunDir | Exception]) -> RunDir:
    thread.join(240)
    assert not thread.is_alive()
    (result,) = done
    assert isinstance(result, RunDir), result
    return result


def table(folder: Path) -> dict[str, torch.Tensor]:
    """A site's private table, as it lies on its disk."""
    files = sorted(folder.glob("federations/*/store/0*/[0-9]*.safetensors"))
    return dict(decode(files[-1].read_bytes()).arrays)


def matching(words: str) -> list[int]:
    found = subprocess.run(
        ["ps", "-ww", "-eo", "pid,args"], capture_output=True, text=True, check=True
    )
    lines = [line for line in found.stdout.splitlines() if words in line]
    return [int(line.split()[0]) for line in lines]


def test_a_site_process_and_a_supernode_are_killed_and_come_back(tmp_path: Path) -> None:
    """The same bits as without any of it: the same letter gets the same answer."""
    config = loaded(QUICK / "private.toml", *FIVE)
    ours = launch.begin(config, tmp_path / "simulation", None, Manner(quiet=True))
    with federation(config, tmp_path / "real") as real:
        thread, done = in_the_background(real)
        real.wait_for_rounds(1)
        real.kill("site1")
        before = table(real.folder / "site1")
        time.sleep(2)
        real.start("site1")
        real.wait_for_rounds(2)
        nodes = matching(str(real.folder / "site2" / "site.sock"))
        for node in nodes:
            os.kill(node, signal.SIGKILL)
        theirs = finished(thread, done)
        after = table(real.folder / "site1")
    assert [record["round"] for record in theirs.records()] == [1, 2, 3, 4, 5]
    assert nodes
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)  # it went on
    heard = [record["clients"] for record in theirs.records()]
    if heard == [3] * 5:  # nobody was given up: then nothing may differ
        one, other = (checkpoint.load(run.checkpoint).state for run in (ours, theirs))
        assert all(torch.equal(one.params[name], other.params[name]) for name in one.params)
    assert sum(heard) >= 13
    assert left_behind(tmp_path / "real") == []


def test_a_server_is_killed_in_the_middle_of_a_round_and_goes_on(tmp_path: Path) -> None:
    """All of it: SuperLink, ServerApp, the command. Then again, with a new Flower run and new node
    ids; and the ServerApp alone, which is started again by itself.
    """
    config = loaded(QUICK / "private.toml", *FIVE)
    ours = launch.begin(config, tmp_path / "simulation", None, Manner(quiet=True))
    with federation(config, tmp_path / "real") as real:
        words = [
            sys.executable,
            "-m",
            "tests.deployment.serve_here",
            str(real.run),
            str(real.place.port),
        ]
        process = subprocess.Popen(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
        real.wait_for_rounds(2)
        process.kill()
        process.wait()
        for link in matching(f"--port {real.place.port}"):
            os.kill(link, signal.SIGKILL)
        time.sleep(1)
        assert len(RunDir(real.run).records()) < 5
        thread, done = in_the_background(real)
        real.wait_for_rounds(3)
        status = serving.read_status(real.run)
        assert status is not None
        os.kill(int(status["process"]), signal.SIGKILL)
        theirs = finished(thread, done)
    assert [record["round"] for record in theirs.records()] == [1, 2, 3, 4, 5]
    one, other = (checkpoint.load(run.checkpoint).state for run in (ours, theirs))
    assert all(torch.equal(one.params[name], other.params[name]) for name in one.params)
    assert left_behind(tmp_path / "real") == []


def test_a_node_that_nobody_registered_is_refused(tmp_path: Path) -> None:
    config = loaded(
        QUICK / "private.toml", *CLASSIFIER, "data.clients=2", "rounds=2", "evaluation.last=1"
    )
    with federation(config, tmp_path / "real") as real:
        stranger = tmp_path / "stranger"
        key_making.new("stranger", stranger)
        (stranger / "ca.crt").write_bytes((real.folder / "keys/ca.crt").read_bytes())
        socket = real.folder / "site0/site.sock"
        node = processes.Node(stranger, real.place.own_address, socket, processes.free_port())
        node.prepare()
        thread, done = in_the_background(real)
        time.sleep(8)
        with processes.running(node.commands()[0], stranger / "log") as process:
            theirs = finished(thread, done)
            refused = process.poll() is not None
    text = (stranger / "log").read_text(errors="replace")
    assert refused or "auth" in text.lower() or "permission" in text.lower(), text[-500:]
    assert [record["clients"] for record in theirs.records()] == [2, 2]
    assert "stranger" not in (real.run / "status.json").read_text()


def test_a_wrong_certificate_is_refused(tmp_path: Path) -> None:
    key_making.server(["127.0.0.1"], tmp_path / "one")
    key_making.server(["127.0.0.1"], tmp_path / "other")
    port = processes.free_port()
    link = processes.superlink(tmp_path / "one", "127.0.0.1", port, tmp_path / "home", {})
    with processes.running(link, tmp_path / "link.log") as process:
        processes.wait_for_port("127.0.0.1", port, process, tmp_path / "link.log")
        for folder, good in (("one", True), ("other", False)):
            processes.configure(
                tmp_path / folder, f"127.0.0.1:{port}", tmp_path / folder / "ca.crt"
            )
            if good:
                processes.run(processes.flwr(tmp_path / folder, "list", "lexfed"))
            else:
                with pytest.raises(ProcessError):
                    processes.run(processes.flwr(tmp_path / folder, "list", "lexfed"))
