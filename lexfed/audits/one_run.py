"""Is the epsilon that is claimed true? One run can refute it (Steinke, Nasr, Jagielski, NeurIPS
2023).

    before the run:  m canaries;  a fair coin each says whether it takes part
    after it:        score each;  guess "in" for the r/2 highest, "out" for the r/2 lowest,
                                  abstain on the others
    v <- right guesses

If what was released is (epsilon, delta)-differentially private for each canary, then with q =
e^epsilon / (1 + e^epsilon)

    P[at least v right] <= beta + 2 m delta alpha                                         [thm. 5.2]
    beta = P[Bin(r, q) >= v],   alpha = max_i 1/i P[v > Bin(r, q) >= v - i]

An epsilon for which this is at most 1 - confidence is refuted; the largest refuted one is a lower
bound. So a bound above the claim says that something is wrong, and one below it says little: r
guesses that are all right show an epsilon of log(r / log(1 / (1 - confidence))) at most, 5.8 for a
thousand.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lexfed.core.errors import PrivacyError
from lexfed.core.params import Params
from lexfed.core.seeds import Seed, derive
from lexfed.privacy.noise import gaussian

Scores = npt.NDArray[np.float64]
Inside = npt.NDArray[np.bool_]
# of the canaries, guessed: few where scores overlap; never all, as coins are seldom half heads
SHARES = (0.05, 0.25, 0.75)
ALL_REFUTED = 40.0  # from here on e^epsilon / (1 + e^epsilon) is 1 in floating point


@dataclass(frozen=True)
class OneRun:
    epsilon: float  # the true one is larger, at this confidence
    guesses: int
    right: int


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """How likely so many right guesses are, at most, if the claim is true."""
    from scipy import stats  # slow to import: only who audits waits

    q = 1 / (1 + math.exp(-epsilon))
    beta = float(stats.binom.sf(right - 1, guesses, q))
    if delta == 0 or right == 0:
        return beta
    below = stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, q)  # (v,): v - 1 first
    alpha = float(np.max(np.cumsum(below) / np.arange(1, right + 1)))
    return min(1.0, beta + 2 * canaries * delta * alpha)


def epsilon_lower_bound(
    canaries: int, guesses: int, right: int, delta: float, confidence: float = 0.95
) -> float:
    """The largest epsilon that so many right guesses refute; 0 if they refute none."""
    if not 0 <= right <= guesses <= canaries:
        raise PrivacyError(
            f"{right} right guesses of {guesses} on {canaries} canaries can't be: each is part of "
            "the next"
        )
    if not (0 <= delta < 1 and 0 < confidence < 1):
        raise PrivacyError(
            f"a delta of {delta:g} or a confidence of {confidence:g} is no probability to audit "
            "with"
        )
    refuted, standing = 0.0, ALL_REFUTED
    while standing - refuted > 1e-6:
        middle = (refuted + standing) / 2
        if p_value(canaries, guesses, right, middle, delta) <= 1 - confidence:
            refuted = middle
        else:
            standing = middle
    return refuted if refuted > 0 else 0.0


def right_guesses(scores: Scores, inside: Inside, guesses: int) -> int:
    """Equal scores keep the order of the canaries, which knows nothing of the coins."""
    if scores.shape != inside.shape or scores.ndim != 1 or not np.isfinite(scores).all():
        raise PrivacyError("an audit needs one finite score and one coin per canary")
    if guesses % 2 or not 2 <= guesses <= len(scores):
        raise PrivacyError(
            f"an audit of {len(scores)} canaries makes an even number of guesses among them, not "
            f"{guesses}"
        )
    order = np.argsort(scores, kind="stable")
    lowest, highest = order[: guesses // 2], order[-(guesses // 2) :]
    return int(inside[highest].sum() + (~inside[lowest]).sum())


def audit(
    scores: Scores,
    inside: Inside,
    delta: float,
    confidence: float = 0.95,
    shares: Sequence[float] = SHARES,
) -> OneRun:
    """The best of a few numbers of guesses. They are fixed before the scores are seen, and each is
    held to its part of the error (Bonferroni), so the best of them still has this confidence. One
    share alone pays nothing."""
    each = 1 - (1 - confidence) / len(shares)
    runs = []
    for share in shares:
        guesses = max(2, 2 * int(share * len(scores) / 2))
        right = right_guesses(scores, inside, guesses)
        runs.append(
            OneRun(epsilon_lower_bound(len(scores), guesses, right, delta, each), guesses, right)
        )
    return max(runs, key=lambda run: run.epsilon)


def canary(like: Params, index: int, seed: Seed) -> Params:
    """A random direction of norm 1 over all parameters together. Made again from its index: a
    thousand need no memory.
    """
    vector = gaussian(like, 1.0, derive(seed, "canary", index))
    norm = math.sqrt(sum(float(value.double().square().sum()) for value in vector.values()))
    return {name: value / norm for name, value in vector.items()}


def canary_vectors(like: Params, count: int, seed: Seed) -> Iterator[Params]:
    return (canary(like, index, seed) for index in range(count))


def score(released: Params, vector: Params) -> float:
    """The inner product: the best there is against Gaussian noise on a sum."""
    return sum(
        float((released[name].double() * value.double()).sum()) for name, value in vector.items()
    )
