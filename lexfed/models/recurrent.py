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

import torch
from torch import Tensor

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
        from lexfed.models.loops import forward  # compiled: loaded when first needed

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
        from lexfed.models.loops import backward

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
