"""Client states on disk: private parameters, kept by client and by the server's clock.

A repeated round must start where its first attempt did, so a store keeps two versions of a client:
the newest from before the current step, and the newest. It hands out the newest that is *older*
than the request's clock.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from lexfed.core import formats
from lexfed.core.errors import CheckpointError, WireError
from lexfed.core.files import OWNER_ONLY, write_atomically
from lexfed.core.params import Params
from lexfed.federation import ClientState
from lexfed.wire import ClientId, Message, chunks, decode, encode, read

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
            held = self.shared.load(_held(path))
        except (WireError, OSError) as error:
            raise CheckpointError(
                f"{path} is damaged: start the run again, or restore it from a copy"
            ) from error
        return ClientState(kept.arrays, kept.blobs, held)

    def save(self, client: ClientId, clock: Clock, state: ClientState) -> None:
        if not state.params and not state.blobs and not state.held:
            return
        path = self._path(client, clock)
        if not self.root.exists():
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            formats.mark(self.root, "client store", formats.CLIENT_STORE)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if state.held:  # first: a state without what it holds would be half of one
            self.shared.save(_held(path), state.held)
        write_atomically(path, encode(Message(state.params, blobs=state.blobs)), OWNER_ONLY)
        before = [version for version in self._versions(client) if version[0] < clock[0]]
        for version in self._versions(client):
            if version != clock and version != max(before, default=None):
                self._path(client, version).unlink()
                _held(self._path(client, version)).unlink(missing_ok=True)

    def copy_before(self, step: int, target: "Store") -> None:
        """Give another store what every client had before this step."""
        for folder in self.root.glob("[0-9]*"):
            client = int(folder.name)
            versions = [version for version in self._versions(client) if version[0] < step]
            if versions:
                target.save(client, max(versions), self.load(client, (step, 0)))

    def _versions(self, client: ClientId) -> Iterator[Clock]:
        folder = self.root / f"{client:08d}"
        for path in folder.glob("[0-9]*.safetensors"):
            step, _, ask = path.stem.partition("-")
            yield int(step), int(ask)

    def _path(self, client: ClientId, clock: Clock) -> Path:
        return self.root / f"{client:08d}" / f"{clock[0]:08d}-{clock[1]:04d}.safetensors"


def _held(path: Path) -> Path:
    return path.with_name(f"held-{path.name}")


@dataclass
class Shared:
    """Files of what clients hold: one for all who hold the same object, one object for all links to
    a file.
    """

    lock: Lock = field(default_factory=Lock)
    # by device and inode
    files: dict[tuple[int, int], tuple[Params, Path]] = field(default_factory=dict)

    def load(self, path: Path) -> Params:
        """Mapped into memory: nothing is read that is not used."""
        if not path.exists():
            return {}
        with self.lock:
            known = self.files.get(_inode(path))
            held = known[0] if known is not None else read(path).arrays
            self._remember(held, path)
            return held

    def save(self, path: Path, held: Params) -> None:
        with self.lock:
            there = next(
                (p for known, p in self.files.values() if known is held and p.exists()), None
            )
            if there is None:
                write_atomically(path, chunks(Message(held)), OWNER_ONLY)
            elif not (path.exists() and path.samefile(there)):
                link = path.with_name(f".{path.name}.{os.getpid()}")
                link.unlink(missing_ok=True)
                os.link(there, link)
                os.replace(link, path)
            self._remember(held, path)

    def _remember(self, held: Params, path: Path) -> None:
        """The last few: from before this round, and from it."""
        self.files.pop(_inode(path), None)
        self.files[_inode(path)] = (held, path)
        while len(self.files) > 3:
            self.files.pop(next(iter(self.files)))


def _inode(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino
