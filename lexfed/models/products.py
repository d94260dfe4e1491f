"""Matrix products of a few rows, as compiled loops. On some processors they are faster than the
library that torch was built with; in loops of their own they cost no call.

Each takes four rows by four columns at a time: a line that was loaded is used four times, and a
line of the result is read and written once for four products.
"""

import numpy as np
from numba import njit

# sums in any order, so that they vectorise; infinity and NaN stay themselves
FAST = {"reassoc", "contract", "arcp", "nsz"}
_TILE = 256  # rows of a large table that stay in the cache meanwhile
f32 = np.float32


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def add_product(a, w, out):  # type: ignore[no-untyped-def]
    """out += a w. Four rows and four columns of `a` at a time: a row of `w` that was loaded is used
    four times, and a row of `out` once for four.
    """
    rows, inner = a.shape
    fours, columns = inner - inner % 4, w.shape[1]
    for b in range(0, rows - rows % 4, 4):
        a0, a1, a2, a3 = a[b], a[b + 1], a[b + 2], a[b + 3]
        o0, o1, o2, o3 = out[b], out[b + 1], out[b + 2], out[b + 3]
        for k in range(0, fours, 4):
            p0, p1, p2, p3 = a0[k], a0[k + 1], a0[k + 2], a0[k + 3]
            q0, q1, q2, q3 = a1[k], a1[k + 1], a1[k + 2], a1[k + 3]
            r0, r1, r2, r3 = a2[k], a2[k + 1], a2[k + 2], a2[k + 3]
            s0, s1, s2, s3 = a3[k], a3[k + 1], a3[k + 2], a3[k + 3]
            w0, w1, w2, w3 = w[k], w[k + 1], w[k + 2], w[k + 3]
            for j in range(columns):
                v0, v1, v2, v3 = w0[j], w1[j], w2[j], w3[j]
                o0[j] += p0 * v0 + p1 * v1 + p2 * v2 + p3 * v3
                o1[j] += q0 * v0 + q1 * v1 + q2 * v2 + q3 * v3
                o2[j] += r0 * v0 + r1 * v1 + r2 * v2 + r3 * v3
                o3[j] += s0 * v0 + s1 * v1 + s2 * v2 + s3 * v3
    whole = rows - rows % 4
    for b in range(rows):  # what is left of rows and columns
        for k in range(fours if b < whole else 0, inner):
            value, line, row = a[b, k], w[k], out[b]
            for j in range(columns):
                row[j] += value * line[j]


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def add_turned(a, h, out):  # type: ignore[no-untyped-def]
    """out += a' h."""
    rows, inner = a.shape[1], a.shape[0]
    fours, columns, whole = inner - inner % 4, h.shape[1], rows - rows % 4
    for b in range(0, whole, 4):
        o0, o1, o2, o3 = out[b], out[b + 1], out[b + 2], out[b + 3]
        for k in range(0, fours, 4):
            a0, a1, a2, a3 = a[k], a[k + 1], a[k + 2], a[k + 3]
            p0, p1, p2, p3 = a0[b], a1[b], a2[b], a3[b]
            q0, q1, q2, q3 = a0[b + 1], a1[b + 1], a2[b + 1], a3[b + 1]
            r0, r1, r2, r3 = a0[b + 2], a1[b + 2], a2[b + 2], a3[b + 2]
            s0, s1, s2, s3 = a0[b + 3], a1[b + 3], a2[b + 3], a3[b + 3]
            h0, h1, h2, h3 = h[k], h[k + 1], h[k + 2], h[k + 3]
            for j in range(columns):
                v0, v1, v2, v3 = h0[j], h1[j], h2[j], h3[j]
                o0[j] += p0 * v0 + p1 * v1 + p2 * v2 + p3 * v3
                o1[j] += q0 * v0 + q1 * v1 + q2 * v2 + q3 * v3
                o2[j] += r0 * v0 + r1 * v1 + r2 * v2 + r3 * v3
                o3[j] += s0 * v0 + s1 * v1 + s2 * v2 + s3 * v3
    for b in range(rows):  # what is left
        for k in range(fours if b < whole else 0, inner):
            value, line, row = a[k, b], h[k], out[b]
            for j in range(columns):
                row[j] += value * line[j]


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def flow_back(first, z, h, weight, to_h, to_weight, to_bias):  # type: ignore[no-untyped-def]
    """From the gradient z (n, V) of h W' + b to those of h, W and b, added to what is there; of W,
    from the second time on. W in tiles, each of which is read and written once.
    """
    for at in range(0, z.shape[1], _TILE):
        tile, rows = z[:, at : at + _TILE], weight[at : at + _TILE]
        add_product(tile, rows, to_h)
        if len(to_weight):
            if first:
                to_weight[at : at + _TILE] = f32(0.0)
            add_turned(tile, h, to_weight[at : at + _TILE])
        bias = to_bias[at : at + _TILE]
        for i in range(len(tile)):
            line = tile[i]
            for j in range(len(bias)):
                bias[j] += line[j]
