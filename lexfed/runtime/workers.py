"""Clients in worker processes: the same bits as one after the other, sooner.

A worker rebuilds method and clients from the configuration. What crosses to it is a job (JSON: a
verb and a block of the cohort) and the name of a file that holds the request, which all workers map
into memory; what comes back is a message: the block's sum, made where its replies were made, or the
replies. But for the three strings it is started with, nothing is pickled.
"""

import fcntl
import json
import os
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from lexfed.core.errors import LexfedError, WorkerDied
from lexfed.core.files import write_atomically
from lexfed.core.importing import place_of
from lexfed.core.memory import keep_blocks
from lexfed.experiment import config as configuration
from lexfed.experiment.assembly import assemble
from lexfed.experiment.config import Config
from lexfed.federation import Federation, Requests, Sum, add_replies, add_up, blocks, gated
from lexfed.runtime.forking import warm_up, without_main
from lexfed.runtime.recording import Recorder
from lexfed.runtime.simulation import Site, sequential, site_of
from lexfed.runtime.store import Store
from lexfed.wire import ClientId, Message, Meta, Verb, decode, encode, pack, read, unpack

WORKERS_LOCK = "workers.lock"  # held, shared, by every worker process
CLIENT = "#client"  # between a worker and us: whose reply this is


class WorkerError(RuntimeError):
    """A fault in a worker process, as it was seen there; and in one line."""

    def __init__(self, trace: str, line: str) -> None:
        super().__init__(f"in a worker process:\n{trace}")
        self.line = line


@dataclass(frozen=True)
class Orders:
    """What a worker is told about the run, in words."""

    config: str  # TOML
    store: str
    record: str | None


@dataclass(frozen=True)
class Worker:
    process: BaseProcess
    pipe: Connection


@contextmanager
def workers(site: Site, config: Config, count: int) -> Iterator[Federation]:
    """A federation whose clients are answered for by `count` processes. They end with it, or with
    this process.
    """
    orders = Orders(
        configuration.to_toml(config),
        str(site.store.root),
        str(site.recorder.folder) if site.recorder else None,
    )
    context = warm_up()
    team: list[Worker] = []
    try:
        for _ in range(count):
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


def _federation(site: Site, team: list[Worker]) -> Federation:
    population = site.population

    def results(job: str, verb: Verb, requests: Requests) -> Iterator[list[Message]]:
        cohort = blocks(list(requests))
        with _shared(site.store.root, requests) as paths:
            asked = [
                [(client, paths[id(requests[client])]) for client in block] for block in cohort
            ]
            jobs = [
                json.dumps({"job": job, "verb": verb.name, "requests": block}).encode()
                for block in asked
            ]
            work = [sum(population.size(client) for client in block) for block in cohort]
            yield from _schedule(team, jobs, work)

    def ask(verb: Verb, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        for replies in results("ask", verb, requests):
            for reply in replies:
                meta = {key: value for key, value in reply.meta.items() if key != CLIENT}
                yield int(reply.meta[CLIENT]), Message(reply.arrays, meta, reply.blobs)

    def total(verb: Verb, requests: Requests) -> Sum:
        return add_up(_sum(message) for (message,) in results("total", verb, requests))

    return gated(Federation(range(len(population)), ask, total))


def _sum(message: Message) -> Sum:
    """What a worker added up."""
    refused = Counter(json.loads(str(message.meta["refused"])))
    clients, bytes_up = (int(message.meta[name]) for name in ("clients", "bytes_up"))
    return Sum(unpack(message.arrays), clients, bytes_up, refused)


@contextmanager
def _shared(folder: Path, requests: Requests) -> Iterator[dict[int, str]]:
    """Each distinct request in a file of its own, for as long as it is being answered."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths: dict[int, str] = {}
    try:
        for message in requests.values():
            if id(message) not in paths:
                path = folder / f".request-{os.getpid()}-{time.monotonic_ns()}.safetensors"
                write_atomically(path, encode(message))
                paths[id(message)] = str(path)
        yield paths
    finally:
        for name in paths.values():
            Path(name).unlink()


def _schedule(team: list[Worker], jobs: list[bytes], work: list[int]) -> list[list[Message]]:
    """Give the longest jobs out first, each to whoever is free; the results in the order of the
    jobs.
    """
    waiting = sorted(range(len(jobs)), key=lambda i: -work[i])
    results: list[list[Message]] = [[] for _ in jobs]
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


def _receive(team: list[Worker], pipe: Connection) -> list[Message]:
    try:
        count = int(pipe.recv_bytes())
        replies = [decode(pipe.recv_bytes()) for _ in range(count)]
    except (EOFError, OSError) as error:
        raise _died(team, pipe) from error
    for reply in replies:
        if "error" in reply.meta:
            raise LexfedError(str(reply.meta["error"]))
        if "traceback" in reply.meta:
            raise WorkerError(str(reply.meta["traceback"]), str(reply.meta["line"]))
    return replies


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
            job = json.loads(pipe.recv_bytes())
        except (EOFError, OSError):  # the run is over, or its process died with bytes unread
            return
        try:
            site = site or _site(orders)
            replies = _answer(site, job)
        except LexfedError as error:
            replies = [Message(meta={"error": str(error)})]
        except Exception as error:
            line = f"{type(error).__name__}{place_of(error)}: {error}"
            replies = [Message(meta={"traceback": traceback.format_exc(), "line": line})]
        try:
            pipe.send_bytes(str(len(replies)).encode())
            for reply in replies:
                pipe.send_bytes(encode(reply))
        except OSError:  # the run is over
            return


def _site(orders: Orders) -> Site:
    recorder = Recorder(Path(orders.record)) if orders.record else None
    return site_of(
        assemble(configuration.loads(orders.config)), Store(Path(orders.store)), recorder
    )


def _answer(site: Site, job: dict[str, object]) -> list[Message]:
    requests = {client: _request(path) for client, path in job["requests"]}  # type: ignore[attr-defined]
    verb = site.method.verb(str(job["verb"]))
    replies = sequential(site)(verb, requests)
    if job["job"] == "total":
        block_sum = add_replies(verb, requests, replies)
        meta: dict[str, Meta] = {
            "clients": block_sum.clients,
            "bytes_up": block_sum.bytes_up,
            "refused": json.dumps(block_sum.refused),
        }
        return [Message(pack(block_sum.update), meta)]
    return [
        Message(reply.arrays, {**reply.meta, CLIENT: client}, reply.blobs)
        for client, reply in replies
    ]


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
