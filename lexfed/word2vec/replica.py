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
class Ahead:
    """Tables that were brought forward from those that a client keeps."""

    base: Params
    message: Message  # what brought them there
    version: int
    held: Params
    kept: bool = False  # somebody keeps them now: they may no longer change


@dataclass(frozen=True)
class Replicas:
    """How replicas are made and brought forward. What is remembered here saves work, and changes no
    result.
    """

    dimension: int
    lock: Lock = field(default_factory=Lock, compare=False)
    # by the identity of their base
    ahead: dict[int, Ahead] = field(default_factory=dict, compare=False)

    def first(self, vocabulary: bytes) -> ClientState:
        """Version 0 of a vocabulary's tables: all that a client needs to begin."""
        with self.lock:
            held = _first(vocabulary, self.dimension)
        return ClientState(blobs={VERSION: b"0", LIST: _digest(vocabulary)}, held=held)

    def forward(self, state: ClientState, message: Message, keep: bool) -> ClientState | None:
        """The replica at the message's version; None: the client lacks more than these rows.

        Within a round of many steps a client keeps what it began with (`keep` is false), and its
        steps are made on one copy that moves along: a round that is repeated begins again from what
        is kept.
        """
        since, version, mine = (
            int(message.meta["since"]),
            int(message.meta["version"]),
            version_of(state),
        )
        if mine >= version:
            return state
        with self.lock:
            found = self.ahead.get(id(state.held))
            if found is None or found.message is not message:
                found = self._moved(state.held, found, message, since <= mine)
            if found is None:
                return None
            found.kept = found.kept or keep
            return replace(
                state, blobs={**state.blobs, VERSION: str(version).encode()}, held=found.held
            )

    def _moved(
        self, base: Params, found: Ahead | None, message: Message, from_base: bool
    ) -> Ahead | None:
        if not from_base and (found is None or found.version != int(message.meta["since"])):
            return None
        held = base if from_base or found is None else found.held
        if from_base or found is None or found.kept:
            held = {
                name: value if name == VOCABULARY else value.clone() for name, value in held.items()
            }
        for name, rows in unpack(message.arrays).items():
            if isinstance(rows, Rows):
                held[name.removeprefix("rows/")][rows.ids] = rows.values
        self.ahead.pop(id(base), None)
        self.ahead[id(base)] = Ahead(base, message, int(message.meta["version"]), held)
        while len(self.ahead) > 2:
            self.ahead.pop(next(iter(self.ahead)))
        return self.ahead[id(base)]


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
