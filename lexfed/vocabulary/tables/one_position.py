"""Public tables of different origin in one position, by the words that they share.

    X, Y   <- rows of the shared words in the other and in the first table, whitened
    Q      <- the rotation that brings X nearest to Y                      (Procrustes)
    x      <- whitened(x) Q, with the mean and covariance of the first table's shared words

(Of tables of unequal width that is so in as many directions as the narrower one has.) A row that
only the other table has may lie where no shared word does, and would be stretched without end: none
becomes more than twice as long as the longest shared one.

A body that was trained above one table reads another only if its axes mean the same. The mapping is
made of public files alone. But what everybody can compute shelters nobody: a client whose table is
of another width has a private projection instead, which hides what its upload says in the table's
own terms. In one position, uploads are read as everybody's are: see `defences.rotation`.
"""

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

LONGEST = 2.0  # rows beside the longest shared one
EACH = 5  # shared words for each dimension: with fewer, words that are not shared land elsewhere


@dataclass(frozen=True, eq=False)
class MappedVectors:
    """x A + b, row by row as they are asked for: the array itself stays where it is. What is too
    long is shortened.
    """

    source: npt.NDArray[Any]  # (V, d)
    matrix: Tensor  # (d, d')
    shift: Tensor  # (d',)
    longest: float

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.source), self.matrix.shape[1]

    def __getitem__(self, rows: Any) -> npt.NDArray[np.float32]:
        x = read_rows(self.source, rows)
        with one_thread():
            moved = x @ self.matrix + self.shift
            lengths = torch.linalg.vector_norm(moved, dim=-1, keepdim=True)
            found: npt.NDArray[np.float32] = (
                moved * (self.longest / lengths).nan_to_num(1.0).clamp_max(1)
            ).numpy()
        return found


@lru_cache(maxsize=16)
def brought_to(first: PublicTable, other: PublicTable) -> PublicTable:
    """The other table as if it were of one origin with the first."""
    shared = [word for word in first.words if word in other.ids][:FREQUENT]
    if len(shared) < (least := EACH * max(first.dimension, other.dimension)):
        raise DataError(
            f"fedevocab.align: two tables of word vectors have {len(shared)} words in common, and "
            f"to bring one into the position of the other takes {least}; take other tables, or set "
            "fedevocab.align = false"
        )
    y, x = first.rows(shared), other.rows(shared)
    near, far, longest = Whitening.of(y), Whitening.of(x), LONGEST * float(y.norm(dim=1).max())
    with one_thread():
        y, x = near(y).double(), far(x).double()
        turn = aligned(x, y).double()
        turn *= y.norm() / (x @ turn).norm()
        matrix = far.matrix.double() @ turn @ near.back.double()
        shift = near.mean.double() - far.mean.double() @ matrix
    mapped = MappedVectors(other.vectors, matrix.float(), shift.float(), longest)
    return PublicTable(other.words, cast("npt.NDArray[Any]", mapped))
