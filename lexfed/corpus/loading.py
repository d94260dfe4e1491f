"""Corpora from tables: which column is what, and which rows count."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lexfed.core.errors import DataError, nearest
from lexfed.corpus.text import Corpus, IntArray


@dataclass(frozen=True)
class Columns:
    """What the columns of a table are called. All but the text may be absent."""

    text: str = "text"
    label: str = "label"
    user: str = "user"
    source: str = "source"
    split: str = "split"
    names: str = "label_name"  # what the classes are called, where their labels are numbers
    attributes: tuple[str, ...] = ()  # of the user: gender, age


def from_table(table: pa.Table, where: str, columns: Columns) -> Corpus:
    """A corpus of a table's columns: rows whose text is missing or blank are left out."""
    texts = text_column(table, columns.text, where, "set data.text")
    rows = np.flatnonzero(~blank(texts)).astype(np.int64)
    if len(rows) == 0:
        raise DataError(f"{where} holds no text: every row of '{columns.text}' is empty")
    users, sources, splits = (
        _strings(table, name, where) if name in table.column_names else None
        for name in (columns.user, columns.source, columns.split)
    )
    attributes = {
        name: table.column(name) for name in columns.attributes if name in table.column_names
    }
    corpus = Corpus(
        rows, texts, users=users, sources=sources, splits=splits, attributes=attributes,
        blanks=len(texts) - len(rows),
    )  # fmt: skip
    if columns.label not in table.column_names:
        return corpus
    corpus = _with_labels(corpus, table.column(columns.label), where)
    if corpus.label_names is None and columns.names in table.column_names:
        return _with_names(corpus, table.column(columns.names).to_pylist())
    return corpus


def text_column(table: pa.Table, name: str, where: str, advice: str) -> Any:
    """The texts of a table, row by row; `advice` is for who has named the wrong column."""
    if len(set(table.column_names)) < len(table.column_names):
        raise DataError(f"{where} has two columns of one name")
    if name not in table.column_names:
        known = nearest(name, table.column_names)
        raise DataError(f"{where} has no text column '{name}' ({known}); {advice}")
    return _strings(table, name, where)


def blank(texts: Any) -> npt.NDArray[np.bool_]:
    """Which texts are missing or white space, piece by piece: trimming copies."""
    parts = []
    for start in range(0, len(texts), _PIECE):
        some = pc.coalesce(texts.slice(start, _PIECE), pa.scalar("", texts.type))
        parts.append(
            pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(some)), 0).to_numpy(
                zero_copy_only=False
            )
        )
    return np.concatenate(parts) if parts else np.empty(0, dtype=bool)


_PIECE = 16_384


def _strings(table: pa.Table, name: str, where: str) -> Any:
    column = table.column(name)
    if column.type in (pa.string(), pa.large_string()) and column.num_chunks:
        return column.chunk(0) if column.num_chunks == 1 else column  # as it lies, mapped or not
    try:
        return pc.cast(column, pa.large_string()).combine_chunks()
    except pa.ArrowException as error:
        raise DataError(f"{where}: column '{name}' is {column.type}, not text") from error


def _with_labels(corpus: Corpus, column: Any, where: str) -> Corpus:
    """Whole numbers are classes as they stand (1.0 is one); strings are classes in alphabetical
    order, and so are false and true.
    """
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.string())
    if pa.types.is_floating(column.type):
        column = _whole(column, where)
    if column.null_count:
        raise DataError(
            f"{where}: row {pc.index(pc.is_null(column), True).as_py() + 1} has no label"
        )
    if pa.types.is_integer(column.type):
        return replace(corpus, label_column=_numbers(column))
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        names = tuple(sorted(pc.unique(column).to_pylist()))
        labels = _numbers(pc.index_in(column, pa.array(names, column.type)))
        return replace(corpus, label_column=labels, label_names=names)
    raise DataError(f"{where}: labels are {column.type}; whole numbers or names are expected")


def _whole(column: Any, where: str) -> Any:
    """Numbers with a point that are whole all the same: what a spreadsheet makes of labels."""
    values = column.to_numpy()
    strange = np.flatnonzero(~np.isnan(values) & (values != np.trunc(values)))
    if len(strange):
        raise DataError(
            f"{where}: row {strange[0] + 1} has a label that is no whole number; classes are whole "
            "numbers or names"
        )
    return pc.cast(column, pa.int64(), safe=False)


def _with_names(corpus: Corpus, names: Sequence[Any]) -> Corpus:
    """What the numbers stand for, if a name stands beside each, always the same and its own."""
    pairs = set(zip(_all_labels(corpus), names, strict=True))
    by_number = dict(pairs)
    ours = all(isinstance(name, str) for name in by_number.values())
    if not ours or len({name for _, name in pairs}) < len(pairs) or len(by_number) < len(pairs):
        return corpus
    if sorted(by_number) != list(range(len(by_number))):
        return corpus
    return replace(corpus, label_names=tuple(by_number[i] for i in range(len(by_number))))


def _all_labels(corpus: Corpus) -> list[int]:
    return [] if corpus.label_column is None else corpus.label_column.tolist()


def _numbers(column: Any) -> IntArray:
    return np.asarray(column.to_numpy(), dtype=np.int64)


def with_stated(corpus: Corpus, names: Sequence[str], where: str) -> Corpus:
    """The same texts, their classes numbered and called as `data.labels` states them."""
    if corpus.label_column is None:
        return corpus
    if corpus.label_names is None:
        return replace(corpus, label_names=tuple(names))
    place = {name: number for number, name in enumerate(names)}
    numbers = np.array([place.get(name, -1) for name in corpus.label_names], dtype=np.int64)
    labels = numbers[corpus.label_column]
    strange = np.flatnonzero(labels[corpus.rows] < 0)
    if len(strange):
        row = int(corpus.rows[strange[0]])
        raise DataError(f"{where}: row {row + 1} has a label that data.labels does not name")
    return replace(corpus, label_column=labels, label_names=tuple(names))


def check_labels(corpus: Corpus, classes: int | None, where: str) -> int:
    """The number of classes; labels are 0 .. classes-1, and `classes` defaults to as many as occur.
    No labels: 0.
    """
    if corpus.label_column is None:
        return 0
    labels = corpus.labels
    if classes is None and len(np.unique(labels)) == 1:
        raise DataError(
            f"{where}: all {len(labels):,} texts have the same label, so there is nothing to learn"
        )
    count = len(np.unique(labels)) if classes is None else classes
    outside = np.flatnonzero((labels < 0) | (labels >= count))
    if len(outside):
        row = int(corpus.rows[outside[0]])
        raise DataError(
            f"{where}: row {row + 1} has label {labels[outside[0]]}, outside 0..{count - 1}; "
            "number the classes from 0, or set data.classes"
        )
    return count
