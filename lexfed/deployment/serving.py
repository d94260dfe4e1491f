"""`lexfed server`: a SuperLink, the nodes that may join it, and the run, until it has ended.

The ServerApp runs in a process that the SuperLink starts, and drives the run from where it is. If
it dies it is started again; if all of this dies, `lexfed server RUN --resume` goes on.
"""

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lexfed.core.files import only_one
from lexfed.deployment import driving, processes, server_app_file
from lexfed.deployment.driving import STATUS, Deployment, read_deployment
from lexfed.deployment.processes import ProcessError, running
from lexfed.records.rundir import RunDir
from lexfed.runtime.flower import bundle

ATTEMPTS = 5  # of the ServerApp, without a round between them
SILENCE = 60.0  # seconds that a ServerApp may take to say its first word
POLL = 0.5
Say = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """Where the SuperLink listens."""

    host: str = "127.0.0.1"
    port: int = 9092
    insecure: bool = False  # no TLS, no node authentication: for tests on loopback

    @property
    def own_address(self) -> str:
        return (
            f"127.0.0.1:{self.port}"
            if self.host in ("0.0.0.0", "::")
            else f"{self.host}:{self.port}"
        )


def commands(run: Path, keys: Path, place: Place) -> list[processes.Command]:
    """What `lexfed server` starts, for whoever wants to do it by hand."""
    home = run.resolve() / "flower"
    more = {server_app_file.RUN: str(run.resolve())}
    link = processes.superlink(keys, place.host, place.port, home, more, place.insecure)
    nodes = [] if place.insecure else sorted((keys / "nodes").glob("*.pub"))
    registered = [
        processes.flwr(home, "supernode", "register", str(node), "lexfed") for node in nodes
    ]
    return [link, *registered, processes.flwr(home, "run", str(home / "app"), "lexfed")]


def serve(run: Path, place: Place, say: Say, show: Say = lambda line: None) -> RunDir:
    """Until the run has ended. `say` prints a line for good, `show` what goes on now."""
    about, home, directory = read_deployment(run), run.resolve() / "flower", RunDir(run)
    link, *registered, start = commands(run, Path(about.keys), place)
    ca = None if place.insecure else Path(about.keys) / "ca.crt"
    processes.configure(home, place.own_address, ca)
    bundle.write(home / "app", server_app_file.PATH)
    log = home / "superlink.log"
    busy = f"another lexfed server works on {run}"
    with only_one(run / "server.lock", busy), running(link, log) as process:
        processes.wait_for_port(*_host_and_port(place), process, log)
        for node in registered:
            processes.run(node)
        say(f"the SuperLink listens at {place.host}:{place.port}")
        for attempt in range(1, ATTEMPTS + 1):
            rounds = len(directory.records())
            (run / STATUS).unlink(missing_ok=True)
            processes.run(start)
            ended = _followed(directory, about, process, say, show)
            if ended is not None:
                break
            if len(directory.records()) > rounds:
                say("the server's process died; it goes on from its checkpoint")
            elif attempt == ATTEMPTS:
                raise ProcessError(f"the server's process died {ATTEMPTS} times; see {log}")
    if ended != "finished":
        raise ProcessError(f"{ended}; go on with: lexfed server {run} --resume")
    if not any(record["clients"] for record in directory.records()):
        raise ProcessError(f"nobody took part in any round; why: lexfed server status {run}")
    return directory


def _host_and_port(place: Place) -> tuple[str, int]:
    host, _, port = place.own_address.rpartition(":")
    return host, int(port)


def _followed(
    directory: RunDir,
    about: Deployment,
    link: "subprocess.Popen[bytes]",
    say: Say,
    show: Say,
) -> str | None:
    """Tell of the run until it ends, and how; None: its process died."""
    told, since, said = len(directory.records()), time.monotonic(), dict[str, str]()
    while link.poll() is None:
        for record in directory.records()[told:]:
            told += 1
            say(line_of(record, directory.config().rounds))
        status = read_status(directory.path)
        if status is None:
            if time.monotonic() - since > SILENCE:
                return None
        elif status["ended"]:
            for record in directory.records()[told:]:
                say(line_of(record, directory.config().rounds))
            return str(status["ended"])
        elif not _is_alive(int(status["process"])):
            return None
        else:
            for who, why in status["said"].items():
                if said.get(who) != why:
                    said[who] = why
                    say(f"{who}: {why}")
            show(str(status["state"]))
        time.sleep(POLL)
    raise ProcessError(f"the SuperLink ended; see {directory.path / 'flower/superlink.log'}")


def line_of(record: Mapping[str, Any], rounds: int) -> str:
    words = [
        f"round {record['round']} of {rounds}: {record['clients']} clients",
        f"{record['bytes_up'] / 1e6:.2f} MB up, {record['bytes_down'] / 1e6:.2f} MB down",
        f"{record['seconds']:.1f} s",
    ]
    if record.get("loss") is not None:
        words.append(f"loss {record['loss']:.3f}")
    refused = sum(record.get("refused", {}).values())
    return ", ".join(words) + (f", {refused} answers refused" if refused else "")


def _is_alive(process: int) -> bool:
    """One that was killed may stay in the list until its parent looks: it is dead all the same."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def read_status(run: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((run / STATUS).read_text())
    except (OSError, ValueError):
        return None
    return found


def status_lines(run: Path) -> Iterator[str]:
    """`lexfed server status`."""
    about, directory = read_deployment(run), RunDir(run)
    config, records, status = directory.config(), directory.records(), read_status(run)
    names = names_of(Path(about.keys))
    done = f"{len(records)} of {config.rounds} rounds"
    yield f"federation {about.federation[:8]}: {config.method}, {done}"
    if records:
        yield f"last {line_of(records[-1], config.rounds)}"
    if status is None:
        yield "not started, or just starting"
        return
    alive = status["ended"] or _is_alive(int(status["process"]))
    ago = time.time() - float(status["at"])
    state = status["state"] if alive else "its process died; go on with --resume"
    yield f"{state} ({ago:.0f} s ago)"
    there = set(status["there"])
    for number, name in enumerate(names):
        word = status["said"].get(f"client {number}", "")
        yield f"  {name}: {'there' if number in there else 'away'}" + (f" ({word})" if word else "")


def names_of(keys: Path) -> list[str]:
    try:
        names: list[str] = json.loads((keys / "names.json").read_text())
    except (OSError, ValueError):
        return [f"client {n}" for n in driving.checked_roster(keys).clients]
    return names
