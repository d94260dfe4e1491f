"""Compiled loops of models: matrix products of a few rows, what flows back from a softmax, an LSTM
layer along the steps of packed texts (see `recurrent`).

A product takes four rows by four columns at a time: a line that was loaded is used four times, and
a line of the result is read and written once for four products. On some processors that is faster
than the library that torch was built with; in loops of their own they cost no call.

All are in one file: what was compiled is kept by the file it came from, and would not notice that
another one has changed.
"""

import numpy as np
from numba import njit

from lexfed.core.kernels import FAST

_TILE = 256  # rows of a large table that stay in the cache meanwhile
f32, i32 = np.float32, np.int32


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


# --- an LSTM layer --------------------------------------------------------------------------------


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy", inline="always")
def exp(x):  # type: ignore[no-untyped-def]
    """e^x = 2^n e^r with |r| <= log(2) / 2, e^r by a polynomial (Cephes' expf): to 1.2e-7 of it.
    Plain arithmetic, so that it vectorises.
    """
    x = f32(-87.0) if x < f32(-87.0) else x  # NaN is below nothing, and stays
    x = f32(88.0) if x > f32(88.0) else x
    n = np.floor(x * f32(1.44269504088896341) + f32(0.5))
    r = x - n * f32(0.693359375) + n * f32(2.12194440e-4)
    p = f32(1.9875691500e-4) * r + f32(1.3981999507e-3)
    p = p * r + f32(8.3334519073e-3)
    p = p * r + f32(4.1665795894e-2)
    p = p * r + f32(1.6666665459e-1)
    p = p * r + f32(5.0000001201e-1)
    p = p * r * r + r + f32(1.0)
    return p * i32((i32(n) + i32(127)) << i32(23)).view(np.float32)


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy", inline="always")
def sigmoid(x):  # type: ignore[no-untyped-def]
    return f32(1.0) / (f32(1.0) + exp(-x))


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy", inline="always")
def tanh(x):  # type: ignore[no-untyped-def]
    return f32(2.0) / (f32(1.0) + exp(f32(-2.0) * x)) - f32(1.0)


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def sigmoids(values):  # type: ignore[no-untyped-def]
    found = np.empty_like(values)
    for i in range(len(values)):
        found[i] = sigmoid(values[i])
    return found


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def forward(back, gates, u, sizes, h0, c0, h, c, before):  # type: ignore[no-untyped-def]
    """From W x + b in `gates` (N, 4h) to i, f, g, o there; h, c, and the h that each step began
    with. u is (h, 4h).
    """
    width, steps, rows, at = h.shape[1], len(sizes), 0, 0
    starts = np.cumsum(sizes) - sizes
    for step in range(steps):
        t = steps - 1 - step if back else step
        last, n, at = at, sizes[t], starts[t]
        for b in range(n):  # those from `rows` on begin here
            before[at + b] = h0[b] if b >= rows else h[last + b]
        add_product(before[at : at + n], u, gates[at : at + n])
        for b in range(n):
            a, cell, state = gates[at + b], c[at + b], h[at + b]
            old = c0[b] if b >= rows else c[last + b]
            for j in range(2 * width):
                a[j] = sigmoid(a[j])
            for j in range(2 * width, 3 * width):
                a[j] = tanh(a[j])
            for j in range(3 * width, 4 * width):
                a[j] = sigmoid(a[j])
            for j in range(width):
                cell[j] = a[width + j] * old[j] + a[j] * a[2 * width + j]
            for j in range(width):
                state[j] = a[3 * width + j] * tanh(cell[j])
        rows = n


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def backward(back, upstream, gates, u, sizes, c0, c, delta, to_h, to_c):  # type: ignore[no-untyped-def]
    """delta = dL / da of every step, (N, 4h), from dL / dh. What flows back to a step's h and c
    from the next is in `to_h` and `to_c`, (B, h). u is (4h, h).
    """
    width, steps, after, later = c.shape[1], len(sizes), 0, 0
    starts = np.cumsum(sizes) - sizes
    for step in range(steps):
        t = step if back else steps - 1 - step
        n, at = sizes[t], starts[t]
        came = t + 1 if back else t - 1  # the step that it went on from
        rows = min(n, sizes[came]) if 0 <= came < steps else 0
        first = starts[came] if rows else 0
        flows = min(n, after)
        to_h[:n] = f32(0.0)
        to_c[flows:n] = f32(0.0)
        add_product(delta[later : later + flows], u, to_h[:flows])
        for b in range(n):
            a, cell, into, to_a = gates[at + b], c[at + b], upstream[at + b], delta[at + b]
            old = c[first + b] if b < rows else c0[b]
            flow, kept = to_h[b], to_c[b]
            for j in range(width):
                i, f, g, o = a[j], a[width + j], a[2 * width + j], a[3 * width + j]
                shown, e = tanh(cell[j]), into[j] + flow[j]
                d = kept[j] + e * o * (f32(1.0) - shown * shown)
                to_a[j] = d * g * i * (f32(1.0) - i)
                to_a[width + j] = d * old[j] * f * (f32(1.0) - f)
                to_a[2 * width + j] = d * i * (f32(1.0) - g * g)
                to_a[3 * width + j] = e * shown * o * (f32(1.0) - o)
                kept[j] = d * f
        after, later = n, at
