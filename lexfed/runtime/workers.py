"""Clients in worker processes: the same bits as one after the other, sooner.

A worker rebuilds method and clients from the configuration. What crosses to it is a job
(`jobs`) and the name of a file that holds the request, which all workers map into memory; what
comes back is messages, a large one in a file too: a pipe takes three times as long. But for the
four strings it is started with, nothing is pickled.
"""

import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from lexfed.core.devices import CPU, shared_out
from lexfed.core.errors import WorkerDied
from lexfed.core.files import OWNER_ONLY, write_atomically
from lexfed.core.memory import keep_blocks
from lexfed.experiment import config as configuration
from lexfed.experiment.assembly import assemble
from lexfed.experiment.config import Config
from lexfed.federation import Federation, Requests, blocks, gated
from lexfed.runtime.forking import warm_up, without_main
from lexfed.runtime.jobs import (
    Job,
    Wanted,
    answer,
    by_blocks,
    distinct,
    fault,
    sizes,
    without_fault,
)
from lexfed.runtime.recording import Recorder
from lexfed.runtime.simulation import Site, site_of
from lexfed.runtime.store import Store
from lexfed.wire import Message, Verb, chunks, decode, encode, read, size

WORKERS_LOCK = "workers.lock"  # held, shared, by every worker process
_LARGE = 2**18  # bytes of a message from which on it goes in a file
_HERE, _THERE = b"=", b"@"  # what a worker says: the message itself, or where it is
_PASSING = ".passing-{}-{}.safetensors"  # such a file: whose, and which


@dataclass(frozen=True)
class Orders:
    """What a worker is told about the run, in words."""

    config: str  # TOML
    store: str
    record: str | None
    device: str = "cpu"


@dataclass(frozen=True)
class Worker:
    process: BaseProcess
    pipe: Connection


@contextmanager
def workers(
    site: Site, config: Config, count: int, device: torch.device = CPU
) -> Iterator[Federation]:
    """A federation whose clients are answered for by `count` processes, on this device. They end
    with it, or with this process.
    """
    told = Orders(
        configuration.to_toml(config),
        str(site.store.root),
        str(site.recorder.folder) if site.recorder else None,
    )
    context = warm_up()
    team: list[Worker] = []
    _sweep(site.store.root)
    try:
        for number in range(count):
            orders = replace(told, device=str(shared_out(device, number)))
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, orders), daemon=True)
            with without_main():
                process.start()
            theirs.close()
            team.append(Worker(process, ours))
        yield _federation(site, team)
    finally:
        for worker in team:  # whatever they are at: all that they write, they write atomically
            worker.pipe.close()
            worker.process.kill()
            worker.process.join()
        _sweep(site.store.root)


def _federation(site: Site, team: list[Worker]) -> Federation:
    def results(wanted: Wanted, verb: Verb, requests: Requests) -> Iterator[Sequence[Message]]:
        cohort = blocks(list(requests))
        with _shared(site.store.root, requests) as paths:
            asked = [
                [(client, paths[id(requests[client])]) for client in block] for block in cohort
            ]
            jobs = [Job(wanted, verb.name, block).encoded() for block in asked]
            yield from _schedule(team, jobs, sizes(site.population, cohort))

    return gated(by_blocks(site.population, results))


