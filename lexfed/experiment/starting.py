"""`lexfed init`: a commented configuration to start from, with only the keys that matter.

It looks at the data: which column is the text, which the label, who wrote a text, how many there
are. What it found stands in the file, as a comment beside the key that follows from it.
"""

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from lexfed.core.errors import DataError, LexfedError
from lexfed.core.importing import is_own
from lexfed.core.seeds import derive, root
from lexfed.corpus import population
from lexfed.corpus.catalogue import CATALOGUE, FOLDER, load
from lexfed.corpus.loading import Columns
from lexfed.corpus.population import Data, Population
from lexfed.corpus.table_files import read_file
from lexfed.corpus.text import Corpus
from lexfed.learning.defences import enough_words, readable
from lexfed.vocabulary.word import public_text

Question = Literal["private", "agreed", "learned", "audit"]
EMBEDDED: Mapping[Question, str] = {
    "private": "imdb", "agreed": "movie_reviews", "learned": "imdb", "audit": "rotten_tomatoes",
}  # fmt: skip
LABELS = ("label", "class", "category", "sentiment", "target", "stars", "rating", "topic", "y")
USERS = (
    "user",
    "author",
    "user_id",
    "userid",
    "author_id",
    "customer",
    "patient",
    "writer",
    "name",
)
SOURCES = (
    "source", "site", "organisation", "organization", "hospital", "clinic", "branch", "department",
    "community", "subreddit",
)  # fmt: skip
TEXTS = ("text", "sentence", "content", "body", "review", "comment", "tweet", "message")
FEW = 5  # texts of a user: with fewer, a user is too little to be a client that learns
VECTORS = "glove_6b_100d_top100k.npz"  # if it lies in the data folder


@dataclass(frozen=True)
class Seen:
    """What was found in the data."""

    name: str
    text: str = "text"
    label: str | None = None
    user: str | None = None
    source: str | None = None
    texts: int = 0
    classes: int = 0
    users: int = 0
    sources: int = 0
    columns: tuple[str, ...] = ()  # of a file, all there are


@dataclass(frozen=True)
class Told:
    """What the user says the columns are called; the others are guessed."""

    text: str | None = None
    label: str | None = None
    user: str | None = None
    source: str | None = None


def look(name: str, told: Told | None = None) -> Seen:
    """At a data set of the catalogue, a file or a folder."""
    told = told or Told()
    if name in CATALOGUE:
        return _known(name, load(name))
    table = read_file(Path(os.path.expanduser(name)))
    if not len(table):
        raise DataError(f"{name} has no rows: there are no texts")
    for column in filter(None, (told.text, told.label, told.user, told.source)):
        if column not in table.column_names:
            raise DataError(f"{name} has no column '{column}'; its columns: {_listed(table)}")
    text = told.text or _pick(table, TEXTS) or _longest(table)
    if text is None:
        raise DataError(f"{name} has no column of texts; its columns: {_listed(table)}")
    label = told.label or _pick(table, LABELS, (text, told.user, told.source))
    user = told.user or _pick(table, USERS, (text, label, told.source))
    source = told.source or _pick(table, SOURCES, (text, label, user))
    classes, users, sources = (_distinct(table, column) for column in (label, user, source))
    names = tuple(map(str, table.column_names))
    return Seen(
        name, text, label, user, source, len(table), classes, users, sources, columns=names
    )  # fmt: skip


def columns(name: str, told: Told | None = None) -> Columns:
    """What the columns of a data set are called, as `init` would guess."""
    if name in CATALOGUE or is_own(name):
        return Columns()
    seen, usual = look(name, told), Columns()
    return Columns(seen.text, seen.label or usual.label, seen.user or usual.user,
                   seen.source or usual.source)  # fmt: skip


def _known(name: str, corpus: Corpus) -> Seen:
    classes = 0 if corpus.label_column is None else len(set(corpus.labels.tolist()))
    users, sources = (
        0 if column is None else pc.count_distinct(column.take(corpus.rows)).as_py()
        for column in (corpus.users, corpus.sources)
    )
    return Seen(
        name, label="label" if classes else None, user="user" if users else None,
        source="source" if sources else None, texts=len(corpus), classes=classes, users=users,
        sources=sources,
    )  # fmt: skip


def _pick(table: pa.Table, names: Sequence[str], besides: Sequence[str | None] = ()) -> str | None:
    """The column that is called so; upper case does not matter."""
    for name in names:
        for column in table.column_names:
            if column.lower() == name and column not in besides:
                return str(column)
    return None


def _longest(table: pa.Table) -> str | None:
    """The column of the longest strings."""
    lengths = {
        column: pc.mean(pc.utf8_length(table.column(column))).as_py() or 0.0
        for column in table.column_names
        if pa.types.is_string(table.column(column).type)
        or pa.types.is_large_string(table.column(column).type)
    }
    return max(lengths, key=lambda column: lengths[column]) if lengths else None


