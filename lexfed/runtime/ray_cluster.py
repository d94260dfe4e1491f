"""Clients on the nodes of a Ray cluster: the same bits as one after the other, on many machines.

A node rebuilds method and clients from the configuration, as a worker does. What crosses is bytes:
the configuration, a job (`jobs`), the requests, and the files of what the block's clients keep,
which go with it and come back with its answer. So a task is a function of what it is given and
leaves nothing on its node, and a block whose node died is done again by another.
"""

import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from platform import python_version_tuple
from typing import Any

import torch

from lexfed import __version__
from lexfed.core.errors import ConfigError, DataError, LexfedError, WorkerDied
from lexfed.core.importing import look_in, looked_in
from lexfed.core.memory import keep_blocks
from lexfed.experiment import config as configuration
from lexfed.experiment.assembly import Assembly, assemble
from lexfed.experiment.config import Config
from lexfed.federation import Federation, Requests, at_once, blocks, gated, tapped
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
from lexfed.runtime.simulation import Site, clock_of, site_of
from lexfed.runtime.store import Store
from lexfed.wire import ClientId, Message, Meta, Verb, decode, encode

LOCAL = "local"  # the address of a cluster of one node, which is started here
PATIENCE = 15  # seconds for a cluster to answer: left alone, Ray tries for minutes
ATTEMPTS = 5  # so often is a block done again whose node died
LOOK = 5.0  # seconds between two looks whether there is a node left to wait for
QUIET = {"log_to_driver": False, "logging_level": logging.CRITICAL}
# Ray waits for a cluster that is not there in a process that can be ended, and tells it there
PROBE = """
import sys, ray
try:
    ray.init(sys.argv[1], log_to_driver=False, logging_level="CRITICAL")
except Exception as error:
    sys.exit(print(error) or 1)
"""


@dataclass(frozen=True)
class Orders:
    """What a node is told about the run, in words."""

    config: str  # TOML
    store: str  # where clients' files lie: an error speaks of them by that name
    versions: Mapping[str, str]  # of what decides on the bits
    folders: Sequence[str]  # where modules of the user's own may be


def versions() -> dict[str, str]:
    python = ".".join(python_version_tuple()[:2])
    return {"lexfed": __version__, "Python": python, "torch": torch.__version__}


def require() -> Any:
    """Ray, which few have."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nobody is told
    try:
        return import_module("ray")
    except ImportError as error:
        raise ConfigError("--ray needs a package: pip install 'lexfed[ray]'") from error


@contextmanager
def ray_cluster(site: Site, config: Config, address: str) -> Iterator[Federation]:
    """A federation whose clients are answered for by the nodes of a cluster."""
    ray = _connected(address)
    orders = Orders(configuration.to_toml(config), str(site.store.root), versions(), looked_in())
    try:
        yield _federation(ray, site, json.dumps(asdict(orders)))
    finally:
        ray.shutdown()


def _connected(address: str) -> Any:
    ray = require()
    if ray.is_initialized():
        raise ConfigError("this process has a Ray cluster already: call ray.shutdown() first")
    if address != LOCAL:
        _refuse_unanswered(address)
    try:
        ray.init(address, **QUIET, **({"include_dashboard": False} if address == LOCAL else {}))
    except Exception as error:  # whatever Ray raises: of its versions, of its ports
        raise _unusable(address, str(error)) from error
    if not _processors(ray):
        ray.shutdown()
        raise ConfigError(f"no node of the Ray cluster at {address} has a processor to give")
    return ray


def _refuse_unanswered(address: str) -> None:
    if "://" in address:
        raise ConfigError(f"--ray {address}: write HOST:PORT, as `ray start --head` prints it")
    words = [sys.executable, "-c", PROBE, address]
    advice = f"is it there, and is this machine a node of it (`ray start --address={address}`)?"
    try:
        tried = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"no Ray cluster answers at {address} within {PATIENCE} seconds: {advice}"
        ) from error
    if tried.returncode:
        said = tried.stderr.strip().splitlines() or ["the process that tried it died"]
        raise _unusable(address, tried.stdout or said[-1])


def _unusable(address: str, why: str) -> ConfigError:
    return ConfigError(f"the Ray cluster at {address} can't be used: {why.strip()}")


def _processors(ray: Any) -> float:
    return sum(float(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"])


def _federation(ray: Any, site: Site, orders: str) -> Federation:
    # by its name: nodes import it from their own lexfed
    task = ray.remote(work).options(num_cpus=1, max_retries=ATTEMPTS, scheduling_strategy="SPREAD")

    def results(wanted: Wanted, verb: Verb, requests: Requests) -> list[Sequence[Message]]:
        cohort = [
            {client: requests[client] for client in block} for block in blocks(list(requests))
        ]
        texts = sizes(site.population, [list(asked) for asked in cohort])
        sent = {number: ray.put(encode(message)) for number, message in distinct(requests).items()}
        tasks: dict[int, Any] = {}
        for block in sorted(range(len(cohort)), key=lambda number: -texts[number]):
            asked = cohort[block]
            place = {number: str(at) for at, number in enumerate(distinct(asked))}
            job = Job(wanted, verb.name, [(c, place[id(message)]) for c, message in asked.items()])
            luggage = _luggage(site.store, verb, asked, texts[block])
            tasks[block] = task.remote(
                orders, job.encoded(), luggage, *(sent[number] for number in place)
            )
        return [
            _settled(site.store, verb, asked, decode(_awaited(ray, tasks[block])))
            for block, asked in enumerate(cohort)
        ]

    federation = by_blocks(site.population, results)
    if site.recorder is not None:  # single replies come here to be written down
        federation = tapped(federation, up=site.recorder.up)
        federation = replace(federation, total=at_once(federation.ask))
    return gated(federation)


def _luggage(store: Store, verb: Verb, asked: Requests, texts: int) -> bytes:
    """What the clients of a block keep, and how many texts they have."""
    files = {
        f"{client}/{name}": data
        for client, request in asked.items()
        for name, data in store.files(client, clock_of(verb, request)).items()
    }
    return encode(Message(meta={"texts": texts}, blobs=files))


def _awaited(ray: Any, task: Any) -> bytes:
    try:
        while not ray.wait([task], timeout=LOOK)[0]:
            if not _processors(ray):
                raise WorkerDied("no node of the Ray cluster is left: start one, then --resume")
        return bytes(ray.get(task))
    except ray.exceptions.RayTaskError as error:  # its own faults are in its answer
        raise ConfigError(
            f"a node can't do its work, is lexfed {__version__} installed there? "
            f"{str(error).strip().splitlines()[-1]}"
        ) from error
    except ray.exceptions.RayError as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0]
        raise WorkerDied(
            f"a block was lost {1 + ATTEMPTS} times (memory?), go on with --resume: {why}"
        ) from error


def _settled(store: Store, verb: Verb, asked: Requests, answered: Message) -> Sequence[Message]:
    """The replies of a block; what its clients keep now is on disk before anybody hears them."""
    count = int(answered.meta["replies"])
    replies = without_fault([decode(answered.blobs[str(number)]) for number in range(count)])
    changed, gone = _by_client(answered), json.loads(str(answered.meta["gone"]))
    for client, request in asked.items():
        files, names = changed.get(client, {}), gone.get(str(client), ())
        store.put(client, clock_of(verb, request), files, names)
    return replies


def _by_client(message: Message) -> dict[ClientId, dict[str, bytes]]:
    """The files in a message, each client's by their names."""
    files: dict[ClientId, dict[str, bytes]] = {}
    for name, data in message.blobs.items():
        client, slash, file = name.partition("/")
        if slash:
            files.setdefault(int(client), {})[file] = data
    return files


