"""Client states on disk: private parameters, kept by client and by the server's clock.

A repeated round must start where its first attempt did, so a store keeps two versions of a client: the newest from before
the current step, and the newest. It hands out the newest that is *older* than the request's clock.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lexfed.errors import CheckpointError, WireError
from lexfed.federation import ClientState
from lexfed.files import OWNER_ONLY, write_atomically
from lexfed.wire import ClientId, Message, decode, encode

Clock = tuple[int, int]  # the server's step, and the number of the ask within it


@dataclass(frozen=True)
class Store:
    """One folder per client that has kept something, readable by its owner alone; nothing is held in memory."""

    root: Path

    def load(self, client: ClientId, clock: Clock) -> ClientState:
        versions = [version for version in self._versions(client) if version < clock]
        if not versions:
            return ClientState()
        path = self._path(client, max(versions))
        try:
            kept = decode(path.read_bytes())
        except WireError as error:
            raise CheckpointError(f"{path} is damaged: start the run again, or restore it from a copy") from error
        return ClientState(kept.arrays, kept.blobs)

    def save(self, client: ClientId, clock: Clock, state: ClientState) -> None:
        if not state.params and not state.blobs:
            return
        path = self._path(client, clock)
        for folder in (self.root, path.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, encode(Message(state.params, blobs=state.blobs)), OWNER_ONLY)
        before = [version for version in self._versions(client) if version[0] < clock[0]]
        for version in self._versions(client):
            if version != clock and version != max(before, default=None):
                self._path(client, version).unlink()

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
