"""`--check`: what is missing, said before the start."""

import datetime
import importlib.metadata
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from lexfed import __version__
from lexfed.core.errors import LexfedError
from lexfed.corpus.organisations import Keys, elsewhere, home
from lexfed.deployment import driving, processes
from lexfed.deployment.serving import Place
from lexfed.experiment import terms
from lexfed.experiment.assembly import assemble
from lexfed.experiment.config import Config
from lexfed.experiment.known_methods import METHODS, method
from lexfed.site import site_file
from lexfed.site.site_file import SiteFile

ROOM = 2 << 30  # bytes on disk
SKEW = 60.0  # seconds that two clocks may differ
SOON = datetime.timedelta(days=30)


@dataclass(frozen=True)
class Check:
    good: bool
    sentence: str


def of_server(config: Config, keys: Path, place: Place) -> list[Check]:
    def assembled() -> str:
        roster = driving.checked_roster(keys)
        people = elsewhere(config.data, roster.clients, config.entry.kind.labels)
        rounds = assemble(config, people).method.rounds
        return f"{config.method}, {len(roster.clients)} organisations, {rounds} rounds"

    checks = [
        *_versions(),
        _tried("configuration", assembled),
        _tried("terms", lambda: f"{len(terms.of(config)):,} bytes that organisations are told"),
        *([] if place.insecure else _certificates(keys, place)),
        _is(processes.is_free(place.host, place.port), f"port {place.port} is free"),
        _disk(Path()),
    ]
    nodes = len(list((keys / "nodes").glob("*.pub")))
    expected = config.data.clients
    return [*checks, _is(nodes == expected, f"keys of {nodes} SuperNodes for {expected} clients")]


def of_client(path: Path, address: str, insecure: bool = False) -> list[Check]:
    checks = list(_versions())
    try:
        mine = site_file.load(path)
    except (LexfedError, OSError) as error:
        return [*checks, Check(False, f"site: {error}")]
    who = f"{path}, client {mine.me} of {len(mine.peers)}"
    return [
        *checks,
        Check(True, f"site: {who}"),
        _tried("texts", lambda: _texts(mine)),
        _is(_is_reachable(mine), f"the socket's folder {mine.socket.parent} is there"),
        *([] if insecure else _node_files(mine)),
        _server(mine, address, insecure),
        _disk(mine.folder),
    ]


def _versions() -> Iterator[Check]:
    yield Check(True, f"lexfed {__version__} (the same at every party)")
    try:
        yield Check(True, f"Flower {importlib.metadata.version('flwr')}")
    except importlib.metadata.PackageNotFoundError:
        yield Check(False, "Flower is not installed: pip install 'lexfed[flower]'")
    year = datetime.datetime.now(datetime.UTC).year
    yield _is(year >= 2026, f"this machine's clock says {year}")


def _is(good: bool, sentence: str) -> Check:
    return Check(good, sentence if good else f"not so: {sentence}")


def _tried(what: str, attempt: Callable[[], str]) -> Check:
    try:
        return Check(True, f"{what}: {attempt()}")
    except (LexfedError, OSError) as error:
        return Check(False, f"{what}: {error}")


def _texts(mine: SiteFile) -> str:
    known = [name for name in mine.policy.methods if name in METHODS]
    labelled = any(method(name).kind.labels for name in known)
    people = home(mine.data, 0, {0: b""}, Keys(b"\0" * 32, b""), labelled)
    names = ", ".join(map(str, people.labels[:20]))
    return (
        f"{len(people.train):,} to train on, {len(people.common_test):,} held out to be scored on, "
        f"{len(people.common_validation):,} for choosing" + (f"; labels: {names}" if names else "")
    )


def _is_reachable(mine: SiteFile) -> bool:
    return mine.socket.parent.is_dir()


def _node_files(mine: SiteFile) -> Iterator[Check]:
    place = mine.folder / mine.door.node
    node = place / "node"
    yield _is(node.is_file(), f"the SuperNode's key {node} is there")
    if node.is_file():
        yield _is(not node.stat().st_mode & 0o077, f"{node} can be read by its owner alone")
    yield _is((place / "ca.crt").is_file(), f"{place / 'ca.crt'} is there")


def _certificates(keys: Path, place: Place) -> Iterator[Check]:
    for name in ("server.crt", "server.key", "ca.crt"):
        if not (keys / name).is_file():
            yield Check(False, f"{keys / name} is not there: lexfed keys server HOST")
            return
    certificate = x509.load_pem_x509_certificate((keys / "server.crt").read_bytes())
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    yield _is(left > SOON, f"the certificate is good for {left.days} days")
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    told = [str(name.value) for name in names]
    good = place.host in told or place.host in ("0.0.0.0", "::")
    yield _is(good, f"the certificate is for {', '.join(told)}")


def _server(mine: SiteFile, address: str, insecure: bool) -> Check:
    """Whether somebody with the right certificate listens there, and what its clock says."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return Check(False, f"--superlink {address} is no HOST:PORT")
    place = mine.folder / mine.door.node
    try:
        with socket.create_connection((host, int(port)), timeout=5) as plain:
            if insecure:
                return Check(True, f"somebody listens at {address}")
            context = ssl.create_default_context(cafile=str(place / "ca.crt"))
            with context.wrap_socket(plain, server_hostname=host) as secure:
                secure.sendall(f"GET / HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
                skew = _skew(secure.recv(4096))
    except (OSError, ValueError) as error:
        return Check(False, f"the server at {address}: {error}")
    if skew is not None and skew > SKEW:
        return Check(False, f"this machine's clock and the server's differ by {skew:.0f} seconds")
    return Check(True, f"the server at {address} has the right certificate, and the same time")


def _skew(answer: bytes) -> float | None:
    import email.utils

    for line in answer.decode("latin-1").splitlines():
        if line.lower().startswith("date:"):
            told = email.utils.parsedate_to_datetime(line.partition(":")[2].strip())
            return abs(told.timestamp() - time.time())
    return None


def _disk(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    return _is(free > ROOM, f"{free / 2**30:.0f} GiB are free on disk")