def _distinct(table: pa.Table, column: str | None) -> int:
    return 0 if column is None else int(pc.count_distinct(table.column(column)).as_py())


def _listed(table: pa.Table) -> str:
    return ", ".join(map(str, table.column_names[:12])) or "none"


# --- what is written -----------------------------------------------------------------------------

PRIVATE = """\
# Private: every client keeps its words and its word table. The rest of the model travels.
# Run it:   lexfed run THIS.toml
# Compare:  lexfed run THIS.toml --set method=fedavg --set defences.rotation=none \\
#               --set defences.whiten=false
name = "private"
rounds = 20
method = "fedevocab"

[data]
{data}

[vocabulary]
vectors = "{vectors}"     # public vectors to start from: a GloVe or word2vec file works, too

[model]
embedding = {dimension}          # as long as the vectors
hidden = 64

[cohort]
size = {cohort}                # clients of a round

[train]
lr = 5e-3
max_length = 128        # words of a text that are read

[defences]
rotation = "shared"     # clients turn their vectors by one secret, which the server lacks
whiten = true           # so that the rotation costs no accuracy
{minimum}

[evaluation]
every = 5               # rounds between two points of the curve
limit = 1000            # test texts that a client is scored on
"""

AGREED = """\
# Agreed: organisations agree on a word list, then train word vectors together.
# What each would reveal:  lexfed vocab agree THIS.toml
# Run it:                  lexfed run THIS.toml
name = "agreed"
rounds = 20
method = "federated_word2vec"

[data]
{data}
test_of = "each"
test = 0.1              # of each organisation's text, to score the vectors on

[agreement]
holders = 2             # organisations that hold a word before it is told
minimum = {minimum}              # occurrences of a word in all text together

[word2vec]
dimension = 100
epochs = {epochs}              # passes over the text, in all rounds; little text wants more

[cohort]
sampling = "everyone"
"""

LEARNED = """\
# Learned: a language model is trained with differential privacy. Text that is sampled from it
# trains a new tokenizer, for which no more privacy is spent.
# What noise a promise takes:  lexfed privacy plan
# Run it:                      lexfed run THIS.toml
name = "learned"
rounds = 40
method = "tokenizer_for_free"

[data]
{data}
unseen = {unseen}             # users who never train: the model is scored on them
test = 0.0
validation = 0.0

[tokenizer]
public = "{public}"        # public text, from which the first tokenizer is learned
size = 2000
lowercase = true

[language_model]
width = 64

[tokenizer_for_free]
switch = [20]           # rounds after which a new tokenizer is learned
# words that the old model writes for the new one to learn from, before users see it: no privacy is
# spent on them
teach_words = 500_000

[cohort]
size = {cohort}
sampling = "poisson"    # every user by a secret coin, as the account assumes

[train]
optimizer = "sgd"
lr = 0.5
batch = 16

[server]
optimizer = "adam"
lr = 0.01

[privacy]
placement = "central"   # the server adds the noise; "local", "distributed": users do
clip = 0.5              # the longest update
epsilon = 2.0
delta = 1e-8            # far below one in all users
noise_cohort = 20000    # this small simulation carries the noise of a deployment with such cohorts
population = 10000000   # and so many users
"""

AUDIT = """\
# Audit: what do uploads give away, with and without a defence?
# Run it:  lexfed audit THIS.toml
name = "audit"
method = "fedevocab"

[data]
{data}

[vocabulary]
vectors = "{vectors}"     # the public table that an attacker has, too

[model]
embedding = {dimension}
hidden = 64

[audit]
methods = ["fedavg", "fedevocab"]
defences = ["none", "defences.rotation=shared"]
sentences = [2, 16]     # texts of a client
clients = 2
"""


def write(question: Question, seen: Seen) -> str:
    """The configuration, as a file has it."""
    if question in ("private", "audit") and seen.classes < 2:
        if seen.classes:
            raise DataError(
                f"all texts of {seen.name} have the same label: there is nothing to learn; if "
                f"another column has the labels, name it with --label{_of(seen.columns)}"
            )
        raise DataError(
            f"{seen.name} has no labels to learn: no column is called {', '.join(LABELS[:4])} ...; "
            f"name it with --label{_of(seen.columns)}; for texts alone: lexfed init agreed, or "
            "lexfed init learned"
        )
    return {"private": _private, "agreed": _agreed, "learned": _learned, "audit": _audit}[question](
        seen
    )


def _of(columns: tuple[str, ...]) -> str:
    return f" (its columns: {', '.join(columns[:12])})" if columns else ""


