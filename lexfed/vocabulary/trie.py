"""Frequent words without a dictionary, under central differential privacy: TrieHH (Zhu et al.,
AISTATS 2020).

    every user has one word, ended by a mark;  the trie starts as the empty prefix
    for level 1 .. L:
        server:  draw gamma sqrt(n) of the n users, all different, and tell them the trie
        user:    if the first level - 1 letters of its word stand in the trie,
                 vote for the first `level`
        server:  the trie grows by the prefixes with at least theta votes
    the words that reached their mark are frequent                                [Alg. 1, 2]

There is no noise. For 4 <= theta <= sqrt(n) and 1 <= gamma <= sqrt(n) / (theta + 1) the sampling
alone makes the trie

    (L ln(1 + 1 / (sqrt(n) / (gamma theta) - 1)),
     (theta - 2) / ((theta - 3) theta!))-DP                                       [Theorem 1]

for one user's word, changed or taken away, against those who see the trie and neither the votes nor
who was drawn: the server is trusted with both. The counts of votes that `discover` returns are not
covered: what may be told is the words.

Differs from the paper: theta is the least one from 10 with the theorem's delta itself. The paper's
closed form replaces theta! by sqrt(2 pi) ((theta + 1/2) / e)^(theta + 1/2), which is a little more,
so at theta = 10 it misses delta by 0.4 %. And where epsilon would draw more than n / (theta + 1)
users, that many are drawn, for less epsilon; the paper raises theta.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from lexfed.core.errors import ConfigError, DataError, PrivacyError
from lexfed.core.seeds import Seed, derive

END = "\n"  # no word of `vocabulary.word` holds it; the paper's "$" may be one


@dataclass(frozen=True)
class Parameters:
    users: int  # n
    length: int  # L: letters of the longest word, its mark included
    theta: int
    sample: int  # gamma sqrt(n), users drawn at each level

    @property
    def gamma(self) -> float:
        return self.sample / math.sqrt(self.users)

    @property
    def epsilon(self) -> float:
        drawn = self.sample * self.theta / self.users  # gamma theta / sqrt(n), below 1
        return -self.length * math.log1p(-drawn)  # L ln(1 + 1 / (1/drawn - 1))

    @property
    def delta(self) -> float:
        return _delta(self.theta)


def parameters(epsilon: float, delta: float, users: int, length: int) -> Parameters:
    """The largest samples that cost (epsilon, delta) at most.
    [Corollary 1]
    """
    if not (0 < epsilon < math.inf and 0 < delta < 1 and length >= 1):
        raise ConfigError(
            "a trie needs an epsilon above 0, a delta between 0 and 1 and a length of at least 1"
        )
    theta = next(theta for theta in count(10) if _delta(theta) <= delta)
    share = min(-math.expm1(-epsilon / length) / theta, 1 / (theta + 1))  # gamma / sqrt(n)
    sample = math.floor(share * users)
    # gamma < 1; theta is below sqrt(n) where gamma is not
    if sample < math.sqrt(users) or users < 1:
        least = math.ceil(share**-2)
        raise PrivacyError(
            f"{users:,} users are too few for a trie of epsilon {epsilon:g}: it takes some "
            f"{least:,}"
        )
    return Parameters(users, length, theta, sample)


def _delta(theta: int) -> float:
    return (theta - 2) / ((theta - 3) * math.factorial(theta))


def vote(
    words_of_user: Sequence[str], prefixes: Collection[str], level: int, seed: Seed
) -> str | None:
    """A user's vote, if it has one. Its word is drawn from its text by its own secret, so it is the
    same at every level.
    """
    if not words_of_user:
        return None
    # 256 bits of the secret are a uniform place; a generator of its own would take ten times as
    # long for one draw
    word = words_of_user[int.from_bytes(derive(seed, "word"), "big") % len(words_of_user)]
    if END in word:
        raise DataError("a word with a line break in it can't be told from the end of a word")
    marked = word + END
    return marked[:level] if len(marked) >= level and marked[: level - 1] in prefixes else None


def grow(prefixes: Collection[str], votes: Iterable[str | None], theta: int) -> dict[str, int]:
    """The prefixes of the next level, with their votes. What grows out of nothing in the trie is no
    vote.
    """
    counts = Counter(
        vote for vote in votes if vote and vote[:-1] in prefixes and END not in vote[:-1]
    )
    return {prefix: number for prefix, number in counts.items() if number >= theta}
