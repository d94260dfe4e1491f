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

_TILE = 64  # rows of a large table that stay in the cache meanwhile
_TOGETHER = 128  # rows of packed texts whose gradients go to the weights at once
f32, i32 = np.float32, np.int32
_LEAST, _MOST = f32(1e-25), f32(1e30)  # a sum of exponents in between has lost nothing


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


# --- a softmax over many rows ---------------------------------------------------------------------


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


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def cross_entropy(of, h, weight, bias, states, targets, counts, beside, to_h, to_weight, to_bias, losses):  # type: ignore[no-untyped-def]  # fmt: skip # noqa: E501
    """-log softmax(z)[target] of every target with z = W h' + b, and the gradient of their sum over
    `of` to h, W and b, added to what is there; to W only where it has rows. `states` says which row
    of h a target is asked of, `counts` how many targets each row has, and `beside` (V, N), where it
    has rows, what is added to the targets of each.

    W goes by in tiles twice, once to make z and once for what flows back, and each is read and
    written while it is near. With e = exp(z) and s its sum over W, the gradient to z is
    (e - s onehot) / s: so nothing is divided but the rows of h, which are few.
    """
    asked, inner = h.shape
    h, counts = _whole(h), _whole(counts.reshape(asked, 1))[:, 0]
    e = np.empty((len(bias), len(h)), np.float32)
    sums = _sound_exponents(h, weight, bias, e)
    for k in range(len(targets)):
        i, j = states[k], targets[k]
        losses[k] = np.log(sums[i]) - np.log(e[j, i])
    for k in range(len(targets)):
        i, j = states[k], targets[k]
        e[j, i] -= sums[i] / counts[i]
    for j in range(len(beside)):
        for i in range(asked):
            e[j, i] -= sums[i] / counts[i] * beside[j, i]
    scale, scaled, back = counts / sums / f32(of), np.empty_like(h), np.zeros_like(h)
    for i in range(len(h)):
        for j in range(inner):
            scaled[i, j] = h[i, j] * scale[i]
    for at in range(0, len(bias), _TILE):
        tile = e[at : at + _TILE]
        add_turned(tile, weight[at : at + _TILE], back)
        if len(to_weight):
            add_product(tile, scaled, to_weight[at : at + _TILE])
        for j in range(len(tile)):
            total = f32(0.0)
            for i in range(len(h)):
                total += tile[j, i] * scale[i]
            to_bias[at + j] += total
    for i in range(asked):
        for j in range(inner):
            to_h[i, j] += back[i, j] * scale[i]


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def chances(h, weight, bias):  # type: ignore[no-untyped-def]
    """softmax(W h' + b), turned: (V, N). A bias of -1e4 is a token that can't be."""
    count, h = len(h), _whole(h)
    e = np.empty((len(bias), len(h)), np.float32)
    sums = _sound_exponents(h, weight, bias, e)
    found = np.empty((len(bias), count), np.float32)
    for j in range(len(bias)):
        for i in range(count):
            found[j, i] = e[j, i] / sums[i]
    return found


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def add_spread(t, u, shares, p, columns, out):  # type: ignore[no-untyped-def]
    """out[t, columns] += share p[u], of every share; what is of one t lies together."""
    row, last = np.zeros(p.shape[1], np.float32), -1
    for k in range(len(t) + 1):
        if last >= 0 and (k == len(t) or t[k] != last):
            for i in range(len(columns)):
                out[last, columns[i]] += row[i]
            row[:] = f32(0.0)
        if k < len(t):
            last = t[k]
            share, line = f32(shares[k]), p[u[k]]
            for i in range(len(row)):
                row[i] += share * line[i]


