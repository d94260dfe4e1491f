"""Client states on disk: private parameters, kept by client and by the server's clock.

A repeated round must start where its first attempt did, so a store keeps two versions of a client:
the newest from before the current step, and the newest. It hands out the newest that is *older*
than the request's clock.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, get_ident

from lexfed.core import formats
from lexfed.core.errors import CheckpointError, WireError
from lexfed.core.files import OWNER_ONLY, write_atomically
from lexfed.core.params import Params
from lexfed.core.seeds import Seed, fresh
from lexfed.federation import ClientState
from lexfed.secure.sessions import OPENED
from lexfed.wire import ClientId, Message, chunks, decode, encode, read

HELD = "held"  # in a client's file: there is another one, with what it holds
SECRET = "secret"  # of all clients, where it is not derived from a seed
FILE = ".safetensors"
KNOWN = 3  # files of which the content is remembered

Clock = tuple[int, int]  # the server's step, and the number of the ask within it


@dataclass(frozen=True)
class Store:
    """One folder per client that has kept something, readable by its owner alone.

    What a client *holds* (`ClientState.held`) lies in a file of its own. Clients that hold the very
    same share that file, by links, and its one copy in memory: ten organisations with one table
    cost one table.
    """

    root: Path
    shared: "Shared" = field(default_factory=lambda: Shared(), compare=False, repr=False)

    def __post_init__(self) -> None:
        formats.check_folder(self.root, formats.CLIENT_STORE)

    def load(self, client: ClientId, clock: Clock) -> ClientState:
        versions = [version for version in self._versions(client) if version < clock]
        if not versions:
            return ClientState()
        path = self._path(client, max(versions))
        try:
            kept = decode(path.read_bytes())
            held = self.shared.load(_held(path)) if HELD in kept.meta else {}
        except (WireError, OSError) as error:
            raise CheckpointError(
                f"{path} is damaged: start the run again, or restore it from a copy"
            ) from error
        return ClientState(kept.arrays, kept.blobs, held)

    def save(self, client: ClientId, clock: Clock, state: ClientState) -> None:
        if not state.params and not state.blobs and not state.held:
            return
        path = self._path(client, clock)
        self._open(client)
        if state.held:  # first: a state without what it holds would be half of one
            self.shared.save(_held(path), state.held)
        kept = Message(state.params, {HELD: 1} if state.held else {}, state.blobs)
        write_atomically(path, encode(kept), OWNER_ONLY)
        self._forget_others(client, clock)

    def _open(self, client: ClientId) -> None:
        (self.root / f"{client:08d}").mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (self.root / formats.FILE).exists():
            self.root.chmod(0o700)
            formats.mark(self.root, "client store", formats.CLIENT_STORE)

    def _forget_others(self, client: ClientId, clock: Clock) -> None:
        """But for this version, and the newest from before its step."""
        before = [version for version in self._versions(client) if version[0] < clock[0]]
        for version in self._versions(client):
            if version != clock and version != max(before, default=None):
                self._path(client, version).unlink()
                _held(self._path(client, version)).unlink(missing_ok=True)

    def files(self, client: ClientId, clock: Clock | None = None) -> dict[str, bytes]:
        """What lies in a client's folder, for a machine that has no such folder; with a clock, what
        an answer to it may read: of the versions, the one that `load` hands out.
        """
        versions = set(self._versions(client)) if clock is not None else set()
        handed_out = max((version for version in versions if version < (clock or ())), default=None)
        paths = [self._path(client, version) for version in versions - {handed_out}]
        others = {name for path in paths for name in (path.name, _held(path).name)}
        there = sorted((self.root / f"{client:08d}").glob("[!.]*"))
        return {path.name: path.read_bytes() for path in there if path.name not in others}

    def put(
        self, client: ClientId, clock: Clock, files: Mapping[str, bytes], gone: Iterable[str] = ()
    ) -> None:
        """What an answer at this clock has changed in a client's folder, on another machine."""
        folder = self.root / f"{client:08d}"
        for name in (*files, *gone):
            if not name or Path(name).name != name or name.startswith("."):
                raise WireError(f"'{name}' is no file of a client's")
        if files:
            self._open(client)
        for name in sorted(files, reverse=True):  # a state after what it holds, as in `save`
            write_atomically(folder / name, files[name], OWNER_ONLY)
        for name in gone:
            (folder / name).unlink(missing_ok=True)
        if self._path(client, clock).name in files:
            self._forget_others(client, clock)

    def secret(self) -> Seed:
        """From which the secrets of all clients of this machine hang: drawn once, kept as long as
        what they keep.
        """
        path = self.root / SECRET
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            write_atomically(path, fresh(), OWNER_ONLY)
        secret = path.read_bytes()
        if len(secret) != len(fresh()):
            raise CheckpointError(f"{path} is damaged: restore it from a copy")
        return secret

    def copy_before(self, step: int, target: "Store") -> None:
        """Give another store what every client had before this step, and their secret."""
        if (self.root / SECRET).exists():
            target.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(target.root / SECRET, self.secret(), OWNER_ONLY)
        for folder in self.root.glob("[0-9]*"):
            client = int(folder.name)
            versions = [version for version in self._versions(client) if version[0] < step]
            if versions:
                target.save(client, max(versions), self.load(client, (step, 0)))
            opened = folder / OPENED
            if opened.exists():  # which sums it helped to open, it never forgets
                there = target.root / folder.name
                there.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_atomically(there / OPENED, opened.read_bytes(), OWNER_ONLY)

    def _versions(self, client: ClientId) -> Iterator[Clock]:
        folder = self.root / f"{client:08d}"
        try:
            names = os.listdir(folder)  # most clients have none
        except FileNotFoundError:
            return
        for name in names:
            if name[0].isdigit() and name.endswith(FILE):
                step, _, ask = name.removesuffix(FILE).partition("-")
                yield int(step), int(ask)

    def _path(self, client: ClientId, clock: Clock) -> Path:
        return self.root / f"{client:08d}" / f"{clock[0]:08d}-{clock[1]:04d}{FILE}"


