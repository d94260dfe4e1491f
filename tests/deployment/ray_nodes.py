"""A real Ray cluster on this machine: two nodes of one processor each, of which one can be killed."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lexfed.core.seeds import fresh
from lexfed.deployment.processes import free_port
from tests.conftest import ROOT


@dataclass(frozen=True)
class Node:
    """A session of its own, in which all of the node's processes are."""

    process: "subprocess.Popen[bytes]"
    folder: Path

    def processes(self, named: str = "") -> list[int]:
        """Those whose command begins like this."""
        found = subprocess.run(
            ["ps", "-ww", "-eo", "pid,sid,stat,args"], capture_output=True, text=True, check=True
        )
        rows = [line.split(maxsplit=3) for line in found.stdout.splitlines()[1:]]
        return [
            int(pid)
            for pid, session, state, command in rows
            if int(session) == self.process.pid and not state.startswith("Z")
            if command.startswith(named)
        ]

    def freeze(self) -> bool:
        """Stop a worker in the middle of a block; whether there was one."""
        for pid in self.processes("ray::work"):
            os.kill(pid, signal.SIGSTOP)
            if pid in self.processes("ray::work"):  # it tells what it is at by its name
                return True
            os.kill(pid, signal.SIGCONT)
        return False

    def kill(self) -> None:
        """Raylet, workers and all the rest, without warning."""
        while found := self.processes():
            for pid in found:
                os.kill(pid, signal.SIGKILL)
            self.process.poll()
            time.sleep(0.05)
        self.process.wait()


@dataclass
class Cluster:
    folder: Path
    address: str
    # whoever has no token is not let in: Ray listens on every interface
    environment: dict[str, str]
    nodes: list[Node] = field(default_factory=list)

    def start(self, *words: str) -> Node:
        folder = self.folder / str(len(self.nodes))
        command = [
            str(Path(sys.executable).with_name("ray")), "start", "--block", "--num-cpus=1",
            "--object-store-memory=100000000", "--disable-usage-stats", f"--temp-dir={folder}",
            *words,
        ]  # fmt: skip
        log = self.folder / f"{len(self.nodes)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        node = Node(process, folder)
        self.nodes.append(node)
        deadline = time.monotonic() + 60
        while "Ray runtime started" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        return node


@contextmanager
def cluster(**environment: str) -> Iterator[Cluster]:
    """Two nodes; whatever happens, nothing of them is left."""
    folder = Path(tempfile.mkdtemp(prefix="lfr-"))  # short: sockets lie in it
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": fresh().hex()}
    inherited = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    inherited["TMPDIR"] = str(folder)  # what a killed node leaves
    port = free_port()
    made = Cluster(folder, f"127.0.0.1:{port}", {**inherited, **token, **environment})
    try:
        made.start(
            "--head", f"--port={port}", "--include-dashboard=false",
            f"--ray-client-server-port={free_port()}",
        )  # fmt: skip
        made.start(f"--address={made.address}")
        yield made
    finally:
        for node in made.nodes:
            node.kill()
        shutil.rmtree(folder)