@contextmanager
def _shared(folder: Path, requests: Requests) -> Iterator[dict[int, str]]:
    """Each distinct request in a file of its own, for as long as it is being answered."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths: dict[int, str] = {}
    try:
        for number, message in distinct(requests).items():
            paths[number] = str(_put(folder, message))
        yield paths
    finally:
        for name in paths.values():
            Path(name).unlink(missing_ok=True)


def _put(folder: Path, message: Message) -> Path:
    """For another process to read, now: a crash may forget it."""
    path = folder / _PASSING.format(os.getpid(), time.monotonic_ns())
    write_atomically(path, chunks(message), OWNER_ONLY, durable=False)
    return path


def _sweep(folder: Path) -> None:
    """What was on its way when somebody was killed. (One run at a time has this folder.)"""
    name = _PASSING.format("*", "*")
    for path in (*folder.glob(name), *folder.glob(f".{name}.*")):  # and what was being written
        path.unlink(missing_ok=True)


def _schedule(team: list[Worker], jobs: list[bytes], work: list[int]) -> list[Sequence[Message]]:
    """Give the longest jobs out first, each to whoever is free; the results in the order of the
    jobs.
    """
    waiting = sorted(range(len(jobs)), key=lambda i: -work[i])
    results: list[Sequence[Message]] = [[] for _ in jobs]
    busy: dict[Connection, int] = {}
    idle = [worker.pipe for worker in team]
    while waiting or busy:
        while waiting and idle:
            pipe, number = idle.pop(0), waiting.pop(0)
            _send(team, pipe, jobs[number])
            busy[pipe] = number
        ready = wait(list(busy))
        for pipe in [pipe for pipe in busy if pipe in ready]:
            results[busy.pop(pipe)] = _receive(team, pipe)
            idle.append(pipe)
    return results


def _send(team: list[Worker], pipe: Connection, job: bytes) -> None:
    try:
        pipe.send_bytes(job)
    except OSError as error:
        raise _died(team, pipe) from error


def _receive(team: list[Worker], pipe: Connection) -> Sequence[Message]:
    try:
        count = int(pipe.recv_bytes())
        replies = [_taken(pipe.recv_bytes()) for _ in range(count)]
    except (EOFError, OSError) as error:
        raise _died(team, pipe) from error
    return without_fault(replies)


def _taken(said: bytes) -> Message:
    """A message, or the name of the file that it is in. What was mapped into memory stays there
    without its name.
    """
    if said[:1] == _HERE:
        return decode(said[1:])
    path = Path(os.fsdecode(said[1:]))
    message = read(path)
    path.unlink()
    return message


def _died(team: list[Worker], pipe: Connection) -> WorkerDied:
    process = next(worker.process for worker in team if worker.pipe is pipe)
    process.join(timeout=5)
    return WorkerDied(
        f"a worker process died (exit code {process.exitcode}); memory? try fewer --workers, then "
        "--resume"
    )


# --- in the worker --------------------------------------------------------------------------------


def _work(pipe: Connection, orders: Orders) -> None:
    held = (Path(orders.store).parent / WORKERS_LOCK).open("w")  # until this process ends
    fcntl.flock(held, fcntl.LOCK_SH)
    # Ctrl-C is the parent's to handle; it closes the pipe
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    torch.set_num_threads(1)
    keep_blocks()
    site: Site | None = None
    with suppress(Exception):  # at once, while the server makes its model; who asks hears why not
        site = _site(orders)
    while True:
        try:
            job = Job.decoded(pipe.recv_bytes())
        except (EOFError, OSError):  # the run is over, or its process died with bytes unread
            return
        try:
            site = site or _site(orders)
            folder = Path(orders.store)
            said = [_said(reply, folder) for reply in answer(site, job, _request)]
        except Exception as error:
            said = [_HERE + encode(fault(error))]
        try:
            pipe.send_bytes(str(len(said)).encode())
            for one in said:
                pipe.send_bytes(one)
        except OSError:  # the run is over
            return


def _said(reply: Message, folder: Path) -> bytes:
    if size(reply) < _LARGE:
        return _HERE + encode(reply)
    return _THERE + os.fsencode(_put(folder, reply))


def _site(orders: Orders) -> Site:
    recorder = Recorder(Path(orders.record)) if orders.record else None
    assembly = assemble(configuration.loads(orders.config), device=torch.device(orders.device))
    return site_of(assembly, Store(Path(orders.store)), recorder)


@lru_cache(maxsize=1)  # a broadcast is one object for all its clients, here as in a single process
def _request(path: str) -> Message:
    return read(Path(path))


def _end_with(parent: int) -> None:
    """A worker whose run was killed must not go on writing client states behind a resumed run's
    back.

    Its parent is the fork server, which ends with the run.
    """
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
