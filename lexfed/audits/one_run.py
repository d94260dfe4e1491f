"""Is the epsilon that is claimed true? One run can refute it (Steinke, Nasr, Jagielski, NeurIPS
2023).

    before the run:  m probes;    a fair coin each says whether it takes part
    after it:        score each;  guess "in" for the highest, "out" for the lowest, r in all,
                                  abstain on the others
    v <- right guesses

If what was released is (epsilon, delta)-differentially private for each probe, then with q =
e^epsilon / (1 + e^epsilon)

    P[at least v right] <= beta + 2 m delta alpha                                         [thm. 5.2]
    beta = P[Bin(r, q) >= v],   alpha = max_i 1/i P[v > Bin(r, q) >= v - i]

An epsilon for which this is at most 1 - confidence is refuted; the largest refuted one is a lower
bound. So a bound above the claim says that something is wrong, and one below it says little: r
guesses that are all right show an epsilon of log(r / log(1 / (1 - confidence))) at most, 5.8 for a
thousand.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lexfed.core.errors import PrivacyError

Scores = npt.NDArray[np.float64]
Inside = npt.NDArray[np.bool_]
Share = tuple[float, float]  # of the probes: said to be in, said to be out
# few where scores overlap; never all, as coins are seldom half heads
SHARES: Sequence[Share] = ((0.025, 0.025), (0.125, 0.125), (0.375, 0.375))
ALL_REFUTED = 40.0  # from here on e^epsilon / (1 + e^epsilon) is 1 in floating point


@dataclass(frozen=True)
class OneRun:
    epsilon: float  # the true one is larger, at this confidence
    guesses: int
    right: int


def p_value(probes: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """How likely so many right guesses are, at most, if the claim is true."""
    from scipy import stats  # slow to import: only who audits waits

    q = 1 / (1 + math.exp(-epsilon))
    beta = float(stats.binom.sf(right - 1, guesses, q))
    if delta == 0 or right == 0:
        return beta
    below = stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, q)  # (v,): v - 1 first
    alpha = float(np.max(np.cumsum(below) / np.arange(1, right + 1)))
    return min(1.0, beta + 2 * probes * delta * alpha)


def epsilon_lower_bound(
    probes: int, guesses: int, right: int, delta: float, confidence: float = 0.95
) -> float:
    """The largest epsilon that so many right guesses refute; 0 if they refute none."""
    if not 0 <= right <= guesses <= probes:
        raise PrivacyError(
            f"{right} right guesses of {guesses} on {probes} probes can't be: each is part of "
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
        if p_value(probes, guesses, right, middle, delta) <= 1 - confidence:
            refuted = middle
        else:
            standing = middle
    return refuted if refuted > 0 else 0.0


def right_guesses(scores: Scores, inside: Inside, ins: int, outs: int) -> int:
    """Of so many highest scores that are said to be in, and so many lowest that are said to be out.
    Equal scores keep the order of the probes, which knows nothing of the coins.
    """
    if scores.shape != inside.shape or scores.ndim != 1 or not np.isfinite(scores).all():
        raise PrivacyError("an audit needs one finite score and one coin per probe")
    if min(ins, outs) < 0 or not 1 <= ins + outs <= len(scores):
        raise PrivacyError(
            f"an audit of {len(scores)} probes makes at least one guess and at most as many as "
            f"there are probes, not {ins} and {outs}"
        )
    order = np.argsort(scores, kind="stable")
    lowest, highest = order[:outs], order[len(order) - ins :]
    return int(inside[highest].sum() + (~inside[lowest]).sum())


def audit(
    scores: Scores,
    inside: Inside,
    delta: float,
    confidence: float = 0.95,
    shares: Sequence[Share] = SHARES,
) -> OneRun:
    """The best of a few numbers of guesses. They are fixed before the scores are seen, and each is
    held to its part of the error (Bonferroni), so the best of them still has this confidence. One
    share alone pays nothing."""
    each = 1 - (1 - confidence) / len(shares)
    runs = []
    for into, out in shares:
        ins, outs = max(1, int(into * len(scores))), int(out * len(scores))
        right = right_guesses(scores, inside, ins, outs)
        runs.append(
            OneRun(
                epsilon_lower_bound(len(scores), ins + outs, right, delta, each), ins + outs, right
            )
        )
    return max(runs, key=lambda run: run.epsilon)
