"""The clients of a deployment, as its parties know them: a server knows how many there are, an
organisation knows its own texts, its own secrets, and the others' public keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from lexfed.core.errors import ConfigError
from lexfed.core.seeds import Seed
from lexfed.corpus.loading import Columns
from lexfed.corpus.population import Data, Population, parted
from lexfed.corpus.sources import load
from lexfed.corpus.text import Corpus

ELSEWHERE = "elsewhere"  # data.name of a run whose texts lie with organisations


@dataclass(frozen=True)
class Named(Population):
    """Clients that are known by their public keys."""

    peers: Mapping[int, bytes] = field(default_factory=dict)

    def pinned(self, client: int) -> bytes | None:
        return self.peers.get(client)


def elsewhere(data: Data, peers: Mapping[int, bytes], labelled: bool) -> Named:
    """What the server knows of the clients: no text, no secret. What is learned of labels, the
    configuration says.
    """
    classes = len(data.labels) or data.classes or 0
    if labelled and not classes:
        raise ConfigError(
            "the server sees no text, so the configuration must name the classes: set data.labels, "
            "or data.classes where labels are numbers"
        )
    nothing = Corpus(
        np.arange(0),
        pa.array([], pa.large_string()),
        np.arange(0) if classes else None,
        label_names=data.labels or None,
    )
    starts = np.zeros(data.clients + 1, np.int64)
    return Named(nothing, starts, nothing, nothing, classes, b"", here=False, peers=peers)


@dataclass(frozen=True)
class Keys:
    """The secrets of an organisation: its own, what it signs with, what all organisations share
    and the server lacks (none: nothing that is used needs it).
    """

    own: Seed = field(repr=False)
    identity: Seed = field(repr=False)
    common: Seed = field(default=b"", repr=False)


@dataclass(frozen=True)
class Home(Named):
    """The clients as one of them knows them: its own texts, and how many others there are."""

    keys: Keys = field(default_factory=lambda: Keys(b"", b""), repr=False)

    def identity_of(self, client: int) -> Seed:
        return self.keys.identity

    @property
    def common_secret(self) -> Seed:
        return self.keys.common


def home(data: Data, me: int, peers: Mapping[int, bytes], keys: Keys, labelled: bool) -> Home:
    """Its texts, and what it holds out of them to be scored on. `data.clients` are all of them."""
    columns = Columns(data.text, data.label, data.user, data.source)
    corpus = load(data.name, columns)
    if labelled and corpus.label_column is None:
        raise ConfigError(
            f"{data.name} has no labels (no column '{data.label}'), and a classifier learns them: "
            "name their column with data.label"
        )
    alone = parted(corpus, replace(data, clients=1, unseen=0, partition="iid"), keys.own)
    return at(alone, me, data.clients, peers, keys)


def at(alone: Population, me: int, clients: int, peers: Mapping[int, bytes], keys: Keys) -> Home:
    """The one client of a population as number `me` of so many."""
    starts = np.zeros(clients + 1, np.int64)
    starts[me + 1 :] = len(alone.train)
    return Home(
        alone.train, starts, alone.common_validation, alone.common_test, alone.classes, keys.own,
        here=False, peers=peers, keys=keys,
    )  # fmt: skip
