"""The `[data]` table: a corpus, its common test set, and its clients."""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from lexfed.core.errors import ConfigError, DataError, nearest
from lexfed.core.seeds import Seed, derive, numpy_generator, public_identity
from lexfed.corpus import partition
from lexfed.corpus.loading import Columns, check_labels, with_stated
from lexfed.corpus.sources import load
from lexfed.corpus.table_files import columns_of
from lexfed.corpus.text import Corpus, IntArray

Law = Literal["iid", "dirichlet", "user", "source", "quantity"]


@dataclass(frozen=True)
class Data:
    """What is trained on, and how it is parted."""

    # a data set of `lexfed data list`, a file (parquet, csv, tsv, jsonl, json, txt, arrow, or .gz),
    # a folder of files, or a function of your own: `package.module:load`
    name: str = "rotten_tomatoes"
    clients: int = 20  # how many clients take part
    # more clients, cut in the same way, that never train: what does a newcomer get?
    unseen: int = 0
    # which law parts the texts among the clients
    partition: Law = "dirichlet"
    alpha: float = 1.0  # dirichlet, quantity: smaller is more skewed
    prior: Literal["class", "uniform"] = "class"  # dirichlet: its mean, FedNLP's way or symmetric
    # share held out as the common test set, where the data has no split of its own; 0: none
    test: float = 0.2
    # each: every client holds out this share of its own texts instead
    test_of: Literal["all", "each"] = "all"
    # with [privacy], where a client is a user: its texts are held out, and users drawn, whoever
    # else is there; or from all of them together, as before this key was, which costs a promise
    splits: Literal["apart", "together"] = "apart"
    # source: texts that name none; share: evenly among the clients
    sourceless: Literal["drop", "share"] = "drop"
    # share of the training texts kept apart to choose options on, where it has no such split
    validation: float = 0.1
    # at most so many training texts; with [privacy] and users, an equal share of it for each
    limit: int | None = None
    classes: int | None = None  # default: as many as there are labels
    # what the classes are called, in order; default: as the texts have it, which costs a promise
    labels: tuple[str, ...] = ()
    text: str = "text"  # the column of texts
    label: str = "label"  # the column of labels
    user: str = "user"  # the column that says who wrote a text
    source: str = "source"  # the column that says where a text is from
    # columns about the user, for an audit to guess; `blogs` has gender and age
    attributes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.clients < 1 or self.unseen < 0:
            raise ConfigError("data.clients must be at least 1 and data.unseen at least 0")
        if not self.alpha > 0:
            raise ConfigError(
                f"data.alpha must be above 0, not {self.alpha:g}; 0.1 is strong skew, 100 is "
                "almost none"
            )
        for name in ("test", "validation"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"data.{name} is a share: at least 0 and below 1")
        for name in ("limit", "classes"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ConfigError(f"data.{name} must be at least 1")
        if len(set(self.labels)) < len(self.labels):
            raise ConfigError("data.labels names a class twice")
        if self.labels and self.classes not in (None, len(self.labels)):
            raise ConfigError(
                f"data.labels names {len(self.labels)} classes, and data.classes says "
                f"{self.classes}: leave out data.classes"
            )


def check_partition(table: Mapping[str, Any]) -> None:
    """Of a `[data]` table: many write the name of a column there. So both are listed."""
    wanted, name = table.get("partition"), table.get("name", Data.name)
    laws = sorted(get_args(Law))
    if not isinstance(wanted, str) or wanted in laws or not isinstance(name, str):
        return
    columns = columns_of(Path(os.path.expanduser(name)))
    close = nearest(wanted, laws, cutoff=0.75)
    words = [f"data.partition = '{wanted}' is not known; it is one of {', '.join(laws)}"]
    if wanted in columns:
        words.append(f'to part by a column: data.partition = "source" and data.source = "{wanted}"')
    elif close.startswith("did"):
        words.append(close)
    if columns:
        words.append(f"the columns of {Path(name).name} are {', '.join(columns)}")
    raise ConfigError("; ".join(words))


@dataclass(frozen=True)
class Client:
    """What one client holds: its texts, the common sets it is scored on, and its own secret."""

    id: int
    train: Corpus
    common_validation: Corpus
    common_test: Corpus
    secret: Seed = field(repr=False)
    test: Corpus | None = None  # its own held-out texts, where every client has some
    # What all organisations share and the server lacks: the key of their hashed words. It holds as
    # long as none of them works with the server: one that does gives the key away, and any word can
    # then be tried out against the hashes.
    common_secret: Seed = field(default=b"", repr=False)
    # what it signs with, and what it knows the others by: their public identities came from them,
    # not from the server; None: unknown
    identity: Seed = field(default=b"", repr=False)
    pinned: Callable[[int], bytes | None] = field(default=lambda _: None, repr=False, compare=False)


@dataclass(frozen=True)
class Population:
    """All clients. They are made when asked for: ten thousand of them cost one list of row
    numbers.
    """

    train: Corpus  # client after client, the unseen ones last
    starts: IntArray  # (clients + unseen + 1,) where each begins
    common_validation: Corpus
    common_test: Corpus
    classes: int  # 0: the texts have no labels
    secret: Seed = field(repr=False)
    unseen: int = 0
    # where each client's own part of the common test set begins
    test_starts: IntArray | None = None
    # what the clients are called, where they are sources or users; for who runs the simulation: a
    # client does not know it, and it is in no message
    names: tuple[str, ...] = ()
    whole: int | None = None  # texts of the data set, blank ones too; None: all that there are
    held: int | None = None  # texts that were held out, where only some of them are scored
    here: bool = True  # the texts of all clients; in a deployment each organisation has its own

    def __len__(self) -> int:
        return len(self.starts) - 1 - self.unseen

    @property
    def seen_text(self) -> Corpus:
        """What the clients that train hold between them."""
        return self.train.take(np.arange(self.starts[len(self)]))

    @property
    def held_out(self) -> int:
        """How many texts nobody trains on, those of users who never train not counted."""
        scored = len(self.common_validation) + len(self.common_test)
        return scored if self.held is None else self.held

    def size(self, client: int) -> int:
        return int(self.starts[client + 1] - self.starts[client])

    @property
    def labels(self) -> tuple[str | int, ...]:
        """What the classes are called: by the data, or by their numbers."""
        names = self.train.label_names or ()
        return tuple(names[i] if i < len(names) else i for i in range(self.classes))

    def client(self, client: int) -> Client:
        rows = np.arange(self.starts[client], self.starts[client + 1])
        test = None
        if self.test_starts is not None:
            test = self.common_test.take(
                np.arange(self.test_starts[client], self.test_starts[client + 1])
            )
        return self._with(client, rows, test)

    def together(self, clients: Sequence[int]) -> Client:
        """One with the texts of all of these, as somebody sees them who sees their sum."""
        spans = [np.arange(self.starts[c], self.starts[c + 1]) for c in clients]
        return self._with(clients[0], np.concatenate(spans), None)

    def secret_of(self, client: int) -> Seed:
        """In a simulation one root stands for every client's own key."""
        return derive(self.secret, "client", client)

    def identity_of(self, client: int) -> Seed:
        return derive(self.secret_of(client), "identity")

    @property
    def common_secret(self) -> Seed:
        return derive(self.secret, "common")

    def pinned(self, client: int) -> bytes | None:
        """The public identity of anybody: in a simulation all know all."""
        return public_identity(self.identity_of(client))

    def newcomer(self) -> Client:
        """One more, who comes after all others and has no text yet."""
        return self._with(len(self.starts) - 1, np.arange(0), None)

    def _with(self, client: int, rows: IntArray, test: Corpus | None) -> Client:
        return Client(
            client,
            self.train.take(rows),
            self.common_validation,
            self.common_test,
            self.secret_of(client),
            test,
            self.common_secret,
            self.identity_of(client),
            self.pinned,
        )

    def pooled(self) -> "Population":
        """One client that holds what all of them hold."""
        text = self.seen_text
        tests = None if self.test_starts is None else self.test_starts[[0, -1]]
        return replace(
            self, train=text, starts=np.array([0, len(text)]), unseen=0, test_starts=tests, names=()
        )

    def trimmed(self, texts: int) -> "Population":
        """The same clients, each with its first so many texts."""
        sizes = np.minimum(np.diff(self.starts), texts)
        rows = np.concatenate(
            [start + np.arange(size) for start, size in zip(self.starts, sizes, strict=False)]
        )
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return replace(self, train=self.train.take(rows.astype(np.int64)), starts=starts)

    def sampled(self, limit: int | None) -> "Population":
        """The same clients, scored on at most `limit` texts of each common set, every class in its
        share.
        """
        if limit is None:
            return self
        return replace(
            self,
            common_validation=stratified(
                self.common_validation, limit, derive(self.secret, "sample", "validation")
            ),
            common_test=stratified(self.common_test, limit, derive(self.secret, "sample", "test")),
            held=self.held_out,
        )


def build(data: Data, seed: Seed, labels: bool = False, apart: bool = False) -> Population:
    """`labels`: they are what is learned, so texts without any are refused."""
    columns = Columns(data.text, data.label, data.user, data.source, attributes=data.attributes)
    corpus = load(data.name, columns)
    if labels and corpus.label_column is None:
        raise DataError(
            f"{data.name} has no labels (no column '{data.label}'), and a classifier learns them: "
            "name their column with data.label"
        )
    # embedded sets share one column: it holds more than this one
    return replace(parted(corpus, data, seed, apart), whole=len(corpus) + corpus.blanks)


def parted(corpus: Corpus, data: Data, seed: Seed, apart: bool = False) -> Population:
    """The clients of a corpus, and the common sets that they are scored on.

    `apart`: where a client is a user, what it trains on is decided from its own texts alone. A
    promise to each user counts on that: one user more or less must move nobody else's update.
    """
    if data.labels:
        corpus = with_stated(corpus, data.labels, data.name)
    classes = check_labels(corpus, len(data.labels) or data.classes, data.name)
    apart = apart and data.partition == "user"
    if data.test_of == "each":
        return _with_own_tests(corpus, data, classes, seed, apart)
    train, test = split_test(corpus, data.test, derive(seed, "test"), apart)
    if len(train) == 0 and len(set(corpus)) == 1:
        raise DataError(
            f"{data.name}: no training text is left beside the test set: every text is the same"
        )
    train = _limited(train, data, derive(seed, "limit"), apart)
    train, validation = split_validation(
        corpus, train, data.validation, derive(seed, "validation"), apart
    )
    _require_texts(len(train), len(corpus), data)
    parts = part(train, data, derive(seed, "partition"), apart)
    order = partition.pieces(parts)
    return Population(
        train.take(order.order), order.starts, validation, test, classes, seed, data.unseen,
        names=names_of(train, parts, data),
    )  # fmt: skip


def _require_texts(train: int, whole: int, data: Data) -> None:
    clients = data.clients + data.unseen
    if clients > train:
        why = "held out" if data.limit is None else "held out, or beyond data.limit"
        raise DataError(
            f"{data.name} has only {whole:,} texts, and {train:,} are left to train on (the others "
            f"are {why}): too few for {clients:,} clients; bring more texts, or lower data.clients"
        )


def names_of(train: Corpus, parts: partition.Parts, data: Data) -> tuple[str, ...]:
    """What the data calls each client; who are several of one source are numbered."""
    column = {"user": train.users, "source": train.sources}.get(data.partition)
    if column is None:
        return ()
    entries = column.take(train.rows).to_pylist()
    names = [next((entries[i] for i in rows if entries[i] is not None), "") for rows in parts]
    often, met = Counter(names), Counter[str]()
    for place, name in enumerate(names):
        met[name] += 1
        names[place] = f"{name} ({met[name]})" if often[name] > 1 else name
    return tuple(names)


def _with_own_tests(
    corpus: Corpus, data: Data, classes: int, seed: Seed, apart: bool
) -> Population:
    """Every client holds out a share of its own texts; the common test set is all of them, client
    after client.
    """
    corpus = _limited(corpus, data, derive(seed, "limit"), apart)
    _require_texts(len(corpus), len(corpus), data)
    parts = part(corpus, data, derive(seed, "partition"), apart)
    names = names_of(corpus, parts, data)
    trains, tests = [], []
    for client, rows in enumerate(parts):
        own = derive(seed, "test") if apart else derive(seed, "test", client)
        rest, held = hold_out(corpus.take(rows), data.test, own, apart)
        if len(rest) == 0:
            raise DataError(
                f"client {names[client] if names else client} has no text left beside what it "
                "holds out; lower data.test or data.clients"
            )
        trains.append(rest)
        tests.append(held)
    starts, test_starts = (
        np.cumsum([0, *map(len, texts)]).astype(np.int64) for texts in (trains, tests)
    )
    train = replace(corpus, rows=np.concatenate([text.rows for text in trains]))
    test = replace(corpus, rows=np.concatenate([text.rows for text in tests]))
    nothing = corpus.take(np.arange(0))
    return Population(train, starts, nothing, test, classes, seed, data.unseen, test_starts, names)


def _limited(corpus: Corpus, data: Data, seed: Seed, apart: bool) -> Corpus:
    """At most `data.limit` texts. Apart, each user has an equal share of it, whoever the others
    are.
    """
    if data.limit is None:
        return corpus
    if not apart:
        return corpus.take(numpy_generator(seed).permutation(len(corpus))[: data.limit])
    share = data.limit // (data.clients + data.unseen)
    if share == 0:
        raise DataError(
            f"data.limit = {data.limit} leaves no text for each of {data.clients + data.unseen} "
            "users; raise it, or lower data.clients"
        )
    order, users = np.argsort(_fates(corpus, seed), kind="stable"), _users(corpus)
    taken: Counter[str | None] = Counter()
    kept = []
    for position in order.tolist():
        taken[users[position]] += 1
        if taken[users[position]] <= share:
            kept.append(position)
    return corpus.take(np.sort(np.array(kept, dtype=np.int64)))


def _users(corpus: Corpus) -> list[str | None]:
    if corpus.users is None:
        return [None] * len(corpus)
    return list(corpus.users.take(corpus.rows).to_pylist())


def _fates(corpus: Corpus, seed: Seed) -> npt.NDArray[np.float64]:
    """A number from [0, 1) for each text: a keyed hash of it and its user, so that it depends on
    nobody else, and the same text of the same user has the same one.
    """
    pairs = zip(_users(corpus), corpus, strict=True)
    return np.array(
        [int.from_bytes(derive(seed, user or "", text)[:6], "big") / 2**48 for user, text in pairs]
    )


def part(train: Corpus, data: Data, seed: Seed, apart: bool = False) -> partition.Parts:
    """Positions of each client's texts."""
    clients = data.clients + data.unseen
    if data.partition == "user":
        return partition.by_user(_entries(train, "users", data), clients, seed, apart)
    if data.partition == "source":
        return partition.by_source(
            _entries(train, "sources", data), clients, data.sourceless == "share", seed
        )
    if data.partition == "quantity":
        return partition.quantity(len(train), clients, data.alpha, seed)
    if data.partition == "iid":
        return partition.iid(len(train), clients, seed)
    if train.label_column is None:
        raise DataError(
            f"{data.name} has no labels to part by; set data.label, or data.partition = 'iid'"
        )
    return partition.dirichlet(train.labels, clients, data.alpha, data.prior, seed)


def _entries(corpus: Corpus, column: str, data: Data) -> list[str | None]:
    entries = getattr(corpus, column)
    if entries is None or entries.take(corpus.rows).null_count == len(corpus):
        raise DataError(
            f"{data.name} does not say the {data.partition} of a text; choose another "
            "data.partition"
        )
    return list(entries.take(corpus.rows).to_pylist())


def split_test(
    corpus: Corpus, share: float, seed: Seed, apart: bool = False
) -> tuple[Corpus, Corpus]:
    """The data's own split where it has one (its test set stays as it is), else a held-out
    share.
    """
    if corpus.splits is None:
        return hold_out(corpus, share, seed, apart)
    train, test = corpus.where("splits", "train"), corpus.where("splits", "test")
    if len(train) == 0 or len(test) == 0:
        raise DataError("the column 'split' must name 'train' and 'test' rows")
    return train, test


VALIDATION = ("validation", "valid", "dev")  # what data sets call it


def split_validation(
    corpus: Corpus, train: Corpus, share: float, seed: Seed, apart: bool = False
) -> tuple[Corpus, Corpus]:
    """Training and validation texts: the data's own split where it has one, else a share of the
    training texts.
    """
    if share and corpus.splits is not None:
        for name in VALIDATION:
            own = corpus.where("splits", name)
            if len(own):
                return train, own
    return hold_out(train, share, seed, apart)


def hold_out(
    corpus: Corpus, share: float, seed: Seed, apart: bool = False
) -> tuple[Corpus, Corpus]:
    """The rest, and a share of every class. A held-out text that occurs again in the rest is
    dropped from the rest. Apart, each text has its own chance, and only the same user's copies of
    it go with it.
    """
    if share == 0 or len(corpus) == 0:
        return corpus, corpus.take(np.arange(0))
    if apart:
        out = _fates(corpus, seed) < share
        return corpus.take(np.flatnonzero(~out)), corpus.take(np.flatnonzero(out))
    held = _of_every_class(corpus, share, seed)
    texts = list(corpus)
    known = {texts[i] for i in held}
    rest = np.array([i for i, text in enumerate(texts) if text not in known], dtype=np.int64)
    return corpus.take(rest), corpus.take(held)


def stratified(corpus: Corpus, limit: int, seed: Seed) -> Corpus:
    return (
        corpus
        if len(corpus) <= limit
        else corpus.take(_of_every_class(corpus, limit / len(corpus), seed))
    )


def _of_every_class(corpus: Corpus, share: float, seed: Seed) -> IntArray:
    """Positions of a share of every class, at least one text of each, in their old order."""
    rng = numpy_generator(seed)
    labels = (
        corpus.labels if corpus.label_column is not None else np.zeros(len(corpus), dtype=np.int64)
    )
    classes = [rng.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]
    return np.sort(
        np.concatenate([rows[: max(1, round(share * len(rows)))] for rows in classes])
    ).astype(np.int64)
