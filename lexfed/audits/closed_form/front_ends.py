"""Front ends: what the first matrix on the wire reads of a text, as far as public files tell.

    words    x_t = E[word t]                                  BiLSTM, with a public table of word
                                                              vectors
    encoder  x_t = LayerNorm(E[token t] + position t + type)  BERT, DistilBERT, with their
                                                              pretrained module

Candidates stand in the order of their frequency in public text, which is the prior. What a client
did to its own copy of the table since is not public: it blurs, and a ranking bears it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import torch
from torch import Tensor

from lexfed.audits.closed_form.attackers import Attacker, Public
from lexfed.audits.closed_form.row_names import pretrained_order
from lexfed.core.params import Params
from lexfed.experiment.assembly import Assembly
from lexfed.experiment.config import Config
from lexfed.metrics import leakage
from lexfed.metrics.leakage import Spectrum
from lexfed.metrics.masked_span import masked_ranking
from lexfed.models.encoder import load_encoder
from lexfed.models.model import EMBEDDING, input_dropout, inputs_of
from lexfed.vocabulary.pretrained import PretrainedTokenizer
from lexfed.vocabulary.splitting import words

# query, key and value of an encoder's first layer, as BERT and DistilBERT call them
ATTENTION = tuple(
    f".layer.0.attention.{name}.weight"
    for name in ("self.query", "self.key", "self.value", "q_lin", "k_lin", "v_lin")
)
KINDS = ("bert", "distilbert")
EPSILON = 1e-12  # of LayerNorm, in both


class FrontEnd(Protocol):
    @property
    def words(self) -> Sequence[str]:
        """The candidates, the most frequent first."""

    def is_first(self, name: str, value: Tensor) -> bool:
        """Whether this parameter multiplies the inputs."""

    def ids(self, text: str) -> list[int]:
        """The candidates in a text, as far as clients read it."""

    def ranking(self, found: Spectrum, attacker: Attacker) -> Tensor:
        """All candidates, the likeliest first."""

    def inputs(self, text: str, attacker: Attacker) -> Tensor:  # (T, d)
        """What is read of a text, as far as it is known."""


@dataclass(frozen=True, eq=False)
class Words:
    public: Public
    vectors: Tensor  # (C, d)
    limit: int  # words of a text
    first: tuple[str, ...]  # the matrices that multiply vectors
    dropout: float = 0.0  # of the numbers of a vector, when a client reads it

    @property
    def words(self) -> Sequence[str]:
        return self.public.words

    def is_first(self, name: str, value: Tensor) -> bool:
        # else a private projection is in between
        return name in self.first and value.shape[1] == self.vectors.shape[1]

    def ids(self, text: str) -> list[int]:
        places = self.public.places
        return [places[word] for word in words(text)[: self.limit] if word in places]

    def ranking(self, found: Spectrum, attacker: Attacker) -> Tensor:
        """Masks are drawn over the client's own axes: who sees a part of them can't model those."""
        seen = attacker.view(self.vectors)
        whole = seen.shape == self.vectors.shape
        return masked_ranking(found, seen, self.dropout if whole else 0.0)

    def inputs(self, text: str, attacker: Attacker) -> Tensor:
        return attacker.view(self.vectors[self.ids(text)])


@dataclass(frozen=True, eq=False)
class Encoder:
    """Nothing is turned here, so attackers differ in nothing."""

    tokenizer: PretrainedTokenizer
    order: Tensor  # (C,) token ids, the most frequent first
    table: Tensor  # (V, d)
    places: Tensor  # (P, d): each position with the type of a first sentence
    scale: Tensor  # (d,) of LayerNorm
    shift: Tensor  # (d,)
    eps: float

    @cached_property
    def words(self) -> Sequence[str]:
        tokens = self.tokenizer.vocabulary.tokens
        return [tokens[i] for i in self.order.tolist()]

    @cached_property
    def _candidates(self) -> Mapping[int, int]:
        return {token: place for place, token in enumerate(self.order.tolist())}

    def is_first(self, name: str, value: Tensor) -> bool:
        return name.endswith(ATTENTION)

    def ids(self, text: str) -> list[int]:
        return [
            self._candidates[token]
            for token in self.tokenizer.encode(text)
            if token in self._candidates
        ]

    def ranking(self, found: Spectrum, attacker: Attacker) -> Tensor:
        """Each candidate at the position where it fits best."""
        return self.distances(found).amin(1).argsort(stable=True)

    def distances(self, found: Spectrum) -> Tensor:  # (C, P)
        """`leakage.word_distances` of every candidate at every position, at the price of the
        candidates alone.

        x = (w + p) / s + b, where words and positions are centred and scaled, and s is their
        deviation: x' M x is made of what words and positions say apart, and no x is built.
        """
        words, places, deviation = self._parts
        w, p, b = (part @ found.axes for part in (words, places, self.shift.double()))

        def form(m: Tensor) -> Tensor:  # (C, P): x' M x, M by its eigenvalues
            own = (w * w) @ m + 2 * (p * m) @ w.T + ((p * p) @ m)[:, None]  # (P, C)
            return (
                own / deviation**2
                + 2 * (w @ (m * b) + (p @ (m * b))[:, None]) / deviation
                + b @ (m * b)
            ).T

        ratio = form(leakage.word_distances(found, found.axes.T)) / form(
            torch.ones_like(found.values)
        )
        # a residual is a length, leverage a square; what differs by rounding alone is the same
        return ratio.clamp(min=0).sqrt().round(decimals=6) if found.exact else ratio

    @cached_property
    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:  # (C, d), (P, d), (P, C)
        words, places = (
            part - part.mean(1, keepdim=True)
            for part in (self.table[self.order].double(), self.places.double())
        )
        squares = (
            words.square().sum(1) + 2 * places @ words.T + places.square().sum(1, keepdim=True)
        )
        return (
            words * self.scale,
            places * self.scale,
            (squares / len(self.scale) + self.eps).sqrt(),
        )

    def inputs(self, text: str, attacker: Attacker) -> Tensor:
        read = self.tokenizer.encode(text)
        x = self.table[read] + self.places[: len(read)]
        return torch.nn.functional.layer_norm(x, self.scale.shape, self.scale, self.shift, self.eps)


def build(assembly: Assembly, public: Public) -> FrontEnd | None:
    """As the configuration says; None: there is no public table that a client could have started
    from.
    """
    config, tokenizer = assembly.config, assembly.tokenizer
    if isinstance(tokenizer, PretrainedTokenizer):
        return _encoder(config, tokenizer) if config.model.pretrained else None
    if public.vectors is None:
        return None
    model = getattr(getattr(assembly.parts, "task", None), "model", None)
    length = config.train.max_length
    return Words(public, public.vectors, length, inputs_of(model), input_dropout(model))


def _encoder(config: Config, tokenizer: PretrainedTokenizer) -> Encoder | None:
    module = _module(config.model.name)
    if module is None:
        return None
    positions = module["position_embeddings.weight"][: config.train.max_length]
    kinds = module.get("token_type_embeddings.weight")  # DistilBERT has none
    return Encoder(
        tokenizer,
        pretrained_order(tokenizer)[: config.audit.candidates],
        module["word_embeddings.weight"],
        positions if kinds is None else positions + kinds[0],
        module["LayerNorm.weight"],
        module["LayerNorm.bias"],
        EPSILON,
    )


@lru_cache(maxsize=1)
def _module(name: str) -> Params | None:
    """The embedding module of a public encoder, as it was published; None: of a kind that is put
    together otherwise.
    """
    model = load_encoder(name, classes=2, pretrained=True)
    if model.module.config.model_type not in KINDS:
        return None
    embedding = {
        name: value
        for name, value in model.module.named_parameters()
        if model.depth(name) == EMBEDDING
    }
    return {name.split(".embeddings.")[1]: value.detach() for name, value in embedding.items()}
