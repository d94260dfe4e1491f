"""A secret rotation of public word vectors: x Q, with Q orthogonal, each as likely as any other
(Haar; Mezzadri, 2007).

    clients:   Q <- rotation(what they share and the server lacks, d)
               E_k <- rows x Q of the public table, turned as they are looked up
    attacker:  has the span of rows x Q and all rows x: none of them is nearer to it than chance

Whoever has Q reads everything: one client that works with the server is enough. So does who knows
about d pairs (x, x Q), by `aligned`; for an upload of n words a few more than n are enough. Lengths
and angles survive a rotation. Lengths can be made equal before it; angles can't, and a server that
has some ten uploads of few words after SGD finds Q by them alone (`gram` of an audit). So a
rotation is no shelter for clients with little text: hold those back (`defences.minimum_words`).

    whitened:  x <- (x - mean) C^-1/2 sqrt(tr C / d)    mean and covariance C of the table's most
                                                        frequent words

Real vectors lie along few axes, and Adam, which scales each number by itself, makes use of that:
turned, it learns more slowly. Whitened vectors have no axes, so turning them changes nothing. That
is true of a list in which every word stands once: as text uses words, the first axis is still there
for a server to find (`covariance` of an audit), and no more than that. Whitening is public: it
hides nothing by itself.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lexfed.core.devices import one_thread
from lexfed.core.errors import DataError
from lexfed.core.seeds import Seed, secret_normal
from lexfed.vocabulary.tables.vectors import PublicTable

TYPICAL = 1000  # the length of a row is that of the first so many, in the mean
FREQUENT = 20_000  # words whose mean and covariance are taken


@lru_cache(maxsize=16)
def rotation(secret: Seed, dimension: int) -> Tensor:  # (d, d)
    """The Q of a QR decomposition, its signs fixed by R's diagonal: without that it would not be
    uniform.
    """
    with one_thread():
        q, r = torch.linalg.qr(secret_normal(secret, dimension, dimension).double())
    turned: Tensor = (q * r.diagonal().sign()).float()
    return turned


def aligned(public: Tensor, rotated: Tensor) -> Tensor:  # (n, d), (n, d') -> (d, d')
    """The rotation that brings some rows nearest to others (Procrustes; Schoenemann, 1966): exact
    from d of full rank.
    """
    u, _, v = torch.linalg.svd(public.double().T @ rotated.double(), full_matrices=False)
    q: Tensor = (u @ v).float()
    return q


@dataclass(frozen=True, eq=False)
class Whitening:
    mean: Tensor  # (d,)
    matrix: Tensor  # (d, d)
    back: Tensor  # (d, d), the other way

    @staticmethod
    def of(rows: Tensor) -> "Whitening":  # (n, d)
        rows, mean = rows.double(), rows.double().mean(0)
        apart = rows - mean
        if not bool(apart.isfinite().all()) or not bool(apart.any()):
            raise DataError(
                "word vectors that are all alike, or no numbers, can neither be whitened "
                "(defences.whiten) nor brought into one position (fedevocab.align): take others"
            )
        with one_thread():
            values, axes = torch.linalg.eigh(apart.T @ apart / max(len(rows) - 1, 1))
        values = values.clamp_min(1e-6 * values[-1])  # a direction that no word has stays small
        grow = (values.mean() / values).sqrt()
        with one_thread():
            matrix, back = axes * grow @ axes.T, axes / grow @ axes.T
        return Whitening(mean.float(), matrix.float(), back.float())

    def __call__(self, x: Tensor) -> Tensor:
        return (x - self.mean) @ self.matrix


@lru_cache(maxsize=16)
def whitening(public: PublicTable) -> Whitening:
    return Whitening.of(read_rows(public.vectors, slice(FREQUENT)))


def read_rows(source: npt.NDArray[Any], rows: Any) -> Tensor:
    return torch.tensor(np.asarray(source[rows], dtype=np.float32))


@dataclass(frozen=True, eq=False)
class RotatedVectors:
    """The rows of an array, each turned when it is asked for: the array itself stays where it is,
    for all to share. By one thread: the last bits would tell how many there are.
    """

    source: npt.NDArray[Any]  # (V, d)
    rotation: Tensor | None  # (d, d)
    length: float | None  # of every row; None: as it is
    whiten: Whitening | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape

    def __getitem__(self, rows: Any) -> npt.NDArray[np.float32]:
        x = read_rows(self.source, rows)
        with one_thread():
            if self.whiten is not None:
                x = self.whiten(x)
            if self.length is not None:
                norms = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
                x = x * (self.length / norms.clamp_min(torch.finfo(x.dtype).tiny))
            found: npt.NDArray[np.float32] = (
                x if self.rotation is None else x @ self.rotation
            ).numpy()
        return found


@dataclass(frozen=True, eq=False)
class RotatedTable:
    """A public table as its clients see it; from outside it is like a `PublicTable`."""

    public: PublicTable
    rotation: Tensor | None
    normalise: bool
    whiten: Whitening | None

    @property
    def words(self) -> tuple[str, ...]:
        return self.public.words

    @property
    def ids(self) -> Mapping[str, int]:
        return self.public.ids

    @property
    def dimension(self) -> int:
        return self.public.dimension

    @cached_property
    def vectors(self) -> RotatedVectors:
        length = None
        # one length for all, the usual one: training starts from numbers of the usual size
        if self.normalise:
            head = np.asarray(self.public.vectors[:TYPICAL], dtype=np.float32)
            length = float(np.sqrt(np.square(head).sum(1).mean()))
        return RotatedVectors(self.public.vectors, self.rotation, length, self.whiten)

    def head(self, size: int) -> "RotatedTable":
        return replace(self, public=self.public.head(size))

    def rows(self, words: Iterable[str]) -> Tensor:
        ids = [self.ids[word] for word in words]
        return torch.from_numpy(self.vectors[ids]).reshape(len(ids), self.dimension)


@lru_cache(maxsize=64)
def rotated(
    public: PublicTable, rotation: Tensor | None, normalise: bool = False, whiten: bool = False
) -> PublicTable:
    """The table for readers, which look words up in a `PublicTable` and need not know that its rows
    were turned.
    """
    if rotation is None and not normalise and not whiten:
        return public
    return cast(
        PublicTable,
        RotatedTable(public, rotation, normalise, whitening(public) if whiten else None),
    )
