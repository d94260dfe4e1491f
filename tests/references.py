"""Slow, obvious or whole computations that the package does piece by piece, or in another way."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from scipy.special import ndtr
from torch import Tensor

from lexfed.core.errors import PrivacyError
from lexfed.core.seeds import Seed, derive, numpy_generator
from lexfed.metrics.leakage import CHUNK, Spectrum, distances
from lexfed.vocabulary import splitting
from lexfed.vocabulary.sketch import NO_WORD, Accumulated, Ints, Sketch, places
from lexfed.vocabulary.trie import END, Parameters, grow, vote
from lexfed.vocabulary.word import Vocabulary


def token_words(text: str, lowercase: bool = False) -> list[str]:
    """A text cut as tokenizers have it: symbols one by one."""
    return splitting.words(text, lowercase, "single")


def discover(
    words_by_user: Sequence[Sequence[str]], params: Parameters, seed: Seed
) -> dict[str, int]:
    """All levels, simulated: the words that reached their mark, with the votes for it, which the
    server keeps to itself.
    """
    if len(words_by_user) != params.users:
        raise PrivacyError(
            f"the parameters are for {params.users:,} users, not for {len(words_by_user):,}"
        )
    rng = numpy_generator(derive(seed, "sample"))
    prefixes, found = {"": params.users}, dict[str, int]()
    for level in range(1, params.length + 1):
        drawn = rng.choice(params.users, params.sample, replace=False).tolist()
        votes = [
            vote(words_by_user[user], prefixes, level, derive(seed, "user", user)) for user in drawn
        ]
        prefixes = grow(prefixes, votes, params.theta)
        found |= {
            prefix[:-1]: number for prefix, number in prefixes.items() if prefix.endswith(END)
        }
    return found


def encode_many(sketch: Sketch, words_of_users: Iterable[Sequence[str]], seed: Seed) -> Accumulated:
    """The sum of all these users' reports, drawn from the law of that sum instead of one by one."""
    rng, counts = numpy_generator(seed), Counter(chain.from_iterable(words_of_users))
    true = _true_signs(sketch, counts, rng)  # (k, m)
    reports = true.sum(axis=1)
    # In row j every report flips every column by itself: of the t reports with +1 at a column
    # Bin(t, 1 - p) stay, of the n_j - t others Bin(n_j - t, p) turn, and columns are independent.
    # So nothing is approximated.
    plus = rng.binomial(true, 1 - sketch.flip) + rng.binomial(reports[:, None] - true, sketch.flip)
    return Accumulated(2 * plus - reports[:, None], reports)


def _true_signs(sketch: Sketch, counts: Counter[str], rng: np.random.Generator) -> Ints:
    """How many reports have their +1 at each row and column, before the flips."""
    known = [word for word in counts if word != NO_WORD]
    times = np.array([counts[word] for word in known], dtype=np.int64)
    # (W, k), the rows that reports took
    drawn = rng.multinomial(times, np.full(sketch.hashes, 1 / sketch.hashes))
    cells = sketch.hashes * sketch.width
    true = np.bincount(rng.integers(cells, size=counts[NO_WORD]), minlength=cells).reshape(
        sketch.hashes, sketch.width
    )
    np.add.at(true, (np.arange(sketch.hashes)[:, None], places(sketch, known)), drawn.T)
    return true


def transformer_inputs(
    words: Tensor, positions: Tensor, kind: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-12
) -> Iterator[Tensor]:  # (c, P, d)
    """What the first layer reads for each word (V, d) at each position (P, d), some words at a
    time.
    """
    for part in torch.split(words, max(1, CHUNK // len(positions))):
        yield F.layer_norm(part[:, None] + positions + kind, gamma.shape, gamma, beta, eps)


# (V,), (V,)
def placed_ranking(spectrum: Spectrum, inputs: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Words from the most to the least likely, each at its best position, and these positions."""
    parts = [distances(spectrum, x.flatten(0, 1)).view(x.shape[:2]).min(1) for x in inputs]
    order = torch.cat([part.values for part in parts]).argsort(stable=True)
    return order, torch.cat([part.indices for part in parts])[order]


def keyed_vectors(vocabulary: Vocabulary, vectors: Tensor) -> Any:
    """gensim's `KeyedVectors`, a copy, with the words as they are and their counts."""
    from gensim.models import KeyedVectors  # takes seconds to import

    keyed = KeyedVectors(vectors.shape[1], count=len(vectors))
    keyed.index_to_key = list(vocabulary.tokens)
    keyed.key_to_index = dict(vocabulary.ids)
    keyed.next_index = len(vectors)
    torch.from_numpy(keyed.vectors).copy_(vectors.detach())
    keyed.allocate_vecattrs(["count"], [int])
    keyed.expandos["count"][:] = vocabulary.counts
    return keyed


def epsilon_by_fft(
    events: list[tuple[float, float, int]], delta: float, pure: float = 0.0
) -> float:
    """The epsilon of Gaussian releases, independently of any library: (noise, probability, times).

    Privacy losses of one release, add and remove apart, on a grid of losses; composed by powers of
    their Fourier transforms; then the smallest epsilon at which the hockey-stick divergence is at
    most delta. Losses are rounded to the nearest, so it is an estimate, not a bound.
    """
    return pure + max(_one_way(events, delta, removed) for removed in (True, False))


def _one_way(events: list[tuple[float, float, int]], delta: float, removed: bool) -> float:
    step, half = 2e-4, 1 << 18  # losses up to 52 either way
    spectrum = np.ones(half + 1, dtype=np.complex128)
    for noise, probability, times in events:
        spectrum *= np.fft.rfft(_losses(noise, probability, removed, step, half)) ** times
    masses = np.clip(np.fft.irfft(spectrum, 2 * half), 0.0, None)
    losses = step * np.concatenate([np.arange(half), np.arange(-half, 0)])
    order = np.argsort(losses)
    masses, losses = masses[order], losses[order]

    def divergence(epsilon: float) -> float:
        above = losses > epsilon
        return float(np.sum(masses[above] * -np.expm1(epsilon - losses[above])))

    low, high = 0.0, 52.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if divergence(middle) > delta else (low, middle)
    return high


def _losses(
    noise: float, probability: float, removed: bool, step: float, half: int
) -> np.typing.NDArray[np.float64]:
    """The law of log P/Q, P = (1 - q) N(0, z^2) + q N(1, z^2), Q = N(0, z^2): under P if the user
    is removed, of its negative under Q if added. Place k of the array is a loss of k steps.
    """
    edges = step * (np.arange(-half, half + 1) - 0.5)  # a loss between two edges is rounded to k

    def below(loss: np.typing.NDArray[np.float64]) -> np.typing.NDArray[np.float64]:
        """x such that log P(x)/Q(x) is at most the loss."""
        if probability == 1.0:
            return loss * noise**2 + 0.5
        share = (np.exp(loss) - (1 - probability)) / probability
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(share > 0, noise**2 * np.log(share) + 0.5, -np.inf)

    def under_q(x: np.typing.NDArray[np.float64]) -> np.typing.NDArray[np.float64]:
        return ndtr(x / noise)

    def under_p(x: np.typing.NDArray[np.float64]) -> np.typing.NDArray[np.float64]:
        return (1 - probability) * ndtr(x / noise) + probability * ndtr((x - 1) / noise)

    heights = under_p(below(edges)) if removed else 1 - under_q(below(-edges))
    masses = np.diff(heights)  # of losses -half .. half - 1
    return np.concatenate([masses[half:], masses[:half]])
