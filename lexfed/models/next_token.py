"""The loss of a language model and its gradient: a softmax over the vocabulary at every position.

    z    = h W' + b                           W is the embedding itself where they are tied
    loss = mean over a batch's targets of -log softmax(z)[target]

The softmax costs most of a step, so it is taken at real positions only and for a few of them at a
time, the gradient is written over the logits, and on the CPU all of it is compiled (`loops`).

A batch may say more of what comes next than the token that did (`TokenBatch.beside`, soft targets):
the gradient to z is then softmax(z) - onehot(target) - beside.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lexfed.core.errors import WireError
from lexfed.core.params import Params
from lexfed.core.seeds import Seed
from lexfed.models.language_model import BIAS, CHUNK, EMBEDDING, OUTPUT, TokenBatch, output_of

_SMALL = 100_000  # numbers of a table up to which looking for states that are alike does not pay

# hidden states (B, T, d) of inputs (B, T), and what flows back from them: from a gradient of theirs
# to those of the parameters that ask for one
Reading = tuple[Tensor, Callable[[Tensor], Params]]
Read = Callable[[Params, Tensor, Seed | None], Reading]


def read_by_autograd(hidden: Callable[[Params, Tensor, Seed | None], Tensor]) -> Read:
    def read(params: Params, ids: Tensor, seed: Seed | None) -> Reading:
        with torch.enable_grad():
            states = hidden(params, ids, seed)

        def back(upstream: Tensor) -> Params:
            trained = [name for name, value in params.items() if value.requires_grad]
            if not trained:
                return {}
            found = torch.autograd.grad(states, [params[name] for name in trained], upstream)
            return dict(zip(trained, found, strict=True))

        return states.detach(), back

    return read


def next_token_loss(params: Params, hidden: Tensor, batch: TokenBatch) -> Tensor:
    """Of the hidden states (B, T, d) of a batch's inputs; those of padding are left out."""
    weight, bias = output_of(params)
    asked = _asked(batch)
    states = hidden.flatten(0, 1)[asked.places.to(hidden.device)]
    loss: Tensor = _CrossEntropy.apply(states, weight, bias, asked)  # type: ignore[no-untyped-call]
    return loss


def next_token_gradient(
    read: Read, params: Params, batch: TokenBatch, seed: Seed | None, alike: bool
) -> tuple[float, Params]:
    """The loss, and its gradient for those parameters that ask for one; hidden states of inputs
    that are alike are `alike` where there is no dropout.

    The same as autograd of `next_token_loss`, with a tenth of its passes over the large tables: the
    embedding is cut down to the rows that are read, and what flows back to them is added to what
    the softmax says of all rows.
    """
    rows, places = torch.unique(batch.ids[:, :-1], return_inverse=True)
    inner = {n: v.detach() for n, v in params.items() if n not in (OUTPUT, BIAS)}
    inner[EMBEDDING] = inner[EMBEDDING][rows]
    inner = {n: v.requires_grad_(params[n].requires_grad) for n, v in inner.items()}
    hidden, back = read(inner, places, seed)
    weight, bias = output_of(params)
    # to find them takes as long as they save where the table is small
    once = alike and weight.numel() > _SMALL and batch.beside is None
    asked = _asked_once(batch) if once else _asked(batch)
    at = asked.places.to(hidden.device)
    loss, upstream, to_weight, to_bias = _softmax(
        hidden.flatten(0, 1)[at], weight.detach(), bias.detach(), asked, weight.requires_grad
    )
    to_hidden = hidden.new_zeros(hidden.shape)
    to_hidden.view(-1, hidden.shape[2])[at] = upstream
    gradient = {**back(to_hidden), BIAS: to_bias}
    if EMBEDDING in gradient:
        table = to_weight if OUTPUT not in params else torch.zeros_like(params[EMBEDDING])
        gradient[EMBEDDING] = table.index_add_(0, rows.to(table.device), gradient[EMBEDDING])
    if OUTPUT in params:
        gradient[OUTPUT] = to_weight
    return float(loss), {n: g for n, g in gradient.items() if params[n].requires_grad}


@dataclass(frozen=True)
class _Asked:
    """What the softmax is asked: of which hidden states, and which tokens came next."""

    places: Tensor  # (S,) of the states, in the batch laid out flat
    states: Tensor  # (N,) ascending: which of them each target is asked of
    targets: Tensor  # (N,)
    counts: Tensor  # (S,) how many targets a state has
    beside: Callable[[Tensor], Tensor] | None = None  # as the batch has it; each state its target


@dataclass(frozen=True)
class _Output:
    """What the last layer reads, or the gradients to it."""

    hidden: Tensor  # (S, d)
    weight: Tensor  # (V, d)
    bias: Tensor  # (V,)


def _real(batch: TokenBatch) -> Tensor:  # (B, T)
    """Which inputs have a target."""
    return torch.arange(batch.ids.shape[1] - 1) < batch.lengths[:, None] - 1


def _asked(batch: TokenBatch) -> _Asked:
    """Every target of a state of its own."""
    places = _real(batch).flatten().nonzero().squeeze(1)
    targets = batch.ids[:, 1:].flatten()[places]
    each = torch.arange(len(places))
    return _Asked(places, each, targets, torch.ones(len(places)), batch.beside)


