"""A transformer language model: a decoder with layer norms before its parts and learned positions.

    x   = E[token] + P[position]
    x  += project(attention(norm(x)))        every position sees itself and what is before it
    x  += contract(gelu(expand(norm(x))))    four times as wide inside; both lines `layers` times
    logits = norm(x) W' + b

It knows `context` positions. A longer sequence is read in windows that start context // 2 tokens
after one another; a window tells the hidden states that those before it did not reach. Scoring and
sampling read the same windows, so a token is drawn with the chance that it is scored with. Dropout
is on x and on what is added to it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lexfed.core.errors import ConfigError
from lexfed.core.params import Params
from lexfed.core.seeds import Seed, derive, torch_generator
from lexfed.models.language_model import (
    BIAS,
    EMBEDDING,
    OUTPUT,
    LanguageModelOptions,
    Step,
    TokenBatch,
)
from lexfed.models.model import dropout
from lexfed.models.next_token import next_token_gradient, next_token_loss, read_by_autograd

POSITIONS = "positions.weight"  # (context, d)
_SPREAD = 0.02  # of a fresh weight


@dataclass(frozen=True, eq=False)
class _Cache:
    """What each row has read of its window. Written in place: one sampler owns it. Numbers of
    tokens and places are on the CPU, keys and values where the parameters are.
    """

    ids: Tensor  # (R, context)
    keys: Tensor  # (L, R, H, context, d / H)
    values: Tensor  # as keys
    filled: Tensor  # (R,) how many positions hold something


@dataclass(frozen=True)
class TransformerLanguageModel:
    options: LanguageModelOptions
    soft_targets: ClassVar[bool] = True
    adam_rate: ClassVar[float] = 1e-3

    def init(self, vocab_size: int, seed: Seed) -> Params:
        return {
            name: self._fresh(name, shape, seed) for name, shape in self._shapes(vocab_size).items()
        }

    def _shapes(self, vocab_size: int) -> dict[str, tuple[int, ...]]:
        d = self.options.width
        shapes: dict[str, tuple[int, ...]] = {
            EMBEDDING: (vocab_size, d),
            POSITIONS: (self.options.context, d),
        }
        for at in (f"layers.{layer}" for layer in range(self.options.layers)):
            for part, rows, columns in (
                ("attend", 3 * d, d),
                ("project", d, d),
                ("expand", 4 * d, d),
                ("contract", d, 4 * d),
            ):
                shapes |= {f"{at}.{part}.weight": (rows, columns), f"{at}.{part}.bias": (rows,)}
            shapes |= {
                f"{at}.{norm}.{kind}": (d,)
                for norm in ("norm1", "norm2")
                for kind in ("weight", "bias")
            }
        shapes |= {"norm.weight": (d,), "norm.bias": (d,)}
        return (
            shapes
            | ({} if self.options.tied else {OUTPUT: (vocab_size, d)})
            | {BIAS: (vocab_size,)}
        )

    def _fresh(self, name: str, shape: tuple[int, ...], seed: Seed) -> Tensor:
        if len(shape) == 1:
            return torch.full(shape, float("norm" in name and name.endswith("weight")))
        # 2 * layers terms are added to x: so much smaller each, and their sum is as wide as one
        shrink = (
            (2 * self.options.layers) ** -0.5 if "project" in name or "contract" in name else 1.0
        )
        return torch.empty(shape).normal_(
            0, _SPREAD * shrink, generator=torch_generator(derive(seed, name))
        )

    def hidden(self, params: Params, ids: Tensor, seed: Seed | None) -> Tensor:
        return self._run(params, ids, seed)[0]

    def loss(self, params: Params, batch: TokenBatch, seed: Seed | None) -> Tensor:
        return next_token_loss(params, self.hidden(params, batch.ids[:, :-1], seed), batch)

    def gradient(
        self, params: Params, batch: TokenBatch, seed: Seed | None
    ) -> tuple[float, Params]:
        alike = self.options.dropout == 0
        return next_token_gradient(read_by_autograd(self.hidden), params, batch, seed, alike)

    def read(self, params: Params, ids: Tensor, counts: Tensor) -> Iterator[Tensor]:
        """The first window whole, then of each the columns that are new: at least context // 2 are
        before them.
        """
        context, start, done, longest = self.options.context, 0, 0, int(counts.max())
        while done < longest:
            window = ids[: int((counts > done).sum()), start : start + context]
            yield self.hidden(params, window, None)[:, done - start :]
            start, done = start + context // 2, start + context

    def stepper(self, params: Params, rows: int) -> Step:
        cache, every = self._cache(params, rows), torch.arange(rows)
        device = cache.keys.device
        there = every.to(device)

        def step(ids: Tensor, fresh: Tensor) -> Tensor:
            cache.filled[fresh] = 0
            self._slide(params, cache)
            at, end = cache.filled, int(cache.filled.max()) + 1  # (R,)
            cache.ids[every, at] = ids
            seen = (torch.arange(end) <= at[:, None])[:, None, None].to(device)  # (R, 1, 1, end)
            ids, at = ids.to(device), at.to(device)
            x = (F.embedding(ids, params[EMBEDDING]) + params[POSITIONS][at])[:, None]  # (R, 1, d)
            for layer, keys, values in zip(
                range(self.options.layers), cache.keys, cache.values, strict=True
            ):
                q, k, v = self._heads(params, layer, x)  # (R, H, 1, d / H)
                keys[there, :, at], values[there, :, at] = k[:, :, 0], v[:, :, 0]
                mixed = F.scaled_dot_product_attention(
                    q, keys[:, :, :end], values[:, :, :end], attn_mask=seen
                )
                x = self._rest(params, layer, x, mixed, None)
            cache.filled.add_(1)
            return _norm(params, "norm", x)[:, 0]

        return step

    def _cache(self, params: Params, rows: int) -> _Cache:
        o = self.options
        shape = (o.layers, rows, o.heads, o.context, o.width // o.heads)
        ids = torch.zeros(rows, o.context, dtype=torch.int64)
        keys, values = (params[EMBEDDING].new_zeros(shape) for _ in range(2))
        return _Cache(ids, keys, values, torch.zeros(rows, dtype=torch.int64))

    def _slide(self, params: Params, cache: _Cache) -> None:
        """Rows whose window is full go on in the next: its first part is read again, at its new
        positions.
        """
        full = (cache.filled == self.options.context).nonzero().squeeze(1)
        if len(full) == 0:
            return
        again = cache.ids[full, self.options.context // 2 :]  # (n, k)
        k = again.shape[1]
        there = full.to(cache.keys.device)
        for layer, (keys, values) in enumerate(self._run(params, again, None)[1]):
            cache.keys[layer][there, :, :k], cache.values[layer][there, :, :k] = keys, values
        cache.ids[full, :k], cache.filled[full] = again, k

    def _run(
        self, params: Params, ids: Tensor, seed: Seed | None
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Hidden states (B, T, d), and the keys and values of every layer."""
        length = ids.shape[1]
        if length > self.options.context:
            raise ConfigError(
                f"a window of {length} tokens is longer than language_model.context = "
                f"{self.options.context}"
            )
        generator = None if seed is None else torch_generator(seed)
        ids = ids.to(params[EMBEDDING].device)
        x = F.embedding(ids, params[EMBEDDING]) + params[POSITIONS][:length]
        x, seen = dropout(x, self.options.dropout, generator), []
        for layer in range(self.options.layers):
            q, k, v = self._heads(params, layer, x)
            seen.append((k, v))
            x = self._rest(
                params, layer, x, F.scaled_dot_product_attention(q, k, v, is_causal=True), generator
            )
        return _norm(params, "norm", x), seen

    def _heads(
        self, params: Params, layer: int, x: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:  # (B, H, T, d / H) each
        all_three = _linear(
            params, f"layers.{layer}.attend", _norm(params, f"layers.{layer}.norm1", x)
        )  # (B, T, 3 d)
        q, k, v = all_three.reshape(*x.shape[:2], 3, self.options.heads, -1).permute(2, 0, 3, 1, 4)
        return q, k, v

    def _rest(
        self,
        params: Params,
        layer: int,
        x: Tensor,
        mixed: Tensor,
        generator: torch.Generator | None,
    ) -> Tensor:
        """A layer from the heads' answers (B, H, T, d / H) on."""
        at, rate = f"layers.{layer}", self.options.dropout
        x = x + dropout(
            _linear(params, f"{at}.project", mixed.transpose(1, 2).flatten(2)), rate, generator
        )
        normed = _norm(params, f"{at}.norm2", x)
        inside = F.gelu(_linear(params, f"{at}.expand", normed))  # (B, T, 4 d)
        return x + dropout(_linear(params, f"{at}.contract", inside), rate, generator)


def _linear(params: Params, name: str, x: Tensor) -> Tensor:
    return F.linear(x, params[f"{name}.weight"], params[f"{name}.bias"])


def _norm(params: Params, name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], params[f"{name}.weight"], params[f"{name}.bias"])
