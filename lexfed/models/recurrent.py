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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lexfed.core.errors import WireError

State = tuple[Tensor, Tensor]  # h and c, (layers, B, h) each


def packed(x: Tensor, sizes: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Texts (N, d) from empty states, one way or both: (N, h) or (N, 2h). Each way has four
    weights, in torch's order.
    """
    if not compiled(x):
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
    if not compiled(x):
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


Back = Callable[[Tensor], tuple[Tensor, list[Tensor]]]  # to x, and to the weights


def layered_and_back(x: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, Back]:
    """The same from empty states, and what flows back from it, without autograd: its graph costs a
    small model more than its arithmetic.
    """
    rows, steps = x.shape[:2]
    sizes, zero = torch.full((steps,), rows), x.new_zeros(rows, weights[1].shape[1])
    seen, read = [], x.transpose(0, 1).flatten(0, 1)
    for layer in range(0, len(weights), 4):
        seen.append(_forward(read, sizes, (zero, zero), False, weights[layer : layer + 4]))
        read = seen[-1].h

    def back(upstream: Tensor) -> tuple[Tensor, list[Tensor]]:
        to, found = upstream.transpose(0, 1).flatten(0, 1), list[Tensor]()
        for one in reversed(seen):
            to, *others = _backward(one, to, (True,) * 4)
            found[:0] = [*others, others[-1]]
        return to.view(steps, rows, -1).transpose(0, 1), found

    return read.view(steps, rows, -1).transpose(0, 1), back


def compiled(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.float32


def _read(
    x: Tensor, sizes: Tensor, begin: State, back: bool, weights: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """h and c of every word, (N, h)."""
    found: tuple[Tensor, Tensor] = _Layer.apply(x, sizes, *begin, back, *weights)  # type: ignore[no-untyped-call]
    return found


@dataclass(frozen=True)
class _Seen:
    """What the way back needs of the way there."""

    x: Tensor  # (N, d)
    sizes: Tensor
    c0: Tensor
    back: bool
    w: Tensor
    u: Tensor
    gates: Tensor  # (N, 4h)
    h: Tensor  # (N, h)
    c: Tensor
    before: Tensor  # the h that each word began with


def _forward(
    x: Tensor, sizes: Tensor, begin: State, back: bool, weights: Sequence[Tensor]
) -> _Seen:
    from lexfed.models.loops import forward  # compiled: loaded when first needed

    (h0, c0), (w, u, b, b2) = begin, weights
    _check(x, sizes, begin, weights)
    gates = x.new_empty(len(x), len(u))
    h, c, before = x.new_empty(3, len(x), u.shape[1])
    made = (gates, h, c, before)
    forward(back, *map(_array, (x, w.t(), b + b2, u.t(), sizes, h0, c0, *made)))
    return _Seen(x, sizes, c0, back, w, u, gates, h, c, before)


def _check(x: Tensor, sizes: Tensor, begin: State, weights: Sequence[Tensor]) -> None:
    """The loops read and write wherever they are told to."""
    width = weights[1].shape[-1]
    shapes = [(4 * width, x.shape[-1]), (4 * width, width), (4 * width,), (4 * width,)]
    rows = int(sizes.max())
    fits = [tuple(one.shape) for one in weights] == shapes and int(sizes.sum()) == len(x)
    if not fits or int(sizes.min()) < 1 or any(one.shape != (rows, width) for one in begin):
        raise WireError("the weights of an LSTM do not fit what it reads")


def _backward(seen: _Seen, upstream: Tensor, asked: Sequence[bool]) -> list[Tensor]:
    """The gradients of x, W, U and b; of those that are not asked for there is nothing: what is
    frozen costs nothing.
    """
    from lexfed.models.loops import backward

    x, w, u, gates = seen.x, seen.w, seen.u, seen.gates
    shapes = (x.shape, (x.shape[1], len(w)), (u.shape[1], len(u)), (len(u),))
    to = [
        x.new_zeros(shape) if yes else x.new_empty(0, *shape[1:])
        for shape, yes in zip(shapes, asked, strict=True)
    ]
    known = (upstream, x, w, u, seen.sizes, seen.c0, gates, seen.c, seen.before)
    carried = x.new_empty(2, int(seen.sizes.max()), u.shape[1])
    backward(seen.back, *map(_array, (*known, torch.empty_like(gates), *carried, *to)))
    # torch's fused optimizers read gradients as they lie
    return [to[0], to[1].t().contiguous(), to[2].t().contiguous(), to[3]]


class _Layer(torch.autograd.Function):  # torch takes a hand-made gradient only as a subclass
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, sizes: Tensor, h0: Tensor, c0: Tensor, back: bool,
        w: Tensor, u: Tensor, b: Tensor, b2: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        seen = _forward(x, sizes, (h0, c0), back, (w, u, b, b2))
        ctx.save_for_backward(x, sizes, h0, c0, w, u, b, b2, seen.gates, seen.c, seen.before)
        ctx.back = back
        ctx.mark_non_differentiable(seen.c)
        return seen.h, seen.c

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, sizes, h0, c0, w, u, b, b2, gates, c, before = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient's own gradient will be asked for
            return _by_torch(x, sizes, (h0, c0), ctx.back, (w, u, b, b2), upstream)
        seen = _Seen(x, sizes, c0, ctx.back, w, u, gates, c, c, before)
        needed = ctx.needs_input_grad
        asked = (needed[0], needed[5], needed[6], needed[7] or needed[8])
        to = _backward(seen, upstream, asked)
        to_x, to_w, to_u, to_b = (one if yes else None for one, yes in zip(to, asked, strict=True))
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
