"""What a client remembers of a secure sum, between its exchanges and for ever after.

A session holds the secrets of one sum; it lies in a file that its owner alone can read, and a new
one takes its place. That a sum was opened is remembered for good, and on disk *before* any share is
given out: a sum that is opened twice, once with and once without somebody, is that client's update.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from lexfed.core.errors import CheckpointError, WireError
from lexfed.core.files import OWNER_ONLY, OWNERS_FOLDER, write_atomically
from lexfed.core.seeds import Seed, fresh
from lexfed.secure.secure_verbs import TERMS
from lexfed.wire import ClientId, Message, Meta, Verb, decode, encode

Clock = tuple[int, int]
Stage = Literal["keys", "shares", "masked"]

SESSION, OPENED = "secure-session.safetensors", "secure-opened.json"


def digest(message: Message) -> bytes:
    """Of all that a message holds: who has the same digest was sent the same."""
    hashed = blake2b(digest_size=32)
    for name, array in sorted(message.arrays.items()):
        kind = np.ascontiguousarray(array.detach().numpy())
        hashed.update(f"{name} {array.dtype} {tuple(array.shape)}\0".encode())
        hashed.update(kind.data if kind.ndim else kind.tobytes())
    hashed.update(json.dumps(sorted(message.meta.items())).encode())
    for name, blob in sorted(message.blobs.items()):
        hashed.update(f"{name} {len(blob)}\0".encode() + blob)
    return hashed.digest()


def announced(verb: Verb, request: Message) -> bytes:
    """What all clients of a sum must have been sent alike: the whole request; where each is sent
    what it lacks, all but that.
    """
    if not verb.unlike:
        return digest(request)
    arrays = {name: value for name, value in request.arrays.items() if name.startswith("only/")}
    return digest(Message(arrays, {n: v for n, v in request.meta.items() if n != "since"}))


def bound_to(context: bytes, public: Mapping[ClientId, bytes]) -> bytes:
    """The context of who has seen these keys: with who was shown others, no secret is shared."""
    hashed = blake2b(context, digest_size=32)
    for client, own in sorted(public.items()):
        hashed.update(client.to_bytes(8, "big") + own)
    return hashed.digest()


def context_of(terms: Mapping[str, Meta], clock: Clock, request: bytes) -> bytes:
    """What everybody in a sum must agree on: it is signed, and bound into every key."""
    told = [(name, terms[name]) for name in TERMS]
    return blake2b(json.dumps([told, clock]).encode() + request, digest_size=32).digest()


@dataclass(frozen=True)
class Session:
    """The secrets of one sum."""

    verb: str
    clock: Clock
    context: bytes
    request: bytes  # the digest that was announced
    terms: Mapping[str, Meta]
    stage: Stage = "keys"
    # drawn anew for every session: nothing of one is worth anything in another
    sealing_key: Seed = field(default_factory=fresh, repr=False)
    masking_key: Seed = field(default_factory=fresh, repr=False)
    own_mask: Seed = field(default_factory=fresh, repr=False)
    # by neighbour: its two public keys; then its two shares, where they could be read
    keys: Mapping[ClientId, bytes] = field(default_factory=dict)
    shares: Mapping[ClientId, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Sessions:
    root: Path

    def load(self, client: ClientId) -> Session | None:
        try:
            return _session(decode(self._path(client, SESSION).read_bytes()))
        except FileNotFoundError:
            return None
        except (WireError, OSError, KeyError, ValueError):
            return None  # half of a session is none: the client drops out of this sum

    def save(self, client: ClientId, session: Session) -> None:
        self._write(client, SESSION, encode(_message(session)), durable=False)

    def opened(self, client: ClientId, verb: str) -> Clock:
        step, ask = self._opened(client).get(verb, (-1, -1))
        return step, ask

    def spend(self, client: ClientId, session: Session) -> None:
        """It is on disk when this returns. The secrets are gone."""
        spent = {**self._opened(client), session.verb: session.clock}
        self._write(client, OPENED, json.dumps(spent).encode(), durable=True)
        self._path(client, SESSION).unlink(missing_ok=True)

    def _opened(self, client: ClientId) -> dict[str, Clock]:
        path = self._path(client, OPENED)
        try:
            return {verb: (at[0], at[1]) for verb, at in json.loads(path.read_text()).items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, LookupError) as error:
            raise CheckpointError(
                f"{path} is damaged: without it nobody knows which sums were opened"
            ) from error

    def _write(self, client: ClientId, name: str, data: bytes, durable: bool) -> None:
        path = self._path(client, name)
        if not path.parent.exists():
            os.makedirs(path.parent, OWNERS_FOLDER, exist_ok=True)
        write_atomically(path, data, OWNER_ONLY, durable)

    def _path(self, client: ClientId, name: str) -> Path:
        return self.root / f"{client:08d}" / name


_SECRETS = ("sealing_key", "masking_key", "own_mask", "context", "request")


def _message(session: Session) -> Message:
    """As a file holds it."""
    tables = {"keys": session.keys, "shares": session.shares}
    return Message(
        {name: torch.tensor(sorted(table), dtype=torch.int64) for name, table in tables.items()},
        {
            **{"#verb": session.verb, "#step": session.clock[0], "#ask": session.clock[1]},
            **{"#stage": session.stage},
            **session.terms,
        },
        {
            **{name: getattr(session, name) for name in _SECRETS},
            **{n: b"".join(table[key] for key in sorted(table)) for n, table in tables.items()},
        },
    )


def _session(kept: Message) -> Session:
    meta, blobs = kept.meta, kept.blobs
    terms = {name: meta[name] for name in TERMS}
    clock = int(meta["#step"]), int(meta["#ask"])
    stage: Stage = meta["#stage"]  # type: ignore[assignment]
    return Session(
        str(meta["#verb"]), clock, blobs["context"], blobs["request"], terms, stage,
        blobs["sealing_key"], blobs["masking_key"], blobs["own_mask"],
        _table(kept, "keys"), _table(kept, "shares"),
    )  # fmt: skip


def _table(kept: Message, name: str) -> dict[ClientId, bytes]:
    clients, data = kept.arrays[name].tolist(), kept.blobs[name]
    width = len(data) // len(clients) if clients else 0
    return {c: data[i * width : (i + 1) * width] for i, c in enumerate(clients)}
