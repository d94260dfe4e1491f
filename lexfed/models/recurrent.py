"""An LSTM layer, forward and backward, as compiled loops (Hochreiter & Schmidhuber, 1997):

    i, f, g, o = s(a_i), s(a_f), tanh(a_g), s(a_o)      a_t = W x_t + U h_(t-1) + b
    c_t = f c_(t-1) + i g                               h_t = o tanh(c_t)

torch's own takes dozens of small calls a step, and its way back through packed texts lays down a
buffer as large as all of them at every step. Here W x of all steps is one product, then one loop
goes along the steps, and on the way back the gradients of the weights are one product each.

Texts are packed: all first words, then all second words, longest text first. At step t there are
sizes[t] rows. On the CPU in single precision these loops read; elsewhere, and for the gradient of a
gradient, torch's own does. They agree to rounding.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from lexfed.models.products import FAST, add_product

f32, i32 = np.float32, np.int32

State = tuple[Tensor, Tensor]  # h and c, (layers, B, h) each


def packed(x: Tensor, sizes: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Texts (N, d) from empty states, one way or both: (N, h) or (N, 2h). Each way has four
    weights, in torch's order.
    """
    if not _here(x):
        ways, width = len(weights) // 4, weights[1].shape[1]
        zero = x.new_zeros(ways, int(sizes[0]), width)
        again = torch.is_grad_enabled()  # cuDNN has no gradient of what it reads without
        state = (zero, zero)
        return torch.lstm(x, sizes, state, list(weights), True, 1, 0.0, again, ways == 2)[0]
    zero = x.new_zeros(int(sizes[0]), weights[1].shape[1])
    read = [
        _read(x, sizes, (zero, zero), way > 0, weights[way : way + 4])[0]
        for way in range(0, len(weights), 4)
    ]
    return read[0] if len(read) == 1 else torch.cat(read, 1)


def layered(x: Tensor, state: State, weights: Sequence[Tensor]) -> tuple[Tensor, State]:
    """Texts of one length (B, T, d) from these states, one layer above the other: (B, T, h), and
    the states at the end. Of the states there is no gradient.
    """
    layers = len(weights) // 4
    if not _here(x):
        again = torch.is_grad_enabled()
        states, *last = torch.lstm(x, state, list(weights), True, layers, 0.0, again, False, True)
        return states, (last[0], last[1])
    rows, steps = x.shape[:2]
    sizes, ends = torch.full((steps,), rows), []
    read = x.transpose(0, 1).flatten(0, 1)
    for layer in range(layers):
        begin = state[0][layer], state[1][layer]
        read, c = _read(read, sizes, begin, False, weights[4 * layer : 4 * layer + 4])
        ends.append((read[-rows:].detach(), c[-rows:]))
    states = read.view(steps, rows, -1).transpose(0, 1)
    return states, (torch.stack([h for h, _ in ends]), torch.stack([c for _, c in ends]))


def _here(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.float32


def _read(
    x: Tensor, sizes: Tensor, begin: State, back: bool, weights: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """h and c of every word, (N, h)."""
    found: tuple[Tensor, Tensor] = _Layer.apply(x, sizes, *begin, back, *weights)  # type: ignore[no-untyped-call]
    return found


class _Layer(torch.autograd.Function):  # torch takes a hand-made gradient only as a subclass
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, sizes: Tensor, h0: Tensor, c0: Tensor, back: bool,
        w: Tensor, u: Tensor, b: Tensor, b2: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        gates = torch.addmm(b + b2, x, w.t())  # (N, 4h); the loop turns sums into gates
        h, c, before = (x.new_empty(len(x), u.shape[1]) for _ in range(3))
        forward(back, *map(_array, (gates, u.t(), sizes, h0, c0, h, c, before)))
        ctx.save_for_backward(x, sizes, h0, c0, w, u, b, b2, gates, c, before)
        ctx.back = back
        ctx.mark_non_differentiable(c)
        return h, c

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, sizes, h0, c0, w, u, b, b2, gates, c, before = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient's own gradient will be asked for
            return _by_torch(x, sizes, (h0, c0), ctx.back, (w, u, b, b2), upstream)
        delta = torch.empty_like(gates)
        carried = x.new_empty(2, int(sizes.max()), u.shape[1])
        backward(ctx.back, *map(_array, (upstream, gates, u, sizes, c0, c, delta, *carried)))
        asked = ctx.needs_input_grad  # what is frozen costs nothing
        to_x = delta @ w if asked[0] else None
        to_w, to_u = delta.t() @ x if asked[5] else None, delta.t() @ before if asked[6] else None
        to_b = delta.sum(0) if asked[7] or asked[8] else None
        return to_x, None, None, None, None, to_w, to_u, to_b, to_b


def _array(value: Tensor) -> Any:
    return value.contiguous().numpy()


def _by_torch(
    x: Tensor, sizes: Tensor, begin: State, back: bool, weights: Sequence[Tensor], upstream: Tensor
) -> tuple[Tensor | None, ...]:
    """The same gradient, with its graph. torch's own reads backwards only beside a way forwards."""
    ways = 2 if back else 1
    state = [torch.stack([one] * ways) for one in begin]
    both = torch.lstm(x, sizes, state, [*weights] * ways, True, 1, 0.0, True, back)[0]
    h = both[:, both.shape[1] // ways * (ways - 1) :]
    asked = [one for one in (x, *weights) if one.requires_grad]
    found = iter(torch.autograd.grad(h, asked, upstream, create_graph=True))
    to_x, *to_weights = (next(found) if one.requires_grad else None for one in (x, *weights))
    return to_x, None, None, None, None, *to_weights


# --- compiled -------------------------------------------------------------------------------------


@njit(nogil=True, cache=True, fastmath=FAST, inline="always")
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


@njit(nogil=True, cache=True, fastmath=FAST, inline="always")
def sigmoid(x):  # type: ignore[no-untyped-def]
    return f32(1.0) / (f32(1.0) + exp(-x))


@njit(nogil=True, cache=True, fastmath=FAST, inline="always")
def tanh(x):  # type: ignore[no-untyped-def]
    return f32(2.0) / (f32(1.0) + exp(f32(-2.0) * x)) - f32(1.0)


@njit(nogil=True, cache=True, fastmath=FAST)
def sigmoids(values):  # type: ignore[no-untyped-def]
    found = np.empty_like(values)
    for i in range(len(values)):
        found[i] = sigmoid(values[i])
    return found


@njit(nogil=True, cache=True, fastmath=FAST)
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


@njit(nogil=True, cache=True, fastmath=FAST)
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
