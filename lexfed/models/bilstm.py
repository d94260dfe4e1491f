"""A bidirectional LSTM classifier: embed, read both ways, pool over the real words, classify."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from lexfed.core.params import Params
from lexfed.core.seeds import Seed, derive, torch_generator
from lexfed.models import recurrent
from lexfed.models.model import (
    EMBEDDING,
    ENCODER,
    HEAD,
    TABLE,
    Batch,
    ModelOptions,
    dropout,
    embed,
    lstm_weights,
)

_LSTM = tuple(
    f"lstm.{kind}_l0{way}"
    for way in ("", "_reverse")
    for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
)


FIRST_LAYER = frozenset(_LSTM)  # what reads the word vectors
INPUTS = tuple(name for name in _LSTM if ".weight_ih" in name)  # the matrices that multiply them


@dataclass(frozen=True)
class BiLSTMClassifier:
    options: ModelOptions
    classes: int
    word_dropout: float = 0.0  # whole words, in training

    def init(self, vocab_size: int, seed: Seed) -> Params:
        d, h = self.options.embedding, self.options.hidden

        # one generator per parameter: the size of one never moves the start of another
        def uniform(name: str, *shape: int, bound: float) -> Tensor:
            return torch.empty(shape).uniform_(
                -bound, bound, generator=torch_generator(derive(seed, name))
            )

        params = {
            TABLE: torch.empty(vocab_size, d).normal_(
                0, 0.1, generator=torch_generator(derive(seed, TABLE))
            )
        }
        shapes = {
            "weight_ih": (4 * h, d),
            "weight_hh": (4 * h, h),
            "bias_ih": (4 * h,),
            "bias_hh": (4 * h,),
        }
        for name in _LSTM:
            params[name] = uniform(name, *shapes[name.split(".")[1].split("_l0")[0]], bound=h**-0.5)
        if self.options.pooling == "attention":
            params["attention.query"] = uniform("attention.query", 2 * h, bound=(2 * h) ** -0.5)
        params["output.weight"] = uniform(
            "output.weight", self.classes, 2 * h, bound=(2 * h) ** -0.5
        )
        params["output.bias"] = torch.zeros(self.classes)
        return params

    def logits(self, params: Params, batch: Batch, seed: Seed | None) -> Tensor:
        generator = None if seed is None else torch_generator(seed)
        packed = pack_padded_sequence(batch.ids, batch.lengths, batch_first=True)
        # (N,) the N real words, all first words first
        device = params[TABLE].device
        ids, batch_sizes = packed.data.to(device), packed.batch_sizes
        x = dropout(embed(params, ids), self.word_dropout, generator, whole_rows=True)  # (N, d)
        x = dropout(x, self.options.dropout, generator)
        weights = lstm_weights(params, _LSTM, x, self.options.hidden)
        states = recurrent.packed(x, batch_sizes, weights)  # (N, 2h)
        # (N,) which text a word is of
        one = torch.arange(len(batch)).expand(len(batch_sizes), -1)
        text = one[one < batch_sizes[:, None]].to(device)
        lengths = batch.lengths.to(device)
        pooled = dropout(
            self._pool(params, states, text, lengths), self.options.dropout, generator
        )  # (B, 2h)
        return F.linear(pooled, params["output.weight"], params["output.bias"])  # (B, C)

    def _pool(self, params: Params, states: Tensor, text: Tensor, lengths: Tensor) -> Tensor:
        empty = states.new_zeros(len(lengths), states.shape[1])
        if self.options.pooling == "mean":
            return empty.index_add(0, text, states) / lengths[:, None]
        if self.options.pooling == "max":
            least = torch.full_like(empty, -torch.inf)
            return least.scatter_reduce(0, text[:, None].expand_as(states), states, "amax")
        scores = torch.tanh(states) @ params["attention.query"]  # (N,)
        # subtracting each text's largest score keeps exp in range; the constant leaves softmax as
        # it is
        largest = scores.new_full((len(lengths),), -torch.inf).scatter_reduce(
            0, text, scores.detach(), "amax"
        )
        weights = torch.exp(scores - largest[text])
        total = scores.new_zeros(len(lengths)).index_add(0, text, weights)
        return empty.index_add(0, text, states * weights[:, None]) / total[:, None]

    @property
    def word_table(self) -> str:
        return TABLE

    @property
    def dimension(self) -> int:
        return self.options.embedding

    @property
    def input_dropout(self) -> float:
        return self.options.dropout

    @property
    def first_layer(self) -> frozenset[str]:
        return FIRST_LAYER

    @property
    def inputs(self) -> tuple[str, ...]:
        return INPUTS

    def depth(self, name: str) -> int:
        depths = {"embedding": EMBEDDING, "lstm": ENCODER, "attention": ENCODER}
        return depths.get(name.split(".")[0], HEAD)
