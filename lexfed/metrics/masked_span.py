"""Words in a span that dropout has blurred. With dropout p of the inputs a word is read as x * m:
each number of its vector is there or not, and the mask m is drawn anew for every place where the
word stands. So the span S of what moved holds no x, and the plain residual |x - P x| is large for
words that were read as well. But

    some mask m has x * m in S                          for every word that was read
    S is of n dimensions, and u_i lies between 0 and x_i:
        n < d/2:  a subspace at random meets no such box but at 0, almost surely (Wendel, 1962)

    relax   u in the box, as much of it as dropout keeps:  least |u outside S|^2, for all candidates
    round   u at a corner of the box, and in S:            difference map (Elser, 2007) from there,
                                                           for the best of them
    rank    by the part of the best corner that is outside S: 0, but for rounding, for a right mask

Every place where a word stands is a dimension of S, so n counts words as they come, not distinct
ones. From n = 0.65 d on nothing is gained, and the plain ranking stands; so it does after Adam,
which leaves no span.
"""

import torch
from torch import Tensor

from lexfed.metrics.leakage import Spectrum, ranking

ROOM = 0.65  # of d: with more directions than that, every box meets the span
FIRST, SECOND, CORNERS = 40, 300, 600  # steps: for all, for the best, and between corners
BEST = 3  # times d: candidates that are looked at closely
HALF = 0.5  # of a step of the difference map
LEAST = 0.1  # of a word's length: a corner with less is no word


def masked_ranking(spectrum: Spectrum, candidates: Tensor, rate: float) -> Tensor:  # (C,)
    """As `leakage.ranking`, for inputs of which this share was left out by chance."""
    rank = spectrum.sharp_rank
    d = candidates.shape[1]
    if rate == 0 or rank is None or rank > ROOM * d:
        return ranking(spectrum, candidates)
    outside = spectrum.axes[:, rank:]
    beyond = (outside @ outside.T).float()  # (d, d): the projection on what is not in the span
    x = torch.nn.functional.normalize(candidates.float())
    order = _outside(beyond, _relaxed(beyond, x, 1 - rate, FIRST)).argsort(stable=True)
    best, others = order[: BEST * d], order[BEST * d :]
    near = _relaxed(beyond, x[best], 1 - rate, SECOND)
    return torch.cat([best[_corners(beyond, x[best], near).argsort(stable=True)], others])


def _outside(beyond: Tensor, u: Tensor) -> Tensor:  # (C,)
    """The part of each that is not in the span; a row of zeros is wholly outside."""
    square = u.square().sum(1)
    part = ((u @ beyond) * u).sum(1) / square.clamp(min=torch.finfo(torch.float32).tiny)
    return torch.where(square > 0, part, 1.0)


def _relaxed(beyond: Tensor, x: Tensor, keep: float, steps: int) -> Tensor:  # (C, d)
    """Least |u beyond|^2 + (w u - keep w x)^2 with u between 0 and x: accelerated projected
    gradients. w = sign(x) / sqrt(d) asks that as much of x is there as dropout keeps.
    """
    low, high = x.clamp(max=0), x.clamp(min=0)
    w = x.sign() / x.shape[1] ** 0.5
    goal = keep * (w * x).sum(1, keepdim=True)
    u = ahead = keep * x
    pace = 1.0
    for _ in range(steps):
        slope = ahead @ beyond + ((ahead * w).sum(1, keepdim=True) - goal) * w
        after = torch.minimum(torch.maximum(ahead - slope / 2, low), high)
        faster = (1 + (1 + 4 * pace * pace) ** 0.5) / 2
        ahead = after + (pace - 1) / faster * (after - u)
        u, pace = after, faster
    return u


def _corners(beyond: Tensor, x: Tensor, u: Tensor) -> Tensor:  # (C,)
    """The least part outside that any corner on the way has; the way goes between corners and the
    span, and rests where they meet.
    """
    inside = torch.eye(len(beyond)) - beyond
    signs, middle = x.sign(), x.abs() / 2
    best = torch.full((len(x),), 2.0)
    for _ in range(CORNERS):
        corner = torch.where(u * signs > middle, x, 0.0)
        part = _outside(beyond, corner)
        best = torch.minimum(best, torch.where(corner.square().sum(1) > LEAST, part, 2.0))
        u = u + HALF * ((2 * corner - u) @ inside - corner)
    return best
