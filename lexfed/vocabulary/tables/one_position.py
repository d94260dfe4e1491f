"""Public tables of different origin in one position, by the words that they share.

    X, Y   <- rows of the shared words in the other and in the first table, whitened
    Q      <- the rotation that brings X nearest to Y                      (Procrustes)
    x      <- whitened(x) Q, with the mean and covariance of the first table's shared words

A narrower table fills as many directions as it has, each as widely as the first does; in the others
its words stay at the mean. A row that only the other table has may lie where no shared word does,
and would be stretched without end: none comes to lie more than twice as far from the mean as the
farthest shared one.

A body that was trained above one table reads another only if its axes mean the same. The mapping is
made of public files alone. But what everybody can compute shelters nobody: a client whose table is
of another width has a private projection instead, which hides what its upload says in the table's
own terms. In one position, uploads are read as everybody's are: see `defences.rotation`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lexfed.core.devices import one_thread
from lexfed.core.errors import DataError
from lexfed.vocabulary.tables.rotation import FREQUENT, Whitening, aligned, read_rows
from lexfed.vocabulary.tables.vectors import PublicTable

FARTHEST = 2.0  # rows from the mean, beside the farthest shared one
EACH = 5  # shared words for each dimension: with fewer, words that are not shared land elsewhere


@dataclass(frozen=True, eq=False)
class MappedVectors:
    """(x - m) A + m', row by row as they are asked for: the array itself stays where it is. What
    comes to lie too far from m' is drawn nearer: in directions that are empty it stays there.
    """

    source: npt.NDArray[Any]  # (V, d)
    mean: Tensor  # (d,)
    matrix: Tensor  # (d, d')
    middle: Tensor  # (d',)
    farthest: float

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.source), self.matrix.shape[1]

    def __getitem__(self, rows: Any) -> npt.NDArray[np.float32]:
        x = read_rows(self.source, rows)
        with one_thread():
            moved = (x - self.mean) @ self.matrix
            lengths = torch.linalg.vector_norm(moved, dim=-1, keepdim=True)
            near = (self.farthest / lengths).nan_to_num(1.0).clamp_max(1)
            found: npt.NDArray[np.float32] = (self.middle + moved * near).numpy()
        return found


@lru_cache(maxsize=16)
def brought_to(first: PublicTable, other: PublicTable) -> PublicTable:
    """The other table as if it were of one origin with the first."""
    shared = [word for word in first.words if word in other.ids][:FREQUENT]
    if len(shared) < (least := EACH * max(first.dimension, other.dimension)):
        raise DataError(
            f"fedevocab.align: a table of word vectors has {len(shared)} words in common with the "
            f"first one in fedevocab.vectors, and to bring it into that one's position takes "
            f"{least}; take another table, or set fedevocab.align = false"
        )
    y, x = first.rows(shared), other.rows(shared)
    near, far = Whitening.of(y), Whitening.of(x)
    farthest = FARTHEST * float((y - near.mean).norm(dim=1).max())
    with one_thread():
        y, x = near(y).double(), far(x).double()
        turn = aligned(x, y).double()
        turn *= _each_direction(y) / _each_direction(x)
        matrix = far.matrix.double() @ turn @ near.back.double()
    mapped = MappedVectors(other.vectors, far.mean, matrix.float(), near.mean, farthest)
    return PublicTable(other.words, cast("npt.NDArray[Any]", mapped))


def _each_direction(whitened: Tensor) -> Tensor:
    """How far rows reach in any one direction: they reach as far in each."""
    reach: Tensor = whitened.norm() / whitened.shape[1] ** 0.5
    return reach


def joined(tables: Sequence[PublicTable], size: int) -> PublicTable:
    """So many words of several tables in one position, the most frequent of each first. A word that
    several have is that of the table in which it stands higher up.
    """
    where: dict[str, tuple[int, int]] = {}
    for rank in range(max(len(table.words) for table in tables)):
        for number, table in enumerate(tables):
            if rank < len(table.words):
                where.setdefault(table.words[rank], (number, rank))
        if len(where) >= size:
            break
    words, places = tuple(where)[:size], np.array(list(where.values())[:size])
    rows = np.empty((len(places), tables[0].dimension), dtype=np.float32)
    for number, table in enumerate(tables):
        mine = places[:, 0] == number
        rows[mine] = table.vectors[places[mine, 1]]
    return PublicTable(words, rows)
