"""What every model is, and the batches it reads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lexfed.core.errors import ConfigError, WireError
from lexfed.core.params import Params
from lexfed.core.seeds import Seed, torch_generator


@dataclass(frozen=True)
class ModelOptions:
    """The `[model]` table. Defaults are FedeVocab's BiLSTM (1,446,002 parameters above the
    embedding, two classes).
    """

    # bilstm, minilm, a Hugging Face encoder by hub name or folder, or one of your own:
    # `package.module:MODEL`
    name: str = "bilstm"
    embedding: int = 300  # of the BiLSTM: numbers of a word's vector
    hidden: int = 300  # of the BiLSTM: its state, in each direction
    dropout: float = 0.5  # of the BiLSTM: share of numbers left out in a training step
    # of the BiLSTM: how the states of a text become one
    pooling: Literal["mean", "max", "attention"] = "mean"
    pretrained: bool = True  # of a Hugging Face encoder: start from its published weights

    def __post_init__(self) -> None:
        if self.embedding < 1 or self.hidden < 1:
            raise ConfigError("model.embedding and model.hidden must be at least 1")
        if not 0 <= self.dropout < 1:
            raise ConfigError("model.dropout is a share: at least 0 and below 1")


@dataclass(frozen=True)
class Example:
    ids: list[int]
    label: int


@dataclass(frozen=True)
class Batch:
    """Texts sorted by length, longest first, as packing wants them. It is on the CPU: a model moves
    what it needs to where its parameters are.
    """

    ids: Tensor  # (B, T) int64, padded with 0 behind each text's end
    lengths: Tensor  # (B,) int64
    labels: Tensor  # (B,) int64

    def __len__(self) -> int:
        return len(self.labels)


class Classifier(Protocol):
    def init(self, vocab_size: int, seed: Seed) -> Params: ...
    def logits(self, params: Params, batch: Batch, seed: Seed | None) -> Tensor:
        """(B, C). `seed` is dropout's; None means no dropout."""

    @property
    def word_table(self) -> str:
        """The name of the parameter with a row for every token."""

    def depth(self, name: str) -> int:
        """Where a parameter is: EMBEDDING, ENCODER or HEAD. Methods that part a model part it
        here.
        """


EMBEDDING, ENCODER, HEAD = range(3)

TABLE = "embedding.weight"
BEYOND = "embedding.beyond"  # more rows, behind the table's: looked up and never trained
PROJECTION = "embedding.projection"  # from a table of another dimension


@runtime_checkable
class WordClassifier(Classifier, Protocol):
    """One that reads word vectors. Any table of them can be put under it as `TABLE`, so a client
    may have its own.

    `embed` is how it must look words up, so that the rows of `BEYOND` and a `PROJECTION` count too.
    """

    @property
    def dimension(self) -> int:
        """Of the word vectors that it reads."""

    @property
    def first_layer(self) -> frozenset[str]:
        """The parameters that read them."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Those of them that multiply word vectors: what they move by lies in the span of a
        client's words.
        """


@runtime_checkable
class Wrapping(Classifier, Protocol):
    """A classifier around another one, whose parameters it lays out in its own way."""

    @property
    def model(self) -> Classifier: ...

    def whole(self, params: Params) -> Params:
        """The parameters as the model inside has them."""


def input_dropout(model: object) -> float:
    """The share of the numbers of a word's vector that a training step leaves out, each by chance
    and anew at every place; 0, where a model says nothing of it.
    """
    return float(getattr(model, "input_dropout", 0.0))


def inputs_of(model: object) -> tuple[str, ...]:
    """The matrices that multiply word vectors; none, of a model that does not read them."""
    return model.inputs if isinstance(model, WordClassifier) else ()


def lacking(model: object, protocol: type) -> list[str]:
    """What a model of the user's own has not, and must have."""
    names = dict.fromkeys(
        name
        for kind in reversed(protocol.__mro__)
        for name in vars(kind)
        if getattr(kind, "_is_protocol", False) and not name.startswith("_")
    )
    return [name for name in names if not hasattr(model, name)]


def embed(params: Params, ids: Tensor) -> Tensor:
    table = params[TABLE]
    if BEYOND in params:
        table = torch.cat([table, params[BEYOND]])
    x = F.embedding(ids, table)
    return x @ params[PROJECTION] if PROJECTION in params else x


def lstm_weights(params: Params, names: Sequence[str], x: Tensor, hidden: int) -> list[Tensor]:
    """What `torch.lstm` reads x (.., d) with. It takes any shape that it is given, and reads beyond
    the end of what is too small; and parameters may come from a server that nobody trusts.
    """
    for name in names:
        width = x.shape[-1] if ".weight_ih_l0" in name else hidden  # layers above read states
        shape = (4 * hidden, width) if ".weight" in name else (4 * hidden,)
        value = params.get(name)
        if value is None or value.shape != shape or value.dtype != x.dtype:
            raise WireError(f"'{name}' is no array of {x.dtype} of shape {shape}")
    return [params[name] for name in names]


def collate(examples: Sequence[Example]) -> Batch:
    ordered = sorted(examples, key=lambda example: -len(example.ids))
    lengths, longest = [len(example.ids) for example in ordered], len(ordered[0].ids)
    ids = [example.ids + [0] * (longest - len(example.ids)) for example in ordered]
    labels = [example.label for example in ordered]
    # numpy reads lists in half the time that torch takes
    return Batch(*(torch.from_numpy(np.array(one, np.int64)) for one in (ids, lengths, labels)))


def shuffled(examples: Sequence[Example], size: int, seed: Seed) -> Iterator[Batch]:
    """One epoch in random order."""
    order = torch.randperm(len(examples), generator=torch_generator(seed)).tolist()
    for start in range(0, len(order), size):
        yield collate([examples[i] for i in order[start : start + size]])


def by_length(examples: Sequence[Example], size: int) -> Iterator[Batch]:
    """All examples, neighbours in length together: the order for evaluation, where it does not
    matter.
    """
    ordered = sorted(examples, key=lambda example: len(example.ids))
    for start in range(0, len(ordered), size):
        yield collate(ordered[start : start + size])


def dropout(
    x: Tensor, rate: float, generator: torch.Generator | None, whole_rows: bool = False
) -> Tensor:
    """Inverted dropout from its own generator: nothing reads torch's global one."""
    if generator is None or rate == 0:
        return x
    # drawn on the CPU: the same numbers are left out on every device
    kept = x.new_empty(len(x), 1, device="cpu") if whole_rows else torch.empty_like(x, device="cpu")
    return x * kept.bernoulli_(1 - rate, generator=generator).div_(1 - rate).to(x.device)
