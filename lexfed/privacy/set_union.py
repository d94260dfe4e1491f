"""Which words may be told under differential privacy: DP-SIPS (Swanberg, Desfontaines, Haney,
2023).

    three passes i, each with four times the budget of the one before:
        document:  share a weight of norm 1 among its words that are not released yet,
                   at most L of them
        server:    add noise N(0, sigma_i^2) to the weight of every word that somebody sent
                   release the words whose noisy weight is above rho_i

Frequent words go first, for little budget, and then leave their weight to the others. A word of one
document alone is released with probability at most delta_i; all else is a Gaussian mechanism of
sensitivity 1. So one document costs (epsilon, delta) in all, for anyone who reads the released
words *and* their noisy weights. The server is trusted with the weights: it adds the noise, from a
stream cipher under its secret. The noise is made of floating-point numbers, so its last bits are
not covered by the proof.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

from lexfed.core.seeds import Seed, secret_gaussian
from lexfed.privacy.accounting import Gaussian, Ledger, Release, charge, gaussian_noise

LIST = "words of the agreed list, with noisy weights"
# of sum 1 / sigma_i^2; on text8 it released as many words as any other, and 1.5 times those of one
# pass
GROWTH = (1, 4, 16)


@dataclass(frozen=True)
class Pass:
    sigma: float
    threshold: float
    delta: float  # the chance that a word of one document alone is released


def passes(epsilon: float, delta: float, words: int) -> tuple[Pass, ...]:
    """The passes that cost (epsilon, delta) together: half of delta is the Gaussians', half the
    thresholds'.
    """
    sigma, steps = gaussian_noise(epsilon, delta / 2), []
    for growth in GROWTH:
        share = growth / sum(GROWTH)
        noise, chance = sigma / math.sqrt(share), delta / 2 * share
        steps.append(Pass(noise, threshold(noise, chance, words), chance))
    return tuple(steps)


def threshold(sigma: float, delta: float, words: int) -> float:
    """Above it a document's own words, t <= `words` of weight 1/sqrt(t), come by noise with
    probability delta at most:

    rho = max over t of 1/sqrt(t) + sigma Phi^-1((1 - delta)^(1/t))
    """

    def of(t: int) -> float:
        # 1 - (1 - delta)^(1/t), exact where delta is tiny
        tail = -math.expm1(math.log1p(-delta) / t)
        return 1 / math.sqrt(t) - sigma * NormalDist().inv_cdf(tail)

    return max(map(of, range(1, words + 1)))


def release(weights: Mapping[bytes, float], step: Pass, noise: Seed) -> dict[bytes, float]:
    """The words that pass, with their noisy weights. Sorted, so that the same noise meets the same
    word.
    """
    words = sorted(weights)
    draws = (step.sigma * secret_gaussian(noise, len(words))).tolist()
    noisy = ((word, weights[word] + draw) for word, draw in zip(words, draws, strict=True))
    return {word: weight for word, weight in noisy if weight > step.threshold}


def charged(ledger: Ledger, steps: tuple[Pass, ...]) -> Ledger:
    for step in steps:
        ledger = charge(ledger, Release("document", Gaussian(step.sigma), 1, step.delta, what=LIST))
    return ledger
