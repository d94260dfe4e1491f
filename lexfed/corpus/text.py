"""A corpus: texts that can be counted and read again and again, with what is known about each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
Column = Any  # a pyarrow string column: read-only, shared by every corpus cut from it


@dataclass(frozen=True, eq=False)
class Corpus:
    """Rows of shared columns: ten thousand clients' corpora cost ten thousand row lists, not copies
    of the text.
    """

    rows: IntArray
    texts: Column
    label_column: IntArray | None = None
    users: Column | None = None
    sources: Column | None = None
    splits: Column | None = None
    label_names: tuple[str, ...] | None = None
    # of the user, by name: truth for an audit, never sent
    attributes: Mapping[str, Column] = field(default_factory=dict)
    blanks: int = 0  # rows of the table that hold no text, and are left out

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[str]:
        # in pieces: a corpus may be larger than we want as Python strings
        for start in range(0, len(self.rows), 1024):
            yield from gathered(self.texts, self.rows[start : start + 1024])

    @property
    def labels(self) -> IntArray:
        if self.label_column is None:
            raise ValueError("this corpus has no labels")
        return self.label_column[self.rows]

    def take(self, positions: IntArray) -> "Corpus":
        """The corpus of these positions, in their order."""
        return replace(self, rows=self.rows[positions])

    def where(self, column: str, value: str) -> "Corpus":
        """The texts whose `users`, `sources` or `splits` entry is this one."""
        entries, found = getattr(self, column), [np.empty(0, dtype=np.int64)]
        for start in range(0, len(self.rows), _PIECE):
            some = gathered(entries, self.rows[start : start + _PIECE])
            found.append(start + np.flatnonzero([entry == value for entry in some]))
        return self.take(np.concatenate(found))


_PIECE = 16_384


def gathered(column: Column, rows: IntArray) -> list[Any]:
    """The entries of a column in these rows.

    A column of a file lies in pieces, and pyarrow's own `take` first puts all of them together:
    then a client's two texts would cost as much as the texts of everybody.
    """
    pieces = getattr(column, "chunks", None) or [column]
    if len(pieces) == 1:
        return list(pieces[0].take(rows).to_pylist())
    ends = np.cumsum([len(piece) for piece in pieces])
    where = np.searchsorted(ends, rows, side="right")
    found: list[Any] = [None] * len(rows)
    for number in np.unique(where):
        places, piece = np.flatnonzero(where == number), pieces[number]
        inside = rows[places] - (ends[number] - len(piece))
        for place, entry in zip(places, piece.take(inside).to_pylist(), strict=True):
            found[place] = entry
    return found
