"""Compiled loops over rows of tables: rounding what is sent, adding up what arrives.

They touch each number once, hold no lock (threads run them side by side) and draw from the seed
they are given.
"""

import numpy as np
from numba import njit, uint64

_STEP, _MIX1, _MIX2 = (
    uint64(0x9E3779B97F4A7C15),
    uint64(0xBF58476D1CE4E5B9),
    uint64(0x94D049BB133111EB),
)
# sums in any order, so that they vectorise; infinity and NaN stay themselves
FAST = {"reassoc", "contract", "arcp", "nsz"}


@njit(nogil=True, cache=True, inline="always")
def mix(state):  # type: ignore[no-untyped-def]
    """splitmix64: a good 64-bit number from each state of a counter."""
    z = (state ^ (state >> uint64(30))) * _MIX1
    z = (z ^ (z >> uint64(27))) * _MIX2
    return z ^ (z >> uint64(31))


@njit(nogil=True, cache=True)
def round_rows(values, seed):  # type: ignore[no-untyped-def]
    """Rows (n, d) as int8 and one scale each (n, 1): every number goes up or down by chance, in the
    mean to itself.
    """
    n, d = values.shape
    steps, scales = np.empty((n, d), np.int8), np.empty((n, 1), np.float32)
    state = uint64(seed)
    for i in range(n):
        largest = np.float32(1e-30)
        for k in range(d):
            largest = max(largest, abs(values[i, k]))
        scale = largest / np.float32(127)
        scales[i, 0] = scale
        for k in range(d):
            state += _STEP
            chance = np.float32(mix(state) >> uint64(40)) * np.float32(1 / 2**24)
            steps[i, k] = np.int8(min(max(np.floor(values[i, k] / scale + chance), -127), 127))
    return steps, scales


@njit(nogil=True, cache=True, fastmath=FAST)
def square_sum(values):  # type: ignore[no-untyped-def]
    """Of single numbers, in double."""
    total = 0.0
    for i in range(len(values)):
        value = np.float64(values[i])
        total += value * value
    return total


@njit(nogil=True, cache=True)
def add_rows(total, places, values):  # type: ignore[no-untyped-def]
    """total[places[i]] += values[i]; places are distinct."""
    for i in range(len(places)):
        row = total[places[i]]
        for k in range(len(row)):
            row[k] += values[i, k]


@njit(nogil=True, cache=True, fastmath=FAST)
def add_rows_within(table, ids, values, longest):  # type: ignore[no-untyped-def]
    """table[ids[i]] += values[i], but for rows that would be longer than `longest`, or no numbers:
    they stay.
    """
    for i in range(len(ids)):
        row, square = table[ids[i]], 0.0
        for k in range(len(row)):
            moved = np.float64(row[k] + values[i, k])
            square += moved * moved
        if square <= longest * longest:  # NaN is not below anything
            for k in range(len(row)):
                row[k] += values[i, k]


@njit(nogil=True, cache=True, fastmath=FAST)
def squared_lengths(values):  # type: ignore[no-untyped-def]
    """Of each row (n, d)."""
    squares = np.zeros(len(values), np.float64)
    for i in range(len(values)):
        square = 0.0
        for k in range(values.shape[1]):
            square += np.float64(values[i, k]) * np.float64(values[i, k])
        squares[i] = square
    return squares


@njit(nogil=True, cache=True)
def subtract_rows(rows, table, ids):  # type: ignore[no-untyped-def]
    """rows[i] -= table[ids[i]], in place."""
    for i in range(len(ids)):
        row, base = rows[i], table[ids[i]]
        for k in range(len(row)):
            row[k] -= base[k]


@njit(nogil=True, cache=True)
def add_scaled_rows(total, places, steps, scales):  # type: ignore[no-untyped-def]
    """total[places[i]] += steps[i] * scales[i]: what `round_rows` made, without writing it out
    first.
    """
    for i in range(len(places)):
        row, scale = total[places[i]], scales[i, 0]
        for k in range(len(row)):
            row[k] += np.float32(steps[i, k]) * scale