def _private(seen: Seen) -> str:
    kind, clients, why = _parted(seen, least=10, most=100)
    vectors, dimension = _vectors()
    cohort = max(1, min(10, clients // 2))
    data = _data(seen, kind, clients, why, labelled=True)
    return PRIVATE.format(
        data=data, vectors=vectors, dimension=dimension, cohort=cohort,
        minimum=_minimum(readable(_population(data), dimension), enough_words(dimension)),
    )  # fmt: skip


def of_few_words(name: str, told: Told) -> Iterator[str]:
    """What `init private` would warn of, where there is something to classify."""
    seen = None if is_own(name) else look(name, told)
    if seen is None or seen.classes < 2:
        return
    kind, clients, why = _parted(seen, least=10, most=100)
    try:
        people = _population(_data(seen, kind, clients, why, labelled=True))
    except LexfedError:  # too little of it to be parted: `init` says so
        return
    if few := readable(people, _vectors()[1]):
        yield f"as `lexfed init private` would part them, {few}"


def _population(data: str) -> Population:
    return population.build(Data(**tomllib.loads(data)), derive(root(0), "data"))


def _minimum(few: str, enough: int) -> str:
    """Where no client has enough words, nobody would send anything and nothing would be learned."""
    if not few:
        return (
            f"minimum_words = {enough}     # different words; who has fewer sends nothing: such "
            "uploads can be read"
        )
    return (
        f"minimum_words = 0       # {NOTE}{few}.\n# With minimum_words = {enough} nobody would "
        "send anything, so it is 0: fine to try things out on one machine.\n# Before real texts "
        "take part, give each client more text, or join small clients into one."
    )


NOTE = "note: "  # of a comment that the command repeats


def notes(text: str) -> list[str]:
    """What a user should read before the first run: comments that begin so."""
    return re.findall(rf"# ({NOTE}.+(?:\n# .+)*)", text)


def _agreed(seen: Seen) -> str:
    kind, clients, why = "iid", 5, "no column says whose a text is, so they are parted by chance"
    if seen.sources > 1:
        kind, clients, why = "source", seen.sources, "an organisation for each source"
    data = _data(seen, kind, clients, why, labelled=False)
    minimum, epochs = (10, 2) if seen.texts > 5000 else (3, 20)
    return AGREED.format(data=data, minimum=minimum, epochs=epochs)


def _learned(seen: Seen) -> str:
    kind, users, why = "iid", max(12, seen.texts // 5), "no column says who wrote a text"
    if seen.users >= 12:
        kind, users, why = "user", seen.users, f"there are {seen.users:,} users"
    unseen = max(2, users // 10)
    data = _data(seen, kind, users - unseen, why, labelled=False)
    cohort = max(2, min((users - unseen) // 5, 200))
    return LEARNED.format(data=data, unseen=unseen, public=public_text(seen.name), cohort=cohort)


def _audit(seen: Seen) -> str:
    vectors, dimension = _vectors()
    clients = max(2, min(12, seen.texts // 20))
    data = _data(seen, "iid", clients, "parted by chance", labelled=True)
    return AUDIT.format(data=data, vectors=vectors, dimension=dimension)


def _data(seen: Seen, kind: str, clients: int, why: str, labelled: bool) -> str:
    """The keys of `[data]`, with the columns where they are not called as usual."""
    columns = {"text": seen.text, "user": seen.user, "source": seen.source}
    columns |= {"label": seen.label} if labelled else {}
    name = seen.name
    if name not in CATALOGUE:
        name = str(Path(os.path.expanduser(name)).resolve())
    lines = [f"name = {json.dumps(name)}", f"# {seen.texts:,} texts; {why}"]
    lines += [f"{k} = {json.dumps(c)}" for k, c in columns.items() if c is not None and c != k]
    return "\n".join([*lines, f'partition = "{kind}"', f"clients = {clients}"])


def _parted(seen: Seen, least: int, most: int) -> tuple[str, int, str]:
    """By whom the texts lie apart already; else by chance."""
    if 1 < seen.sources <= most:
        return "source", seen.sources, "a client for each source"
    if seen.users >= least and seen.texts >= FEW * seen.users:
        return "user", min(seen.users, most), f"a client is a user; there are {seen.users:,}"
    clients = max(2, min(20, seen.texts // 50))
    why = "no column says whose a text is"
    if seen.users:
        why = f"{seen.users:,} users are too few, or have too few texts each, to be clients"
    return "dirichlet", clients, f"{why}, so they are parted by chance"


def _vectors() -> tuple[str, int]:
    folder = os.environ.get(FOLDER)
    there = bool(folder) and (Path(str(folder)) / VECTORS).is_file()
    return (VECTORS, 100) if there else ("hashed:64", 64)
