"""A run between organisations, as its server drives it: the same session as a simulation's, whose
clients are asked by letter.

    RUN/deployment.json   the federation's name for good, where the server's keys lie, how long it
                          waits; a restart finds the same
    RUN/status.json       what goes on now, for `lexfed server status`
"""

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lexfed.core.errors import CheckpointError, ConfigError
from lexfed.core.files import OWNER_ONLY, write_atomically
from lexfed.core.seeds import public_identity
from lexfed.corpus.organisations import ELSEWHERE, elsewhere
from lexfed.experiment import config as configuration
from lexfed.experiment import terms
from lexfed.experiment.assembly import assemble
from lexfed.experiment.config import Config
from lexfed.records import rundir
from lexfed.records.rundir import DEPLOYMENT, RunDir
from lexfed.runs import launch
from lexfed.runs.launch import Elsewhere, Manner
from lexfed.runtime.correspondence import Carrier, Correspondence, Times, by_letter
from lexfed.secure.identity import Roster, read_identity, read_roster

STATUS = "status.json"
FEDERATION_BYTES = 16
OFTEN = 0.5  # seconds between two writings of the status


@dataclass(frozen=True)
class Deployment:
    """What a restart must find again."""

    federation: str  # sessions and private tables hang from it
    keys: str  # the folder of the server's identity and everybody's public keys
    times: Times = field(default_factory=Times)
    start_with: int = 0  # how many clients must be there; 0: all
    host: str = "127.0.0.1"  # where the SuperLink listens
    port: int = 9092


def prepared(
    config: Config,
    keys: Path,
    out: Path,
    times: Times,
    start_with: int = 0,
    address: tuple[str, int] = ("127.0.0.1", 9092),
) -> RunDir:
    """A new run's directory, after everything that can be wrong was looked at."""
    rundir.refuse_existing(out)
    roster = checked_roster(keys)
    if config.data.clients != len(roster.clients):
        raise ConfigError(
            f"data.clients is {config.data.clients}, and {keys / 'peers.json'} holds "
            f"{len(roster.clients)}"
        )
    terms.of(config)
    assemble(config, elsewhere(config.data, roster.clients, config.entry.kind.labels))
    directory = rundir.create(out, config)
    federation = os.urandom(FEDERATION_BYTES).hex()
    about = Deployment(federation, str(keys.resolve()), times, start_with, *address)
    text = json.dumps(asdict(about), indent=2) + "\n"
    write_atomically(out / DEPLOYMENT, text.encode(), OWNER_ONLY)
    return directory


def checked_roster(keys: Path) -> Roster:
    roster = read_roster(keys / "peers.json")
    mine = public_identity(read_identity(keys / "identity.pem"))
    if roster.server != mine:
        raise ConfigError(f"{keys / 'peers.json'} lacks this server's own key: gather again")
    return roster


def deployed(path: Path, settings: list[str], clients: int) -> Config:
    """A configuration as a deployment runs it: with secrets of its own, on texts that lie
    elsewhere.
    """
    config = configuration.load(path, [*settings, f"data.clients={clients}"])
    if config.cohort.sampling == "fixed" and config.cohort.size > clients:  # all of them, then
        config = configuration.changed(config, [f"cohort.size={clients}"])
    return configuration.changed(config, ["secrets=system", f"data.name={ELSEWHERE}"])


def read_deployment(run: Path) -> Deployment:
    try:
        kept = json.loads((run / DEPLOYMENT).read_text())
        return Deployment(**{**kept, "times": Times(**kept["times"])})
    except FileNotFoundError as error:
        raise ConfigError(f"{run} is no run between organisations (no {DEPLOYMENT})") from error
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{run / DEPLOYMENT} is damaged: restore it from a copy") from error


@dataclass
class Status:
    """Written now and then, and at the end."""

    path: Path
    state: str = "starting"
    written: float = 0.0

    def tell(self, letters: Correspondence, what: str) -> None:
        self.state = what
        if time.monotonic() - self.written > OFTEN:
            self.write(letters)

    def write(self, letters: Correspondence, ended: str | None = None) -> None:
        self.written = time.monotonic()
        about: dict[str, Any] = {
            "process": os.getpid(),
            "at": time.time(),
            "state": ended or self.state,
            "ended": ended,
            "federation": letters.federation,
            "there": sorted(letters.where),
            "clients": len(letters.peers),
            "said": letters.said,
            "refused": dict(letters.refused),
        }
        data = (json.dumps(about, indent=1) + "\n").encode()
        write_atomically(self.path, data, durable=False)


def drive(carrier: Carrier, run: Path, manner: Manner | None = None) -> RunDir:
    """From where the run is to its end."""
    about, config = read_deployment(run), RunDir(run).config()
    roster = checked_roster(Path(about.keys))
    status = Status(run / STATUS)
    letters = Correspondence(
        carrier,
        read_identity(Path(about.keys) / "identity.pem"),
        roster.clients,
        about.federation,
        terms.of(config),
        about.times,
        status.tell,
    )
    people = elsewhere(config.data, roster.clients, config.entry.kind.labels)
    federation = by_letter(letters)
    try:
        letters.wait_for(about.start_with or len(roster.clients))
        done = launch.resume(run, (), manner or Manner(), Elsewhere(people, federation))
    except BaseException as error:
        with suppress(OSError):  # a full disk may be why
            status.write(letters, ended=f"stopped: {error or type(error).__name__}")
        raise
    status.write(letters, ended="finished")
    return done
