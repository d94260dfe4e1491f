"""What word vectors are worth: agreement with people, analogies, neighbours, and how alike two
tables are.

Similarity here is the cosine. A row of zeros, or one that is not of numbers, has no direction: its
cosine with everything is 0, so one such row can't turn a figure into NaN. No function holds more
than `CELLS` cosines at a time.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[Any]  # (V, d), any float type; a row's place is its word's id
Ids = npt.NDArray[np.int64]
Cosines = npt.NDArray[np.float32]

CELLS = 1 << 22  # of a matrix of cosines that is in memory at one time: 16 MB


@dataclass(frozen=True)
class Similarity:
    """Spearman's rho never stands alone: over fewer pairs, of more frequent words, it is easily
    higher.
    """

    spearman: float | None  # None where ranks have no meaning
    pairs: int
    found: int  # pairs of which both words are known: rho is over these

    @property
    def oov(self) -> float:
        return 1 - self.found / self.pairs if self.pairs else 0.0


@dataclass(frozen=True)
class Analogies:
    accuracy: float | None  # None if no question could be asked
    asked: int
    skipped: int


def similarity(
    ids: Mapping[str, int], vectors: Table, pairs: Iterable[tuple[str, str, float]]
) -> Similarity:
    """Spearman's rank correlation, with average ranks, of cosines and people's scores."""
    pairs = list(pairs)
    known = [
        (ids[one], ids[other], score) for one, other, score in pairs if one in ids and other in ids
    ]
    if len(known) < 3:
        return Similarity(None, len(pairs), len(known))
    ones, others, scores = (np.array(column) for column in zip(*known, strict=True))
    cosines = np.einsum(
        "nd,nd->n", _units(vectors[ones]), _units(vectors[others]), dtype=np.float64
    )
    # what is the same but for rounding, as a word and itself, shares its rank
    ranks = _ranks(cosines.round(6))
    return Similarity(_correlation(ranks, _ranks(scores)), len(pairs), len(known))


def analogies(
    ids: Mapping[str, int],
    vectors: Table,
    questions: Iterable[tuple[str, str, str, str, str]],
    most: int = 30_000,
) -> Analogies:
    """3CosAdd (Mikolov et al., 2013): the word nearest to b - a + c, the question's own three words
    excluded.

    The `most` most frequent words (ids below it) are the language of the test: what they can't
    express is skipped.
    """
    table = _units(vectors[:most])
    questions = list(questions)
    known = [
        row for _, *words in questions if max(row := [ids.get(word, most) for word in words]) < most
    ]
    right = sum(
        _right(table, block)
        for block in _blocks(np.array(known, dtype=np.int64).reshape(-1, 4), len(table))
    )
    return Analogies(right / len(known) if known else None, len(known), len(questions) - len(known))


def _right(table: Cosines, questions: Ids) -> int:
    """How many of some questions, rows of (a, b, c, d), are answered. A target of zeros is answered
    by chance only: no.
    """
    a, b, c, d = questions.T
    targets = table[b] - table[a] + table[c]  # (n, d)
    scores = targets @ table.T  # (n, V)
    np.put_along_axis(scores, questions[:, :3], -np.inf, axis=1)
    best = scores.argmax(1)
    possible = targets.any(1) & (scores.max(1) > -np.inf)
    return int(((best == d) & possible).sum())


def neighbours(
    ids: Mapping[str, int], words: Sequence[str], vectors: Table, query: str, k: int
) -> list[tuple[str, float]]:
    """The k words nearest to a word, the nearest first. A word that is unknown or has no direction
    has none.
    """
    if query not in ids or not _units(vectors[[ids[query]]]).any():
        return []
    found, cosines = nearest(vectors, [ids[query]], k)
    return [(words[i], float(value)) for i, value in zip(found[0], cosines[0], strict=True)]


def nearest(vectors: Table, rows: npt.ArrayLike, k: int) -> tuple[Ids, Cosines]:
    """For each of these rows its k nearest others and their cosines, (n, k), the nearest first;
    fewer if there are fewer.
    """
    rows, scales = np.asarray(rows, dtype=np.int64), _scales(vectors)
    k = max(0, min(k, len(vectors) - 1))
    if k == 0 or len(rows) == 0:
        return np.empty((len(rows), k), dtype=np.int64), np.empty((len(rows), k), dtype=np.float32)
    parts = [_nearest(vectors, scales, block, k) for block in _blocks(rows, len(vectors))]
    return np.concatenate([ids for ids, _ in parts]), np.concatenate(
        [cosines for _, cosines in parts]
    )


def _nearest(vectors: Table, scales: Cosines, rows: Ids, k: int) -> tuple[Ids, Cosines]:
    """The table stays as it is: a second one, of unit vectors, would be as large again."""
    cosines = np.asarray(_units(vectors[rows]) @ vectors.T, dtype=np.float32) * scales  # (n, V)
    cosines[:, scales == 0] = 0
    cosines[np.arange(len(rows)), rows] = -np.inf
    # (n, k), by id: so equal cosines stay in order
    found = np.sort(np.argpartition(cosines, -k, axis=1)[:, -k:], axis=1)
    values = np.take_along_axis(cosines, found, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    return np.take_along_axis(found, order, axis=1), np.take_along_axis(values, order, axis=1)


def overlap(one: Table, other: Table, rows: npt.ArrayLike, k: int = 10) -> float | None:
    """The mean share of common words among the k nearest in two tables whose rows are the same
    words.

    A row without a direction has no neighbours and shares none: two tables that both left it
    untrained do not agree on it.
    """
    if len(one) != len(other):
        raise ValueError(
            f"the tables have {len(one)} and {len(other)} rows: they are not of the same words"
        )
    rows = np.asarray(rows, dtype=np.int64)
    mine, theirs = nearest(one, rows, k)[0], nearest(other, rows, k)[0]
    if mine.size == 0:
        return None
    # a number of its own for each pair of a row and a neighbour
    first = np.arange(len(rows))[:, None] * len(one)
    common = np.isin(mine + first, theirs + first).mean(1)
    return float(np.mean(common * _units(one[rows]).any(1) * _units(other[rows]).any(1)))


def _lengths(vectors: Table) -> npt.NDArray[np.float64]:
    """Summed in double precision, which no square of a float overflows."""
    return np.asarray(
        np.sqrt(np.einsum("vd,vd->v", vectors, vectors, dtype=np.float64)), dtype=np.float64
    )


def _scales(vectors: Table) -> Cosines:
    """What brings each row to length one; 0 for a row without a direction."""
    lengths = _lengths(vectors)
    directed = np.isfinite(lengths) & (lengths > 0)
    return np.divide(1.0, lengths, out=np.zeros(len(vectors)), where=directed).astype(np.float32)


def _units(vectors: Table) -> Cosines:
    """Rows of length one, or of zeros."""
    lengths = _lengths(vectors)[:, None]
    directed = np.isfinite(lengths) & (lengths > 0)
    units = np.zeros(vectors.shape, dtype=np.float32)
    np.divide(vectors, lengths, out=units, where=directed, casting="same_kind")
    return units


def _blocks(rows: Ids, columns: int) -> Iterator[Ids]:
    """The rows in blocks of which a matrix with so many columns stays below `CELLS`."""
    step = max(1, CELLS // max(1, columns))
    return (rows[start : start + step] for start in range(0, len(rows), step))


def _ranks(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """From 1; equal values share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place], dtype=np.float64)


def _correlation(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float | None:
    one, other = one - one.mean(), other - other.mean()
    spread = np.sqrt((one @ one) * (other @ other))
    return float(one @ other / spread) if spread > 0 else None
