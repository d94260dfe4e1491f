"""An LSTM language model: embed, read from left to right, and ask every row of the output how well
it comes next.

    x_t           = E[token t]
    h_t^l, c_t^l  = LSTM_l(h_t^{l-1}, h_{t-1}^l, c_{t-1}^l)    l = 1 .. layers, h^0 = x,
                                                               all as wide as E
    logits_t      = h_t W' + b

Dropout is on x and on the last layer's h. Between layers torch's own would read the global
generator.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lexfed.core.params import Params
from lexfed.core.seeds import Seed, derive, torch_generator
from lexfed.models import recurrent
from lexfed.models.language_model import (
    BIAS,
    EMBEDDING,
    OUTPUT,
    LanguageModelOptions,
    Step,
    TokenBatch,
)
from lexfed.models.model import dropout, lstm_weights
from lexfed.models.next_token import (
    Reading,
    next_token_gradient,
    next_token_loss,
    read_by_autograd,
)
from lexfed.models.recurrent import State

_STRETCH = 64  # columns of a long sequence that are read at once


@dataclass(frozen=True)
class LstmLanguageModel:
    options: LanguageModelOptions
    soft_targets: ClassVar[bool] = True
    adam_rate: ClassVar[float] = 8e-3

    def init(self, vocab_size: int, seed: Seed) -> Params:
        d = self.options.width

        # one generator per parameter: the size of one never moves the start of another
        def uniform(name: str, *shape: int) -> Tensor:
            return torch.empty(shape).uniform_(
                -(d**-0.5), d**-0.5, generator=torch_generator(derive(seed, name))
            )

        params = {EMBEDDING: uniform(EMBEDDING, vocab_size, d)}
        for name in self._names():
            params[name] = uniform(name, 4 * d, d) if "weight" in name else uniform(name, 4 * d)
        if not self.options.tied:
            params[OUTPUT] = uniform(OUTPUT, vocab_size, d)
        return params | {BIAS: torch.zeros(vocab_size)}

    def hidden(self, params: Params, ids: Tensor, seed: Seed | None) -> Tensor:
        return self._run(params, ids, self._empty(params, len(ids)), seed)[0]

    def loss(self, params: Params, batch: TokenBatch, seed: Seed | None) -> Tensor:
        return next_token_loss(params, self.hidden(params, batch.ids[:, :-1], seed), batch)

    def gradient(
        self, params: Params, batch: TokenBatch, seed: Seed | None
    ) -> tuple[float, Params]:
        plain = self.options.dropout == 0
        trained = all(params[name].requires_grad for name in (EMBEDDING, *self._names()))
        direct = plain and trained and recurrent.compiled(params[EMBEDDING])
        read = self._read_and_back if direct else read_by_autograd(self.hidden)
        return next_token_gradient(read, params, batch, seed, plain)

    def _read_and_back(self, params: Params, ids: Tensor, seed: Seed | None) -> Reading:
        """By the compiled loops alone."""
        table = params[EMBEDDING].detach()
        x = F.embedding(ids, table)
        weights = lstm_weights(params, self._names(), x, self.options.width)
        states, flow = recurrent.layered_and_back(x, [one.detach() for one in weights])

        def back(upstream: Tensor) -> Params:
            to_x, to_weights = flow(upstream)
            to_table = torch.zeros_like(table).index_add_(0, ids.flatten(), to_x.flatten(0, 1))
            return {EMBEDDING: to_table, **dict(zip(self._names(), to_weights, strict=True))}

        return states, back

    def read(self, params: Params, ids: Tensor, counts: Tensor) -> Iterator[Tensor]:
        """The state is carried over the whole sequence."""
        h, c = self._empty(params, len(ids))
        for start in range(0, int(counts.max()), _STRETCH):
            rows = int((counts > start).sum())
            state = h[:, :rows].contiguous(), c[:, :rows].contiguous()
            states, (h, c) = self._run(params, ids[:rows, start : start + _STRETCH], state)
            yield states

    def stepper(self, params: Params, rows: int) -> Step:
        h, c = self._empty(params, rows)

        def step(ids: Tensor, fresh: Tensor) -> Tensor:
            nonlocal h, c
            keep = ~fresh[None, :, None].to(h.device)
            states, (h, c) = self._run(params, ids[:, None], (h * keep, c * keep))
            return states[:, 0]

        return step

    def _run(
        self, params: Params, ids: Tensor, state: State, seed: Seed | None = None
    ) -> tuple[Tensor, State]:
        generator = None if seed is None else torch_generator(seed)
        embedded = F.embedding(ids.to(params[EMBEDDING].device), params[EMBEDDING])
        x = dropout(embedded, self.options.dropout, generator)  # (B, T, d)
        weights = lstm_weights(params, self._names(), x, self.options.width)
        # padded, not packed: padding comes last, so nothing real is read after it, and packing is
        # no faster
        states, after = recurrent.layered(x, state, weights)
        return dropout(states, self.options.dropout, generator), after

    def _empty(self, params: Params, rows: int) -> State:
        zeros = params[EMBEDDING].new_zeros(self.options.layers, rows, self.options.width)
        return zeros, zeros

    def _names(self) -> list[str]:
        kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return [f"lstm.{kind}_l{layer}" for layer in range(self.options.layers) for kind in kinds]
