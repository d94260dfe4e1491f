"""A real federation on loopback: a SuperLink, SuperNodes, site processes, with TLS and keys."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lexfed.deployment import driving, key_making, processes, serving
from lexfed.deployment.serving import Place
from lexfed.experiment import config as configuration
from lexfed.experiment.assembly import assemble
from lexfed.experiment.config import Config
from lexfed.records.rundir import RunDir
from lexfed.runtime.correspondence import Times
from lexfed.secure.identity import write_identity
from tests.conftest import ROOT
from tests.organisations import identities_of

TIMES = Times(patience=120.0, grace=20.0, again=1.0, look=1.0, poll=0.1)


@dataclass
class Federation:
    """What runs, by name; each can be killed and started again."""

    folder: Path
    config: Config
    place: Place
    names: list[str]
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def start(self, name: str) -> None:
        """An organisation's site process, and its SuperNode."""
        words = [
            sys.executable, "-m", "tests.deployment.simulated_site", str(self.folder / name),
            str(self.folder / "simulation.toml"), self.place.own_address,
            str(processes.free_port()), *(["--insecure"] if self.place.insecure else []),
        ]  # fmt: skip
        with (self.folder / f"{name}.log").open("ab") as log:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            self.processes[name] = subprocess.Popen(
                words, stdout=log, stderr=log, env=environment, cwd=ROOT, start_new_session=True
            )

    def kill(self, name: str) -> None:
        """The site process alone, without warning: its SuperNode ends with it."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def serve(self) -> RunDir:
        return serving.serve(self.run, self.place, self.said.append)

    def log(self, name: str) -> str:
        return (self.folder / name / "site.log").read_text()

    def wait_for_rounds(self, rounds: int, seconds: float = 150) -> None:
        deadline = time.monotonic() + seconds
        while len(RunDir(self.run).records()) < rounds:
            assert time.monotonic() < deadline, "no such round came"
            time.sleep(0.1)


@contextmanager
def federation(
    config: Config, folder: Path, insecure: bool = False, times: Times = TIMES
) -> Iterator[Federation]:
    """Everybody's keys, and everybody started but the server."""
    folder.mkdir(parents=True, exist_ok=True)
    people = assemble(config).population
    names = [f"site{number}" for number in range(len(people))]
    (folder / "simulation.toml").write_text(configuration.to_toml(config))
    keys = folder / "keys"
    cards = [key_making.server(["127.0.0.1"], keys)]
    for name, identity in zip(names, identities_of(people), strict=True):
        cards.append(_site(folder / name, name, identity, config.method))
    for place in (keys, *(folder / name for name in names)):
        key_making.gather(cards, place)
    place = Place(port=processes.free_port(), insecure=insecure)
    deployed = configuration.changed(config, ["data.unseen=0"])
    driving.prepared(deployed, keys, folder / "run", times)
    made = Federation(folder, config, place, names)
    with ExitStack() as stack:
        stack.callback(_end_all, made)
        for name in names:
            made.start(name)
        yield made


def _site(folder: Path, name: str, identity: bytes, method: str) -> Path:
    """Keys of its own, but for the identity, which is the simulation's."""
    card = key_making.new(name, folder)
    (folder / "identity.pem").unlink()
    write_identity(folder / "identity.pem", identity)
    about = key_making.read_card(card)
    public = key_making.public_identity(identity)
    card.write_bytes(key_making.Card(about.what, name, public, node=about.node).to_json())
    (folder / "site.toml").write_text(
        f'[data]\nname = "rotten_tomatoes"\n[policy]\nmethods = ["{method}"]\nclients = 1\n'
    )
    return card


def _end_all(made: Federation) -> None:
    for process in made.processes.values():
        process.terminate()
    for process in made.processes.values():
        process.wait(30)


def left_behind(folder: Path) -> list[str]:
    """Processes that still speak of this folder."""
    found = subprocess.run(
        ["ps", "-ww", "-eo", "pid,args"], capture_output=True, text=True, check=True
    )
    mine = str(os.getpid())
    return [
        line for line in found.stdout.splitlines()
        if str(folder) in line and line.split()[0] != mine
    ]  # fmt: skip
