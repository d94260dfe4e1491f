"""Exact word counts of corpora that have more words than fit into memory.

A table of at most `limit` words; when it is full it becomes a sorted run on disk, and the runs are
merged as they are read.
"""

import heapq
import math
import os
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from lexfed.core.seeds import Seed, derive, numpy_generator
from lexfed.vocabulary.splitting import words

LIMIT = 1_000_000  # words: some 100 MB
_PIECE = 4096  # words counted at a time
_RUNS = 64  # open files

Counted = tuple[str, int]


class Run:
    """Sorted words and counts in a file that has no name: only this process can open it, and no
    crash leaves it behind.
    """

    def __init__(self, items: Iterable[Counted]) -> None:
        file = tempfile.TemporaryFile(prefix="lexfed-")  # noqa: SIM115
        weakref.finalize(self, file.close)
        file.writelines(f"{word}\t{count}\n".encode() for word, count in items)
        file.flush()
        self._descriptor = file.fileno()

    def __iter__(self) -> Iterator[Counted]:
        offset, rest = 0, b""
        while block := os.pread(self._descriptor, 1 << 16, offset):
            offset += len(block)
            *lines, rest = (rest + block).split(b"\n")
            for word, _, count in (line.rpartition(b"\t") for line in lines):
                yield word.decode(), int(count)


@dataclass(frozen=True, eq=False)
class Counts:
    """Words in alphabetical order, each with its count: read it as often as you like."""

    runs: tuple[Run, ...]
    rest: Counter[str]
    total: int  # running words counted
    left_out: int  # running words longer than allowed

    def __iter__(self) -> Iterator[Counted]:
        rest = sorted(self.rest.items())
        return _merged([rest, *self.runs]) if self.runs else iter(rest)

    def most_frequent(self, top: int, minimum: int = 1) -> list[Counted]:
        """At most `top` words with at least `minimum` occurrences, most frequent first (ties in
        alphabetical order).
        """
        enough = (item for item in self if item[1] >= minimum)
        return heapq.nsmallest(top, enough, key=lambda item: -item[1])  # stable


def count(corpus: Iterable[str], limit: int = LIMIT, longest: int = 100) -> Counts:
    """Count the words of a corpus. What is longer than `longest` characters is no word: it is left
    out, and said so.
    """
    table: Counter[str] = Counter()
    runs: list[Run] = []
    total = left_out = 0
    for piece in _pieces(corpus, min(_PIECE, limit)):
        kept = (
            piece
            if max(map(len, piece)) <= longest
            else [word for word in piece if len(word) <= longest]
        )
        total, left_out = total + len(kept), left_out + len(piece) - len(kept)
        if len(table) + len(kept) > limit:
            runs.append(Run(sorted(table.items())))
            table.clear()
            runs = [Run(_merged(runs))] if len(runs) == _RUNS else runs
        table.update(kept)
    return Counts(tuple(runs), table, total, left_out)


def _pieces(corpus: Iterable[str], most: int) -> Iterator[list[str]]:
    for text in corpus:
        found = words(text)
        for start in range(0, len(found), most):
            yield found[start : start + most]


def _merged(runs: Iterable[Iterable[Counted]]) -> Iterator[Counted]:
    for word, same in groupby(heapq.merge(*runs), key=itemgetter(0)):
        yield word, sum(count for _, count in same)


def weigh(
    corpus: Iterable[str], released: Callable[[str], bool], most: int, longest: int, seed: Seed
) -> dict[str, float]:
    """Each text shares a weight of norm 1 among its distinct words that are not released, at most
    `most` of them by chance.

    What a text adds is a function of the seed and the text alone, so one text more or less moves
    the weights by norm 1 at most. All words have to be held: all of them are sent.
    """
    weights: dict[str, float] = {}
    for text in corpus:
        own = [
            word
            for word in dict.fromkeys(words(text))
            if len(word) <= longest and not released(word)
        ]
        if len(own) > most:
            own = [
                own[i]
                for i in numpy_generator(derive(seed, text)).choice(len(own), most, replace=False)
            ]
        for word in own:
            weights[word] = weights.get(word, 0.0) + 1 / math.sqrt(len(own))
    return weights
