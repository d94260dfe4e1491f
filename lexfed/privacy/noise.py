"""Where noise comes from: derived from the seed in a simulation, from the operating system in a
deployment.

Floating-point noise gives itself away by its last bits (Mironov, CCS 2012). So noise that must
protect somebody is a discrete Gaussian (Canonne, Kamath, Steinke, NeurIPS 2020), on a grid that is
a power of two:

    client:  clip to norm S;
             round towards zero to whole steps of the grid   [the norm never grows: S bounds it]
             local: add N_Z(0, sigma^2) steps, sigma = ceil(deviation / grid);
             distributed: add a share of it (`distributed`)
    server:  add up integers;  central: add N_Z(0, sigma^2) steps;  only then: times the grid

The rounding must come before the noise, whoever adds it. A sum that is rounded after it was made
would move by more than S per client; and an update that is not on the grid of its noise shows its
last bits, whatever the noise (of two candidates the right one was told every time). All that is
released is a function of integers, so what floating point loses of it is post-processing. The grid
leaves 2^19 <= sigma <= 2^20 where the noise is about as large as the clip. A cost computed for the
continuous Gaussian holds: integer shifts of the discrete one have no larger Renyi divergence, and
their privacy loss distribution differs by terms of order 1 / sigma^2, below 1e-11.

Sampling is exact and uses integers only. The split is Karney's (ACM TOMS 2016): |n| = k sigma + j,
j < sigma, x = j / sigma,

    exp(-n^2 / 2 sigma^2) = exp(-1/2)^(k^2) exp(-x)^k exp(-x^2 / 2)

    k <- how often a coin of exp(-1/2) falls heads in a row, kept with exp(-1/2)^(k (k - 1));
    j <- uniform below sigma
    keep with exp(-x)^k exp(-x^2 / 2);   a fair sign;   reject -0

The time it takes depends on the draws: do not let others time it.
"""

import math
import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from lexfed.core.errors import PrivacyError
from lexfed.core.params import Params, count, in_double
from lexfed.core.seeds import Seed, derive, stream, torch_generator

BITS = 19  # sigma is at least 2^BITS grid steps
MOST_STEPS = 1 << 30  # 2 sigma^2 and k sigma stay below 2^63
BLOCK = 1 << 17  # proposals at a time: they stay in the processor's cache
Integers = npt.NDArray[np.int64]
Coins = npt.NDArray[np.bool_]
Source = Callable[[int], bytes]  # so many bytes by chance


def gaussian(like: Params, deviation: float, seed: Seed) -> Params:
    """Noise for a simulation, from the seed and the parameter's name. Who has the seed can take it
    off again.
    """
    if not 0 <= deviation < math.inf:
        raise PrivacyError(f"noise has a deviation of 0 or more, not {deviation:g}")
    return {
        name: _drawn(value.shape, deviation, derive(seed, name)).to(value.device)
        for name, value in like.items()
    }


def _drawn(shape: torch.Size, deviation: float, seed: Seed) -> torch.Tensor:
    """On the CPU: the same noise on every device."""
    return torch.randn(shape, generator=torch_generator(seed)) * deviation


def grid_of(deviation: float) -> float:
    """The grid on which noise of this deviation is drawn, and to which clients round."""
    if not 2.0**-100 < deviation < 2.0**100:  # float32 must hold the grid
        raise PrivacyError(
            f"noise of deviation {deviation:g} can't be drawn: it is above 0 and of an ordinary "
            "size"
        )
    return 2.0 ** (math.frexp(deviation)[1] - 1 - BITS)


def in_steps(params: Params, grid: float) -> Params:
    """Every value as a whole number of steps of the grid, rounded towards zero: no length grows."""
    if not (grid > 0 and math.frexp(grid)[0] == 0.5):
        raise PrivacyError(
            f"a grid is a power of two, so that its multiples are exact: not {grid:g}"
        )
    # in float64 the division is exact, and what is no number must not become one
    steps = {name: torch.trunc(in_double(value) / grid) for name, value in params.items()}
    if not all(bool((value.abs() < 2.0**53).all()) for value in steps.values()):
        raise PrivacyError("an update that is no number can't be rounded to a grid")
    return {name: value.long() for name, value in steps.items()}