def _asked_once(batch: TokenBatch) -> _Asked:
    """The same, but windows that begin with the same token have one first state: all texts begin
    with BOS. What flows back to it flows through it once, for all of them.
    """
    real, ids = _real(batch), batch.ids
    begun = real[:, 0].nonzero().squeeze(1)  # windows
    _, which, counts = torch.unique(ids[begun, 0], return_inverse=True, return_counts=True)
    order = torch.argsort(which, stable=True)
    begun = begun[order]
    first = begun[counts.cumsum(0) - counts]  # one window of each first token
    real[:, 0] = False
    rest = real.flatten().nonzero().squeeze(1)
    return _Asked(
        torch.cat([first * real.shape[1], rest]),
        torch.cat([which[order], torch.arange(len(rest)) + len(first)]),
        torch.cat([ids[begun, 1], ids[:, 1:].flatten()[rest]]),
        torch.cat([counts.float(), torch.ones(len(rest))]),
    )


def _softmax(
    hidden: Tensor, weight: Tensor, bias: Tensor, asked: _Asked, rows: bool = True
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """mean of -log softmax(z)[target] with z = h W' + b, and its gradient (softmax(z) - onehot) / N
    to h, W and b, chunk by chunk; to W only where its `rows` are trained.

    The gradient is written over the logits, so that (N, V) numbers never exist: less memory, and
    faster for it.
    """
    _check(hidden, weight, bias, asked.targets)
    weight, bias = weight.contiguous(), bias.contiguous()  # and so is what is made like them
    to_hidden, to_bias = torch.zeros_like(hidden), torch.zeros_like(bias)
    to_weight = torch.zeros_like(weight) if rows else weight.new_empty(0, weight.shape[1])
    here = hidden.device.type == "cpu" and hidden.dtype == torch.float32
    add = _add_compiled if here else _add_chunk
    of, to = _Output(hidden, weight, bias), _Output(to_hidden, to_weight, to_bias)
    losses = [add(of, asked, at, to) for at in range(0, len(hidden), CHUNK)]
    return torch.cat(losses).mean(), to_hidden, to_weight, to_bias


def _check(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> None:
    """Compiled loops read and write wherever they are told to, and parameters may come from a
    server that nobody trusts.
    """
    if weight.shape != (len(bias), hidden.shape[1]) or bias.ndim != 1:
        raise WireError(
            f"'{OUTPUT}' (or '{EMBEDDING}') and '{BIAS}' do not fit: {tuple(weight.shape)} and "
            f"{tuple(bias.shape)} for states of {hidden.shape[1]}"
        )
    if {weight.dtype, bias.dtype} != {hidden.dtype}:
        raise WireError(f"'{OUTPUT}' (or '{EMBEDDING}') and '{BIAS}' are not {hidden.dtype}")
    if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < len(bias):
        raise WireError(f"a token is beyond the {len(bias)} rows of '{BIAS}'")


def _targets(asked: _Asked, at: int) -> tuple[Tensor, Tensor]:
    """The targets of a chunk, and of which of its states they are asked."""
    ends = torch.searchsorted(asked.states, torch.tensor([at, at + CHUNK])).tolist()
    return asked.states[slice(*ends)] - at, asked.targets[slice(*ends)]


def _add_chunk(of: _Output, asked: _Asked, at: int, to: _Output) -> Tensor:
    h, (states, targets) = of.hidden[at : at + CHUNK], _targets(asked, at)
    counts, cells = asked.counts[at : at + CHUNK], states * len(of.bias) + targets
    counts, cells = counts.to(h.device, h.dtype), cells.to(h.device)
    z = torch.addmm(of.bias, h, of.weight.t())  # (n, V)
    torch.softmax(z, 1, out=z)
    # a chance that is too small for a number counts as the smallest there is
    losses = -z.view(-1)[cells].clamp_min(torch.finfo(z.dtype).tiny).log()
    z *= counts[:, None]
    z.view(-1).index_add_(0, cells, z.new_full(cells.shape, -1.0))
    if asked.beside is not None:
        z -= asked.beside(asked.places[at : at + CHUNK]).t()
    z /= len(asked.targets)
    to.hidden[at : at + CHUNK] = z @ of.weight
    if len(to.weight):
        to.weight.addmm_(z.t(), h)
    to.bias.add_(z.sum(0))
    return losses


def _add_compiled(of: _Output, asked: _Asked, at: int, to: _Output) -> Tensor:
    from lexfed.models.loops import cross_entropy  # compiled: loaded when first needed

    states, targets = _targets(asked, at)
    losses, some = of.hidden.new_empty(len(targets)), slice(at, at + CHUNK)
    beside = of.bias.new_empty(0, 0)
    if asked.beside is not None:
        beside, fits = asked.beside(asked.places[some]), (len(of.bias), len(of.hidden[some]))
        if beside.shape != fits or beside.dtype != of.bias.dtype:
            raise ValueError(f"soft targets are {tuple(beside.shape)}, not {fits} like the output")
    given = (of.hidden[some], of.weight, of.bias, states, targets, asked.counts[some], beside)
    made = (to.hidden[some], to.weight, to.bias, losses)
    arrays = (one.contiguous().numpy() for one in (*given, *made))
    cross_entropy(len(asked.targets), *arrays)
    return losses


class _CrossEntropy(torch.autograd.Function):  # torch takes a hand-made gradient only as a subclass
    """The same for autograd."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, asked: _Asked) -> Tensor:
        loss, *gradients = _softmax(hidden, weight, bias, asked, ctx.needs_input_grad[1])
        ctx.save_for_backward(*gradients)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients = (upstream * gradient for gradient in ctx.saved_tensors)
        wanted = zip(gradients, ctx.needs_input_grad, strict=False)
        return *(gradient if needed else None for gradient, needed in wanted), None
