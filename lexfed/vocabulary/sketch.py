"""Words under local differential privacy: private Count-Mean-Sketch (Apple, "Learning with Privacy
at Scale", 2017).

    client:  take a row j of k by chance;  v = -1 in all m columns, +1 at h_j(word)
             flip each sign with probability p = 1 / (1 + e^(eps/2));  send (j, v)
    server:  c = (e^(eps/2) + 1) / (e^(eps/2) - 1);  M[j] += k (c/2 v + 1/2)
             f(word) = m/(m-1) (mean_j M[j, h_j(word)] - n/m)                      n reports

The row says nothing of the word, and the vectors of two words differ in two signs, each worth a
factor e^(eps/2): a report is eps-LDP, and nobody has to be trusted with it. The hash functions are
public: secrecy is in the flips alone.

A user with too few words of the dictionary sends `NO_WORD` instead, else the number of its reports
would tell: +1 at a column drawn anew by chance, a word nobody asks for. It meets a word's column
with probability 1/m, as any other word does, so estimates stay unbiased. (A report of v = -1
everywhere would take 1/(m-1) off every estimate; one fixed dummy word that many send would weigh on
the words that happen to share its columns.)

Differs from the paper: the server keeps sums of signs and numbers of reports, not M. The estimate
is the same, and integers add up exactly, under a secure sum too.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

import numpy as np
import numpy.typing as npt

from lexfed.core.errors import ConfigError, DataError, WireError
from lexfed.core.seeds import Seed, derive, numpy_generator, secret_uniform

NO_WORD = ""
_PUBLIC = b"lexfed sketch"  # the same for everyone and for ever
_LANES = 16  # rows that share a digest of 64 bytes

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sketch:
    epsilon: float  # of one word
    hashes: int = 64  # k
    width: int = 1024  # m

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise ConfigError(f"a sketch's epsilon is a number above 0, not {self.epsilon:g}")
        if self.hashes < 1:
            raise ConfigError(f"a sketch has at least one hash function, not {self.hashes}")
        if self.width < 8 or self.width % 8:
            raise ConfigError(
                f"a sketch's width is a multiple of 8, for signs travel as bits; {self.width} is "
                "not"
            )

    @property
    def flip(self) -> float:
        # p, safe where e^(eps/2) is not
        return math.exp(-self.epsilon / 2) / (1 + math.exp(-self.epsilon / 2))

    @property
    def scale(self) -> float:
        return 1 / math.tanh(self.epsilon / 4)  # c = 1 / (1 - 2p)


@dataclass(frozen=True, eq=False)
class Reports:
    """What travels: at the defaults 136 bytes a word."""

    rows: Ints  # (W,)
    bits: npt.NDArray[np.uint8]  # (W, m/8), a set bit is +1


@dataclass(frozen=True, eq=False)
class Accumulated:
    signs: Ints  # (k, m), sums of -1 and +1
    reports: Ints  # (k,)

    def __add__(self, other: "Accumulated") -> "Accumulated":
        return Accumulated(self.signs + other.signs, self.reports + other.reports)


def per_word_epsilon(epsilon: float, words: int, unit: Literal["user", "word"]) -> float:
    """The budget of one word: a user's is shared among its words; a word's is paid by the user for
    each, words * epsilon.
    """
    if words < 1:
        raise ConfigError(f"a user contributes at least one word, not {words}")
    return epsilon / words if unit == "user" else epsilon


def choose_words(
    words_of_user: Sequence[str], candidates: Collection[str], count: int, seed: Seed
) -> list[str]:
    """What a user contributes: `count` of its occurrences of candidates, no place in its text
    twice, then `NO_WORD`.
    """
    own = [word for word in words_of_user if word in candidates]
    drawn = numpy_generator(seed).permutation(len(own))[:count]
    return [own[i] for i in drawn] + [NO_WORD] * (count - len(drawn))


def places(sketch: Sketch, words: Sequence[str]) -> Ints:
    """h_j(word), for all rows and words at once."""
    blocks = range(-(-sketch.hashes // _LANES))
    digests = b"".join(_digest(word, block) for word in words for block in blocks)
    lanes = np.frombuffer(digests, dtype=">u4").reshape(len(words), len(blocks) * _LANES)
    return (lanes[:, : sketch.hashes] % sketch.width).T.astype(np.int64)  # (k, W)


def _digest(word: str, block: int) -> bytes:
    return blake2b(word.encode(), key=block.to_bytes(4, "big"), person=_PUBLIC).digest()


def encode(sketch: Sketch, words: Sequence[str], seed: Seed) -> Reports:
    """One client's reports. The seed is its own secret and serves once: two reports with the same
    flips undo them.
    """
    every = np.arange(len(words))
    rows, anew = (
        (secret_uniform(derive(seed, what), len(words)) * below).astype(np.int64)  # (W,)
        for what, below in (("rows", sketch.hashes), ("anew", sketch.width))
    )
    columns = np.where(
        [word == NO_WORD for word in words], anew, places(sketch, words)[rows, every]
    )  # (W,)
    plus = secret_uniform(derive(seed, "flips"), len(words), sketch.width) < sketch.flip  # (W, m)
    plus[every, columns] ^= True
    return Reports(rows, np.packbits(plus, axis=1))


def empty(sketch: Sketch) -> Accumulated:
    return Accumulated(
        np.zeros((sketch.hashes, sketch.width), np.int64), np.zeros(sketch.hashes, np.int64)
    )


def add(accumulated: Accumulated, reports: Reports) -> Accumulated:
    rows, width = accumulated.signs.shape
    inside = np.all((reports.rows >= 0) & (reports.rows < rows))
    if reports.bits.shape != (len(reports.rows), width // 8) or not inside:
        raise WireError(f"a report is not of a sketch with {rows} rows of {width} columns")
    signs = accumulated.signs.copy()
    np.add.at(signs, reports.rows, 2 * np.unpackbits(reports.bits, axis=1).astype(np.int64) - 1)
    return Accumulated(signs, accumulated.reports + np.bincount(reports.rows, minlength=rows))


def estimate(accumulated: Accumulated, sketch: Sketch, candidates: Sequence[str]) -> Floats:
    """How often each candidate was reported: unbiased over hash functions, so it may be below 0."""
    if accumulated.signs.shape != (sketch.hashes, sketch.width):
        raise DataError(
            f"these sums are not of a sketch with {sketch.hashes} rows of {sketch.width} columns"
        )
    m, n = sketch.width, accumulated.reports.sum()
    met = accumulated.signs[np.arange(sketch.hashes)[:, None], places(sketch, candidates)].sum(
        axis=0
    )  # (W,)
    mean = sketch.scale / 2 * met + n / 2  # of the M[j, h_j]: their k and the mean's cancel
    return np.asarray(m / (m - 1) * (mean - n / m), dtype=np.float64)


def standard_error(sketch: Sketch, n: int, f: float = 0.0, squares: float = 0.0) -> float:
    """The deviation of an estimate from n reports, f of them of the word itself; `squares` is sum
    f_w^2 of the other words.

    A report adds (c v + 1)/2, the indicator of a hit and noise of variance (c^2 - 1)/4. Another
    word hits in a share q_w of the rows, E q_w = 1/m and Var q_w = (1/m)(1 - 1/m)/k over hash
    functions. Given q_w, each of its f_w reports hits by its row's chance, variance q_w (1 - q_w);
    and all of them are off together by f_w (q_w - 1/m). With n that last part grows like n, not
    sqrt(n): where one word is frequent, more reports don't help, more rows or columns do.
    """
    m, k = sketch.width, sketch.hashes
    hit = (1 / m) * (1 - 1 / m)
    variance = n * (sketch.scale**2 - 1) / 4 + (n - f) * hit * (1 - 1 / k) + squares * hit / k
    return m / (m - 1) * math.sqrt(variance)


def histogram(
    accumulated: Accumulated, sketch: Sketch, candidates: Sequence[str], z: float = 3.0
) -> dict[str, int]:
    """The candidates that stand out by z standard errors, with their counts: a weighted word list.

    Where flips are the noise, 1 absent candidate in 740 does by chance at z = 3. Collisions with a
    very frequent word are few and large: for a million users' Zipf text at epsilon 8 it is 1 in 50,
    and 1 in 900 at z = 6.
    """
    counts, n = estimate(accumulated, sketch, candidates), int(accumulated.reports.sum())
    # the frequent words' own estimates stand in for their counts
    squares = float(np.square(counts[counts > z * standard_error(sketch, n)]).sum())
    least = max(0.5, z * standard_error(sketch, n, squares=squares))
    return {
        word: round(count)
        for word, count in zip(candidates, counts.tolist(), strict=True)
        if count > least
    }
