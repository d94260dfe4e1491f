"""What an organisation holds of the tables: a vocabulary, a version, and the numbers of that
version.

A replica is brought forward by the rows that changed since its version; the old one stays as it is,
for a round that is repeated. All who are at one version hold the same numbers, so organisations on
one machine share them: in memory, because the same rows on the same replica are applied once; on
disk, by links to one file (`runtime.store`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from threading import Lock

import numpy as np
import torch

from lexfed.agreement import word_list
from lexfed.core.params import Params, Rows
from lexfed.core.seeds import derive, numpy_generator
from lexfed.corpus.population import Client
from lexfed.corpus.text import Corpus
from lexfed.federation import ClientState
from lexfed.models.skipgram import INPUT, OUTPUT, Floats, Text, Unigrams, unigrams
from lexfed.vocabulary.shards import encode
from lexfed.vocabulary.word import Vocabulary
from lexfed.wire import ClientId, Message, unpack

# no secret: everybody makes the same first table of it, so it need not be sent
PUBLIC = b"lexfed: word vectors"
VOCABULARY = "vocabulary"  # held beside the tables, as bytes
# what a client keeps for itself: the version it holds, and of which word list
VERSION, LIST = "version", "list"
UNKNOWN = -1  # the version of who has no vocabulary yet
EVERYBODY = -1  # no client's id
_CHUNK = 1024


def first_tables(words: int, dimension: int) -> Params:
    """Version 0: small random input rows, zero output rows. Row i is the same however many
    follow.
    """
    table = np.empty((words, dimension), np.float32)
    for start in range(0, words, _CHUNK):
        rng = numpy_generator(derive(PUBLIC, "rows", start))
        table[start : start + _CHUNK] = rng.random((_CHUNK, dimension), dtype=np.float32)[
            : words - start
        ]
    table -= 0.5
    table /= dimension
    return {INPUT: torch.from_numpy(table), OUTPUT: torch.zeros(words, dimension)}


def version_of(state: ClientState) -> int:
    return int(state.blobs.get(VERSION, str(UNKNOWN).encode()))


@dataclass
class Moved:
    """Tables that a message has brought forward."""

    message: Message
    held: Params
    kept: bool = False  # somebody keeps them now: they may no longer change

    @property
    def version(self) -> int:
        return int(self.message.meta["version"])


@dataclass
class Replicas:
    """How replicas are made and brought forward, for all organisations of one machine.

    Within a round of many steps (FedSGD) an organisation keeps what it began with, and its steps
    are made on tables that move along: a round that is repeated begins again from what is kept. Who
    misses a step can't follow the others, and is heard again in the next round.
    """

    dimension: int
    lock: Lock = field(default_factory=Lock)
    clock: tuple[int, int] = (-1, -1)  # of the exchange that is going on
    now: dict[int, Moved] = field(default_factory=dict)  # its tables, by the message that made them
    before: Moved | None = None  # those of the exchange before
    followed: dict[ClientId, int] = field(default_factory=dict)  # the version each was brought to

    def first(self, vocabulary: bytes) -> ClientState:
        """Version 0 of a vocabulary's tables: all that a client needs to begin."""
        with self.lock:
            held = _first(vocabulary, self.dimension)
        return ClientState(blobs={VERSION: b"0", LIST: _digest(vocabulary)}, held=held)

    def forward(
        self, state: ClientState, message: Message, client: ClientId, keep: bool
    ) -> ClientState | None:
        """The replica at the message's version; None: the client lacks more than these rows."""
        since, version, mine = (
            int(message.meta["since"]),
            int(message.meta["version"]),
            version_of(state),
        )
        if mine >= version:
            return state
        with self.lock:
            self._begin(message)
            if mine < since and self.followed.get(client) != since:
                return None
            moved = self.now.get(id(message)) or self._moved(state.held, message, mine < since)
            if moved is None:
                return None
            moved.kept = moved.kept or keep
            self.followed[client] = version
            blobs = {**state.blobs, VERSION: str(version).encode()}
            return replace(state, blobs=blobs, held=moved.held)

    def _begin(self, message: Message) -> None:
        """A new exchange: what the last one made is where its followers are."""
        clock = (int(message.meta["step"]), int(message.meta["ask"]))
        if clock != self.clock:
            self.before = next(reversed(self.now.values()), None)
            self.clock, self.now = clock, {}

    def _moved(self, base: Params, message: Message, follows: bool) -> Moved | None:
        """One message to many who hold the same is applied once."""
        held, kept = base, True
        if follows:
            if self.before is None or self.before.version != int(message.meta["since"]):
                return None
            held, kept = self.before.held, self.before.kept
        if kept:
            held = {
                name: value if name == VOCABULARY else value.clone() for name, value in held.items()
            }
        for name, rows in unpack(message.arrays).items():
            if isinstance(rows, Rows):
                held[name.removeprefix("rows/")][rows.ids] = rows.values
        self.now[id(message)] = Moved(message, held)
        return self.now[id(message)]


@lru_cache(maxsize=1)
def _first(vocabulary: bytes, dimension: int) -> Params:
    tables = first_tables(len(word_list.from_bytes(vocabulary)), dimension)
    return {**tables, VOCABULARY: torch.frombuffer(bytearray(vocabulary), dtype=torch.uint8)}


def _digest(vocabulary: bytes) -> bytes:
    return blake2b(vocabulary, digest_size=16).digest()


Tables = Mapping[str, Floats]


def tables_of(state: ClientState) -> Tables:
    return {name: state.held[name].numpy() for name in (INPUT, OUTPUT)}


@dataclass(frozen=True)
class Readings:
    """Texts in a vocabulary's ids, and the frequencies that words are drawn by; made once."""

    subsample: float
    lists: dict[bytes, Vocabulary] = field(default_factory=dict, compare=False)
    texts: dict[tuple[bytes, ClientId, str], Text] = field(default_factory=dict, compare=False)
    unigrams: dict[tuple[bytes, ClientId], Unigrams] = field(default_factory=dict, compare=False)

    def vocabulary(self, state: ClientState) -> Vocabulary:
        key = state.blobs[LIST]
        if key not in self.lists:
            self.lists[key] = word_list.from_bytes(state.held[VOCABULARY].numpy().tobytes())
        return self.lists[key]

    def text(self, state: ClientState, client: Client, name: str, corpus: Corpus) -> Text:
        key = (state.blobs[LIST], client.id, name)
        if key not in self.texts:
            self.texts[key] = encode(corpus, self.vocabulary(state).ids)
        return self.texts[key]

    def frequencies(self, state: ClientState, client: Client) -> Unigrams:
        """By the counts of the vocabulary; where no counts were shared (the paper's rules), by the
        client's own.
        """
        counts = self.vocabulary(state).counts
        counted = any(counts)
        key = (state.blobs[LIST], EVERYBODY if counted else client.id)
        if key not in self.unigrams:
            shared = np.array(counts, dtype=np.int64)
            own = None if counted else self.text(state, client, "train", client.train).tokens
            numbers = shared if own is None else np.bincount(own, minlength=len(counts))
            self.unigrams[key] = unigrams(numbers, self.subsample)
        return self.unigrams[key]