def _held(path: Path) -> Path:
    return path.with_name(f"held-{path.name}")


File = tuple[int, int, int]  # device, inode, and when it was written: inodes are used again


@dataclass
class Shared:
    """One file for all who hold the same object, one object for all links to a file."""

    lock: Lock = field(default_factory=Lock)
    files: dict[File, tuple[Params, Path]] = field(default_factory=dict)

    def load(self, path: Path) -> Params:
        """Mapped into memory: nothing is read that is not used."""
        with self.lock:
            known = self.files.get(_file(path))
            held = known[0] if known is not None else read(path).arrays
            self._remember(held, path)
            return held

    def save(self, path: Path, held: Params) -> None:
        with self.lock:
            there = next((file for file in self._files_of(held) if file != path), None)
            if there is None:
                write_atomically(path, chunks(Message(held)), OWNER_ONLY)
            elif not (path.exists() and path.samefile(there)):
                link = path.with_name(f".{path.name}.{os.getpid()}.{get_ident()}")
                link.unlink(missing_ok=True)
                os.link(there, link)
                os.replace(link, path)
            self._remember(held, path)

    def _files_of(self, held: Params) -> Iterator[Path]:
        """Where it lies, if what lies there is still the same."""
        for file, (known, path) in self.files.items():
            if known is held and path.exists() and _file(path) == file:
                yield path

    def _remember(self, held: Params, path: Path) -> None:
        """The last few: from before this round, and from it."""
        self.files.pop(_file(path), None)
        self.files[_file(path)] = (held, path)
        while len(self.files) > KNOWN:
            self.files.pop(next(iter(self.files)))


def _file(path: Path) -> File:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_mtime_ns