@njit(nogil=True, cache=True)
def _whole(rows):  # type: ignore[no-untyped-def]
    """With rows at the end that count for nothing: a multiple of 16 is quicker by a tenth."""
    found = np.full((-(-len(rows) // 16) * 16, rows.shape[1]), f32(0.0))
    found[: len(rows)] = rows
    return found


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _sound_exponents(h, weight, bias, e):  # type: ignore[no-untyped-def]
    """e = exp(W h' + b), less each largest where numbers need that, and its sums over V."""
    sums = _exponents(h, weight, bias, np.zeros(len(h), np.float32), e)
    for i in range(len(h)):
        if not _LEAST < sums[i] < _MOST:  # nearly always they are far from both
            return _exponents(h, weight, bias, _largest(h, weight, bias), e)
    return sums


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _exponents(h, weight, bias, top, e):  # type: ignore[no-untyped-def]
    """e = exp(W h' + b - top), (V, N), and its sums over V."""
    turned, sums = np.ascontiguousarray(h.T), np.zeros(len(h), np.float32)
    some = np.empty_like(sums)
    for at in range(0, len(bias), _TILE):
        tile = e[at : at + _TILE]
        for j in range(len(tile)):
            for i in range(len(h)):
                tile[j, i] = bias[at + j] - top[i]
        add_product(weight[at : at + _TILE], turned, tile)
        some[:] = f32(0.0)  # of a tile: a long sum of single numbers, one by one, would drift
        for j in range(len(tile)):
            for i in range(len(h)):
                tile[j, i] = exp(tile[j, i])
                some[i] += tile[j, i]
        for i in range(len(h)):
            sums[i] += some[i]
    return sums


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _largest(h, weight, bias):  # type: ignore[no-untyped-def]
    """Of W h' + b over W; no number where one is none."""
    most = np.full(len(h), f32(-np.inf))
    for j in range(len(bias)):
        for i in range(len(h)):
            z = bias[j]
            for k in range(h.shape[1]):
                z += weight[j, k] * h[i, k]
            if not z <= most[i]:
                most[i] = z
    return most


# --- an LSTM layer --------------------------------------------------------------------------------


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
def forward(back, x, w, bias, u, sizes, h0, c0, gates, h, c, before):  # type: ignore[no-untyped-def]
    """The gates i, f, g, o (N, 4h) of every step, h, c, and the h that each began with. w is
    (d, 4h), u (h, 4h). A step is done with while its numbers are near.
    """
    width, steps, rows, at = h.shape[1], len(sizes), 0, 0
    starts = np.cumsum(sizes) - sizes
    for step in range(steps):
        t = steps - 1 - step if back else step
        last, n, at = at, sizes[t], starts[t]
        for b in range(n):  # those from `rows` on begin here
            for j in range(width):
                before[at + b, j] = h0[b, j] if b >= rows else h[last + b, j]
            for j in range(4 * width):
                gates[at + b, j] = bias[j]
        add_product(x[at : at + n], w, gates[at : at + n])
        add_product(before[at : at + n], u, gates[at : at + n])
        for b in range(n):
            begun = b >= rows
            for j in range(width):
                i, f = sigmoid(gates[at + b, j]), sigmoid(gates[at + b, width + j])
                g, o = tanh(gates[at + b, 2 * width + j]), sigmoid(gates[at + b, 3 * width + j])
                old = c0[b, j] if begun else c[last + b, j]
                new = f * old + i * g
                gates[at + b, j], gates[at + b, width + j] = i, f
                gates[at + b, 2 * width + j], gates[at + b, 3 * width + j] = g, o
                c[at + b, j], h[at + b, j] = new, o * tanh(new)
        rows = n


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def backward(back, upstream, x, w, u, sizes, c0, gates, c, before, delta, to_h, to_c, to_x, to_w, to_u, to_b):  # type: ignore[no-untyped-def]  # fmt: skip # noqa: E501
    """From dL / dh to delta = dL / da of every step (N, 4h), and to x, W, U and b; what has no rows
    is not asked for. What flows back to a step's h and c from the next is in `to_h` and `to_c`,
    (B, h). w is (4h, d), u (4h, h); what is added to them is turned, (d, 4h) and (h, 4h): long rows
    are quicker.
    """
    width, steps, after, later, done = c.shape[1], len(sizes), 0, 0, 0
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
            begun = b >= rows
            for j in range(width):
                i, f = gates[at + b, j], gates[at + b, width + j]
                g, o = gates[at + b, 2 * width + j], gates[at + b, 3 * width + j]
                old = c0[b, j] if begun else c[first + b, j]
                shown, e = tanh(c[at + b, j]), upstream[at + b, j] + to_h[b, j]
                d = to_c[b, j] + e * o * (f32(1.0) - shown * shown)
                delta[at + b, j] = d * g * i * (f32(1.0) - i)
                delta[at + b, width + j] = d * old * f * (f32(1.0) - f)
                delta[at + b, 2 * width + j] = d * i * (f32(1.0) - g * g)
                delta[at + b, 3 * width + j] = e * shown * o * (f32(1.0) - o)
                to_c[b, j] = d * f
        after, later, done = n, at, done + n
        if done >= _TOGETHER or step == steps - 1:  # what lies together, while it is near
            low = at + n - done if back else at
            some = slice(low, low + done)
            _to_weights(delta[some], x[some], w, before[some], to_x[some], to_w, to_u, to_b)
            done = 0


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _to_weights(delta, x, w, before, to_x, to_w, to_u, to_b):  # type: ignore[no-untyped-def]
    if len(to_x):
        to_x[:] = f32(0.0)
        add_product(delta, w, to_x)
    if len(to_w):
        add_turned(x, delta, to_w)
    if len(to_u):
        add_turned(before, delta, to_u)
    for i in range(len(delta)):
        for j in range(len(to_b)):
            to_b[j] += delta[i, j]
