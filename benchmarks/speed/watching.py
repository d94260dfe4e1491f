"""A command and all its processes, watched from outside: memory, processor time, what it prints.

Memory is the proportional set size (PSS) of every process together: a page that several of them
share is counted once in all. It is read from `/proc` a few times a second, so that workers, fork
servers and daemons count whoever started them. Needs no library; of Linux.
"""

import os
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
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


def pss_mb(rollup: str) -> float:
    """The proportional set size in the text of a `smaps_rollup`."""
    for line in rollup.splitlines():
        name, _, value = line.partition(":")
        if name == "Pss":
            return int(value.split()[0]) / 1024
    return 0.0


def memory_mb(processes: Iterable[Process], proc: Path = _PROC) -> float:
    total = 0.0
    for one in processes:
        try:
            total += pss_mb((proc / str(one.pid) / "smaps_rollup").read_text())
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
    return total


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


@dataclass
class Watched:
    """What was seen of a command from its start to its end."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_pss_mb: float = 0.0
    processes: int = 0  # the most at once
    looks: int = 0
    lines: list[tuple[float, str]] = field(default_factory=list)  # seconds after the start


class CommandFailed(Exception):
    """A runner ended with an error; its own last words."""


def watch(command: Sequence[str], environment: Mapping[str, str], every: float = EVERY) -> Watched:
    """Run a command to its end and watch it. What it leaves running is ended."""
    seen, ended = Watched(), threading.Event()
    known: dict[tuple[int, int], Process] = {}
    errors: list[str] = []
    began = time.perf_counter()
    child = subprocess.Popen(
        command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    look = threading.Thread(target=_look, args=(child.pid, seen, known, ended, every))
    listen = threading.Thread(target=_listen, args=(child.stderr, errors))
    look.start()
    listen.start()
    for line in child.stdout or ():
        seen.lines.append((time.perf_counter() - began, line.rstrip("\n")))
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    seen.wall_s = time.perf_counter() - began
    ended.set()
    look.join()
    listen.join()
    _end_the_rest(child.pid, known)
    # of those that nobody waited for, what they had when last looked at
    orphans = sum(one.cpu + one.reaped for one in known.values() if one.pid != child.pid)
    waited = usage.ru_utime + usage.ru_stime
    seen.cpu_s = max(waited, _own(known, child.pid) + orphans)
    if child.returncode:
        raise CommandFailed(f"{' '.join(command)} ended with {child.returncode}:\n"
                            + "".join(errors[-30:]))  # fmt: skip
    return seen


def _own(known: Mapping[tuple[int, int], Process], pid: int) -> float:
    return max((one.cpu for one in known.values() if one.pid == pid), default=0.0)


def _listen(stream: Iterable[str], into: list[str]) -> None:
    into.extend(stream)


def _look(
    root: int,
    seen: Watched,
    known: dict[tuple[int, int], Process],
    ended: threading.Event,
    every: float,
) -> None:
    while not ended.wait(every):
        ours = family(root, everybody(), known.values())
        known.update({(one.pid, one.born): one for one in ours})
        seen.peak_pss_mb = max(seen.peak_pss_mb, memory_mb(ours))
        seen.processes = max(seen.processes, len(ours))
        seen.looks += 1


def _end_the_rest(root: int, known: Mapping[tuple[int, int], Process]) -> None:
    """Daemons that outlive the command would disturb the next one. They were seen under it."""
    for one in known.values():
        now = process(one.pid)
        if one.pid != root and now is not None and now.born == one.born:
            try:
                os.kill(one.pid, 15)
            except (ProcessLookupError, PermissionError):
                continue