# --- on the node ----------------------------------------------------------------------------------


def work(orders: str, job: bytes, luggage: bytes, *requests: bytes) -> bytes:
    """The answer of a block: its replies, and what has changed of what its clients keep."""
    told = Orders(**json.loads(orders))
    try:
        _check_versions(told)
        for folder in told.folders:
            look_in(Path(folder))
        assembly = _assembled(told.config)
        with _store(told.store) as store:
            site = site_of(assembly, store)
            return _worked(site, Job.decoded(job), decode(luggage), requests)
    except Exception as error:
        return _answered([fault(error, f"on node {socket.gethostname()}: ")])


def _check_versions(told: Orders) -> None:
    for name, here in versions().items():
        there = told.versions.get(name)
        if there != here:
            raise LexfedError(f"{name} is {here}, and {there} where the run is: install that")


@lru_cache(maxsize=1)  # of the run that this process works for
def _assembled(config: str) -> Assembly:
    torch.set_num_threads(1)
    keep_blocks()
    return assemble(configuration.loads(config))


@contextmanager
def _store(name: str) -> Iterator[Store]:
    """For as long as a block takes: nothing of what clients keep stays here. Errors speak of where
    they keep it.
    """
    with tempfile.TemporaryDirectory(prefix="lexfed-block-") as folder:
        try:
            yield Store(Path(folder))
        except LexfedError as error:
            raise LexfedError(str(error).replace(folder, name)) from error


def _worked(site: Site, job: Job, luggage: Message, requests: Sequence[bytes]) -> bytes:
    here = sum(site.population.size(client) for client, _ in job.asked)
    if here != luggage.meta["texts"]:
        raise DataError(
            f"the data are others than where the run is: the clients of a block have {here} texts "
            f"here, and {luggage.meta['texts']} there"
        )
    messages = {str(place): decode(data) for place, data in enumerate(requests)}
    verb, brought = site.method.verb(job.verb), _by_client(luggage)
    for client, name in job.asked:
        site.store.put(client, clock_of(verb, messages[name]), brought.get(client, {}))
    replies = answer(site, job, messages.__getitem__)
    changed: dict[str, bytes] = {}
    gone: dict[ClientId, list[str]] = {}
    for client, _ in job.asked:
        before, after = brought.get(client, {}), site.store.files(client)
        changed |= {f"{client}/{n}": data for n, data in after.items() if before.get(n) != data}
        gone[client] = [name for name in before if name not in after]
    return _answered(replies, changed, gone)


def _answered(
    replies: Sequence[Message],
    changed: Mapping[str, bytes] | None = None,
    gone: Mapping[ClientId, Sequence[str]] | None = None,
) -> bytes:
    said = {str(number): encode(reply) for number, reply in enumerate(replies)}
    meta: dict[str, Meta] = {"replies": len(replies), "gone": json.dumps(gone or {})}
    return encode(Message(meta=meta, blobs={**said, **(changed or {})}))
