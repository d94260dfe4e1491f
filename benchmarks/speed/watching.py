"""A command and all its processes, watched from outside: memory, processor time, what it prints.

Memory is the proportional set size (PSS) of every process together: a page that several of them
share is counted once in all. It is read from `/proc` a few times a second, so that workers, fork
servers and daemons count whoever started them. Needs no library; of Linux.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

EVERY = 0.2  # seconds between two looks
_TICK = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """What `/proc/PID/stat` says of one."""

    pid: int
    parent: int
    cpu: float  # seconds, in user and system mode, of all its threads
    reaped: float  # of its children that have ended and were waited for
    born: int  # clock ticks after the machine's start: a number that is used again is another's


def process(pid: int, proc: Path = _PROC) -> Process | None:
    """None: it is not there any more."""
    try:
        # a command's name is in brackets and may hold blanks and brackets itself
        words = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    user, system, waited_user, waited_system = map(int, words[11:15])
    return Process(
        pid, int(words[1]), (user + system) / _TICK, (waited_user + waited_system) / _TICK,
        int(words[19]),
    )  # fmt: skip


def everybody(proc: Path = _PROC) -> list[Process]:
    found = (process(int(entry.name), proc) for entry in proc.iterdir() if entry.name.isdigit())
    return [one for one in found if one is not None]


def family(root: int, living: Iterable[Process], known: Iterable[Process] = ()) -> list[Process]:
    """A process and all that come from it, and those known before that still live: a daemon whose
    parent has ended has another parent.
    """
    living = list(living)
    before = {(one.pid, one.born) for one in known}
    ours = {root} | {one.pid for one in living if (one.pid, one.born) in before}
    grown = True
    while grown:
        more = {one.pid for one in living if one.parent in ours} - ours
        ours, grown = ours | more, bool(more)
    return [one for one in living if one.pid in ours]


def pss_mb(rollup: str) -> tuple[float, float]:
    """The proportional set size in the text of a `smaps_rollup`; and what of it is no file's."""
    sizes = {
        name: int(value.split()[0]) / 1024
        for name, _, value in (line.partition(":") for line in rollup.splitlines())
        if name in ("Pss", "Pss_Anon")
    }
    return sizes.get("Pss", 0.0), sizes.get("Pss_Anon", 0.0)


def memory_mb(processes: Iterable[Process], proc: Path = _PROC) -> tuple[float, float]:
    """Of all of them together."""
    whole, own = 0.0, 0.0
    for one in processes:
        try:
            found = pss_mb((proc / str(one.pid) / "smaps_rollup").read_text())
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        whole, own = whole + found[0], own + found[1]
    return whole, own


def tree_cpu(root: int | None = None) -> float:
    """Processor time so far of a process (by default this one) and all that come from it, those
    that have ended too.
    """
    return sum(one.cpu + one.reaped for one in family(root or os.getpid(), everybody()))


def age(pid: int | None = None) -> float:
    """Seconds since a process (by default this one) was started."""
    found = process(pid or os.getpid())
    uptime = float((_PROC / "uptime").read_text().split()[0])
    return uptime - found.born / _TICK if found is not None else 0.0


# --- a command -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """What a command has printed, and when."""

    text: str
    wall_s: float  # since its start
    cpu_s: float  # of it and all that came from it


@dataclass
class Watched:
    """What was seen of a command from its start to its end."""

    wall_s: float = 0.0
    peak_pss_mb: float = 0.0
    peak_anon_mb: float = 0.0  # without files that are mapped
    processes: int = 0  # the most at once
    looks: int = 0
    lines: list[Line] = field(default_factory=list)


class CommandError(Exception):
    """A runner ended with an error; its own last words."""


def watch(
    command: Sequence[str], environment: Mapping[str, str], every: float | None = None
) -> Watched:
    """Run a command to its end. `every`: its memory is looked at so often, which takes some time of
    the machine, so it is not done while times are measured. What it leaves running is ended.
    """
    seen, ended = Watched(), threading.Event()
    known: dict[tuple[int, int], Process] = {}
    errors: list[str] = []
    began = time.perf_counter()
    with subprocess.Popen(
        command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        helpers = [
            threading.Thread(target=_hear, args=(child, seen, began)),
            threading.Thread(target=lambda: errors.extend(child.stderr or ())),
            threading.Thread(target=_look, args=(child.pid, seen, known, ended, every)),
        ]
        for helper in helpers:
            helper.start()
        try:
            child.wait()
            seen.wall_s = time.perf_counter() - began  # its daemons may hold the pipes for longer
        finally:  # Ctrl-C too leaves nothing behind
            child.kill()
            ended.set()
            _end_the_rest(child.pid, known)
            for helper in helpers:
                helper.join()
    if child.returncode:
        told = "".join(errors[-30:])
        raise CommandError(f"{' '.join(command)} ended with {child.returncode}:\n{told}")
    return seen


def _hear(child: "subprocess.Popen[str]", seen: Watched, began: float) -> None:
    for line in child.stdout or ():
        now = time.perf_counter() - began
        seen.lines.append(Line(line.rstrip("\n"), now, tree_cpu(child.pid)))


def _look(
    root: int,
    seen: Watched,
    known: dict[tuple[int, int], Process],
    ended: threading.Event,
    every: float | None,
) -> None:
    while not ended.wait(every or 1.0):
        ours = family(root, everybody(), known.values())
        known.update({(one.pid, one.born): one for one in ours})
        if every is not None:
            whole, own = memory_mb(ours)
            seen.peak_pss_mb = max(seen.peak_pss_mb, whole)
            seen.peak_anon_mb = max(seen.peak_anon_mb, own)
        seen.processes = max(seen.processes, len(ours))
        seen.looks += 1


def _end_the_rest(root: int, known: Mapping[tuple[int, int], Process]) -> None:
    """Daemons that outlive the command would disturb the next one. They were seen under it."""
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        left = [one for one in known.values() if one.pid != root and _lives(one)]
        if not left:
            return
        if time.monotonic() > deadline - 8.0:  # two seconds to end by themselves
            for one in left:
                with suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGTERM)
        time.sleep(0.05)


def _lives(one: Process) -> bool:
    now = process(one.pid)
    return now is not None and now.born == one.born
