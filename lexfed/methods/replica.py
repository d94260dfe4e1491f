"""What the organisations of one machine hold in common: the vocabulary, and a replica of the tables.

A replica is brought forward by the rows that changed since its version. All who are at one version hold the same numbers, so
a machine holds them once; what an organisation does to them in a round happens on gathered copies of the rows it touches.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
import torch

from lexfed.corpus.population import Client
from lexfed.corpus.text import Corpus
from lexfed.errors import WireError
from lexfed.models.skipgram import INPUT, OUTPUT, Floats, Text, Unigrams, unigrams
from lexfed.params import Params, Rows
from lexfed.seeds import derive, numpy_generator
from lexfed.vocabulary import agreed
from lexfed.vocabulary.shards import encode
from lexfed.vocabulary.word import Vocabulary
from lexfed.wire import ClientId, Message, unpack

PUBLIC = b"lexfed: word vectors"  # no secret: everybody makes the same first table of it, so it need not be sent
EVERYBODY = -1  # no client's id
_CHUNK = 1024


def first_tables(words: int, dimension: int) -> Params:
    """Version 0: small random input rows, zero output rows. Row i is the same however many follow."""
    table = np.empty((words, dimension), np.float32)
    for start in range(0, words, _CHUNK):
        rng = numpy_generator(derive(PUBLIC, "rows", start))
        table[start : start + _CHUNK] = rng.random((_CHUNK, dimension), dtype=np.float32)[: words - start]
    table -= 0.5
    table /= dimension
    return {INPUT: torch.from_numpy(table), OUTPUT: torch.zeros(words, dimension)}


@dataclass
class Replica:
    dimension: int
    subsample: float
    vocabulary: Vocabulary = field(default_factory=lambda: Vocabulary((), ()))
    tables: dict[str, Floats] = field(default_factory=dict)
    unigrams: dict[ClientId, Unigrams] = field(default_factory=dict)
    version: int = -1  # of the tables here
    versions: dict[ClientId, int] = field(default_factory=dict)  # what each organisation would hold on a machine of its own
    resumed: int = -1  # what those hold that have not been heard of since a resume
    texts: dict[tuple[ClientId, str], Text] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def install(self, data: bytes) -> None:
        """Take the vocabulary, and make version 0 of its tables."""
        with self.lock:
            if self.version < 0:
                self._open(data)
                tables = first_tables(len(self.vocabulary), self.dimension)
                self.tables = {name: table.numpy() for name, table in tables.items()}
                self.version = 0

    def hold(self, data: bytes, tables: Params, resumed: int | None = None) -> None:
        """In a simulation: hold the server's own tables. Whoever is asked holds just these numbers, so a process that plays
        both sides need not have them twice. What is sent is still made, counted, and written over itself.

        A run that was `resumed` at a version: clients held then what the round before it had sent them.
        """
        if self.version < 0 or resumed is not None:
            self._open(data)
            self.version = max(self.version, 0) if resumed is None else resumed
            self.resumed = -1 if resumed is None else resumed - 1
        self.tables = {name: table.numpy() for name, table in tables.items()}

    def _open(self, data: bytes) -> None:
        self.vocabulary = agreed.from_bytes(data)
        counts = np.array(self.vocabulary.counts, dtype=np.int64)
        self.unigrams, self.texts = ({EVERYBODY: unigrams(counts, self.subsample)} if counts.sum() else {}), {}

    def forward(self, message: Message, client: Client) -> None:
        """Bring the tables to the message's version."""
        since, version = int(message.meta["since"]), int(message.meta["version"])
        with self.lock:
            if self.version < since:
                raise WireError(f"client {client.id} is at version {self.version} and was sent rows since {since}")
            if self.version < version:
                for name, rows in unpack(message.arrays).items():
                    if isinstance(rows, Rows):
                        self.tables[name.removeprefix("rows/")][rows.ids.numpy()] = rows.values.numpy()
                self.version = version

    def text(self, client: Client, name: str, corpus: Callable[[], Corpus]) -> Text:
        """The client's text in the vocabulary's ids; made once."""
        key = (client.id, name)
        if key not in self.texts:
            self.texts[key] = encode(corpus(), self.vocabulary.ids)
        return self.texts[key]

    def frequencies(self, client: Client) -> Unigrams:
        """By the counts of the vocabulary; where no counts were shared (the paper's rules), by the client's own."""
        if EVERYBODY in self.unigrams:
            return self.unigrams[EVERYBODY]
        if client.id not in self.unigrams:
            own = self.text(client, "train", lambda: client.train).tokens
            self.unigrams[client.id] = unigrams(np.bincount(own, minlength=len(self.vocabulary)), self.subsample)
        return self.unigrams[client.id]

    def base(self) -> Mapping[str, Floats]:
        return self.tables
