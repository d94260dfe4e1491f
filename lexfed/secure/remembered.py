"""Sums that were opened, kept by the server until the step that used them is kept.

Clients open no sum twice. So a server that was killed between opening a sum and keeping what came
of it must find the sum again, or the round is lost.
"""

import json
from collections import Counter
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

from lexfed.core.errors import WireError
from lexfed.core.files import OWNER_ONLY, OWNERS_FOLDER, write_atomically
from lexfed.federation import Federation, Requests, Sum
from lexfed.secure.sessions import digest
from lexfed.wire import Message, Verb, decode, encode, pack, unpack


@dataclass(frozen=True)
class Remembered:
    """A file for each sum of the newest step."""

    folder: Path

    def find(self, verb: Verb, requests: Requests) -> Sum | None:
        try:
            kept = decode(self._path(verb, requests).read_bytes())
            if kept.meta["asked"] != _asked(requests):
                return None  # of another cohort, or another model
            refused = Counter(json.loads(str(kept.meta["refused"])))
            members = tuple(json.loads(str(kept.meta["members"])))
            up, down, cut = (int(kept.meta[name]) for name in ("up", "down", "cut"))
        except (OSError, WireError, LookupError, ValueError):
            return None
        return Sum(unpack(kept.arrays), len(members), up, refused, down, cut, members)

    def keep(self, verb: Verb, requests: Requests, total: Sum) -> None:
        path = self._path(verb, requests)
        self.folder.mkdir(OWNERS_FOLDER, parents=True, exist_ok=True)
        kept = Message(
            pack(total.update),
            {
                "asked": _asked(requests),
                "refused": json.dumps(total.refused),
                "members": json.dumps(total.members),
                "up": total.bytes_up,
                "down": total.bytes_down,
                "cut": total.cut,
            },
        )
        write_atomically(path, encode(kept), OWNER_ONLY)
        step = path.name.partition("-")[0]
        for other in self.folder.glob("[0-9]*.safetensors"):
            if other.name.partition("-")[0] < step:
                other.unlink()

    def _path(self, verb: Verb, requests: Requests) -> Path:
        """Evaluations of the same state ask several groups of clients: each has its sum."""
        meta = next(iter(requests.values())).meta
        clock = f"{int(meta['step']):08d}-{int(meta['ask']):04d}"
        who = blake2b(json.dumps(list(requests)).encode(), digest_size=4).hexdigest()
        return self.folder / f"{clock}-{verb.name}-{who}.safetensors"


def remembering(federation: Federation, folder: Path) -> Federation:
    memory = Remembered(folder)

    def total(verb: Verb, requests: Requests) -> Sum:
        if not requests:
            return federation.total(verb, requests)
        known = memory.find(verb, requests)
        if known is not None:
            return known
        opened = federation.total(verb, requests)
        if opened.clients:
            memory.keep(verb, requests, opened)
        return opened

    return replace(federation, total=total)


def _asked(requests: Requests) -> str:
    """Who was asked for what."""
    hashed = blake2b(digest_size=16)
    digests = {id(message): digest(message) for message in requests.values()}
    for client, message in requests.items():
        hashed.update(client.to_bytes(8, "big") + digests[id(message)])
    return hashed.hexdigest()