def fresh_steps(like: Params, deviation: float, grid: float) -> Params:
    """Noise that nobody can draw again, in whole steps of the grid."""
    return steps_of(like, math.ceil(deviation / grid))


def steps_of(like: Params, sigma: int, seed: Seed | None = None) -> Params:
    """Whole numbers of this sigma: from the operating system, or the same ones again from a
    seed.
    """
    source = os.urandom if seed is None else stream(seed)
    draws = torch.from_numpy(discrete_gaussian(count(like), sigma, source))
    parts = torch.split(draws, [value.numel() for value in like.values()])
    return {
        name: part.reshape(value.shape).to(value.device)
        for (name, value), part in zip(like.items(), parts, strict=True)
    }


def discrete_gaussian(count: int, sigma: int, source: Source = os.urandom) -> Integers:
    """So many integers n with probability proportional to exp(-n^2 / 2 sigma^2)."""
    if not 1 <= sigma <= MOST_STEPS:
        raise PrivacyError(f"a discrete Gaussian has a whole sigma from 1 to 2^30, not {sigma}")
    blocks, missing = [np.empty(0, np.int64)], count
    while missing > 0:
        # about half are accepted
        blocks.append(_accepted(min(BLOCK, 2 * missing + 16), sigma, source)[:missing])
        missing -= len(blocks[-1])
    return np.concatenate(blocks)


def _accepted(proposals: int, sigma: int, source: Source) -> Integers:
    k = _heads_in_a_row(proposals, source)
    k = k[_exp_coins(np.ones_like(k), 2, k * (k - 1), source)]
    j = _below(sigma, len(k), source)
    keep = _exp_coins(j, sigma, k, source)
    k, j = k[keep], j[keep]
    keep = _exp_coins(j * j, 2 * sigma * sigma, np.ones_like(k), source)
    size = k[keep] * sigma + j[keep]
    negative = _below(2, len(size), source) == 1
    minus_zero: Coins = negative & (size == 0)
    size[negative] *= -1
    return size[~minus_zero]


def _heads_in_a_row(count: int, source: Source) -> Integers:
    """How often a coin of exp(-1/2) falls heads before its first tails."""
    heads, alive = np.zeros(count, np.int64), np.arange(count)
    while len(alive):
        alive = alive[_exp_coin(np.ones_like(alive), 2, source)]
        heads[alive] += 1
    return heads


def _exp_coins(numerator: Integers, denominator: int, times: Integers, source: Source) -> Coins:
    """Heads where `times` coins of exp(-numerator / denominator) all fall heads."""
    heads, alive, done = np.ones(len(times), np.bool_), np.flatnonzero(times), 0
    while len(alive):
        fell = _exp_coin(numerator[alive], denominator, source)
        heads[alive[~fell]] = False
        done += 1
        alive = alive[fell & (times[alive] > done)]
    return heads


def _exp_coin(numerator: Integers, denominator: int, source: Source) -> Coins:
    """Heads with probability exp(-g), g = numerator / denominator <= 1: draw coins of g/1, g/2, g/3
    ... until one falls tails, and see whether that was an odd one [Alg. 1]."""
    heads, alive, turn = np.empty(len(numerator), np.bool_), np.arange(len(numerator)), 1
    while len(alive):
        goes_on = _below(denominator, len(alive), source) < numerator[alive]
        goes_on[goes_on] = _below(turn, int(goes_on.sum()), source) == 0
        heads[alive[~goes_on]] = turn % 2 == 1
        alive, turn = alive[goes_on], turn + 1
    return heads


def _below(bound: int, count: int, source: Source) -> Integers:
    """Uniform in 0 .. bound - 1: as many bits as it takes, drawn again where they say too much."""
    bits = (bound - 1).bit_length()
    draws = _random_bits(bits, count, source)
    while len(over := np.flatnonzero(draws >= bound)):
        draws[over] = _random_bits(bits, len(over), source)
    return draws


def _random_bits(bits: int, count: int, source: Source) -> Integers:
    size = next(size for size in (1, 2, 4, 8) if bits <= 8 * size)
    words = np.frombuffer(source(size * count), f"u{size}")
    draws: Integers = (words & words.dtype.type((1 << bits) - 1)).astype(np.int64)
    return draws
