"""How organisations agree on one word list: rules on what they propose.

A proposal is a word (or its keyed hash) with its count. The rules never ask which of the two it is,
so the server can choose among hashes and learn only the words that were chosen.

`Vocabulary.tokens` are plain words here, without `<unk>`: a word vector is a word's, and what is
not in the list has none.
"""

import heapq
import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import TypeVar

from lexfed.core.errors import DataError, PrivacyError
from lexfed.core.seeds import Seed
from lexfed.vocabulary.word import Vocabulary

K = TypeVar("K", str, bytes)  # a word, or its hash

HASH = 16  # bytes


def union(proposals: Sequence[Collection[K]]) -> dict[K, int]:
    """The paper's rule: what anybody proposes. A word that one organisation alone holds is shown to
    all.
    """
    return dict.fromkeys(sorted({word for proposal in proposals for word in proposal}), 0)


def intersection(proposals: Sequence[Collection[K]]) -> dict[K, int]:
    """The paper's other rule: what everybody proposes."""
    first, *others = proposals or [[]]
    return dict.fromkeys(
        sorted(word for word in first if all(word in other for other in others)), 0
    )


def summed(
    proposals: Sequence[Mapping[K, int]],
    minimum: int,
    holders: int,
    size: int | None = None,
    rest: float = 0.0,
) -> dict[K, int]:
    """What at least `holders` organisations propose, and occurs at least `minimum` times in all
    their text together, `rest` of them without the `holders` - 1 that say most: so many liars can
    lift nothing.
    """
    counts: Counter[K] = Counter()
    held: Counter[K] = Counter()
    for proposal in proposals:
        counts.update(proposal)
        held.update(proposal.keys())
    enough = {word: n for word, n in counts.items() if n >= minimum and held[word] >= holders}
    if rest > 0:
        enough = {
            word: n for word, n in enough.items() if n - _loudest(proposals, word, holders) >= rest
        }
    return largest(enough, size)


def _loudest(proposals: Sequence[Mapping[K, int]], word: K, holders: int) -> int:
    return sum(heapq.nlargest(holders - 1, (p[word] for p in proposals if word in p)))


def coarse(count: int) -> int:
    """What is told of a count: 1, 2, 4, 8, 16, and from there on two steps to a doubling (23, 32,
    45, ...), the nearest by ratio. On film reviews whole doublings cost three times the loss.
    """
    steps = 1 if count < 16 else 2
    return round(2 ** (round(steps * math.log2(count)) / steps))


def largest(counts: Mapping[K, int], size: int | None) -> dict[K, int]:
    """The `size` most frequent; of those that tie, the first by name. No more is told."""
    if size is None or len(counts) <= size:
        return dict(counts)
    return dict(heapq.nsmallest(size, counts.items(), key=lambda item: (-item[1], item[0])))


def ordered(counts: Mapping[str, int]) -> Vocabulary:
    """Most frequent first, ties in alphabetical order (so all of it, where counts were not
    shared).
    """
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return Vocabulary(tuple(word for word, _ in ranked), tuple(count for _, count in ranked))


def extend(old: Vocabulary, new: Vocabulary) -> Vocabulary:
    """The old words with their ids, the new ones behind them: rows that were trained stay where
    they are. Counts add up.
    """
    added = [i for i, word in enumerate(new.tokens) if word not in old.ids]
    counts = [count + _count(new, word) for word, count in zip(old.tokens, old.counts, strict=True)]
    tokens = (*old.tokens, *(new.tokens[i] for i in added))
    return Vocabulary(tokens, (*counts, *(new.counts[i] for i in added)), old.version + 1)


def renew(old: Vocabulary, new: Vocabulary) -> Vocabulary:
    """Extend, where all who made the old list propose again: their counts are in the new ones, and
    don't count twice.
    """
    counts = tuple(
        0 if word in new.ids else count for word, count in zip(old.tokens, old.counts, strict=True)
    )
    return extend(Vocabulary(old.tokens, counts, old.version), new)


def _count(vocabulary: Vocabulary, word: str) -> int:
    place = vocabulary.ids.get(word)
    return 0 if place is None else vocabulary.counts[place]


def keyed(word: str, key: Seed) -> bytes:
    """A word as those see it who lack the key: they can tell that two are the same, and cannot try
    words out.
    """
    if not key:
        raise PrivacyError(
            "words can't be hashed without a secret that the organisations share: anyone could "
            "try words out"
        )
    return blake2b(word.encode(), key=key, digest_size=HASH).digest()


def to_bytes(vocabulary: Vocabulary) -> bytes:
    fields = {
        "version": vocabulary.version,
        "tokens": vocabulary.tokens,
        "counts": vocabulary.counts,
    }
    return (json.dumps(fields, ensure_ascii=False) + "\n").encode()


def from_bytes(data: bytes, where: str = "the vocabulary") -> Vocabulary:
    """The vocabulary again; anything that is not one is refused."""
    try:
        fields = json.loads(data)
        tokens, counts, version = fields["tokens"], fields["counts"], fields["version"]
        good = all(type(token) is str for token in tokens) and all(
            type(n) is int for n in (*counts, version)
        )
        good = (
            good
            and len(set(tokens)) == len(tokens) == len(counts)
            and version >= 1
            and min(counts, default=0) >= 0
        )
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{where} can't be read: it is not the JSON of a vocabulary") from error
    if not good:
        raise DataError(
            f"{where} can't be read: its words, counts or version are not what they should be"
        )
    return Vocabulary(tuple(tokens), tuple(counts), version)
