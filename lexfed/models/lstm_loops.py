"""The compiled loops of an LSTM layer along the steps of packed texts (see `recurrent`)."""

import numpy as np
from numba import njit

from lexfed.models.products import FAST, add_product

f32, i32 = np.float32, np.int32


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
