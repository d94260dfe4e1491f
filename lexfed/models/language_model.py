"""Language models trained from scratch (Bagdasaryan et al., "Training a Tokenizer for Free with
Private Federated Learning", 2022): the chance of the next token, from all tokens before it.

    h_t    = model(x_1 .. x_t)              an LSTM or a transformer, from an empty state
    p_t    = softmax(h_t W' + b)            W is the embedding itself where they are tied
    loss   = mean over a batch's targets of -log p_t(x_{t+1})
    score  = -log p_t(x_{t+1}) of every token of a sequence, read in full
    sample = x_{t+1} ~ p_t^(1/temperature) without BOS, from BOS until EOS

How it is trained: `next_token`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lexfed.core.errors import ConfigError, nearest
from lexfed.core.importing import is_own, own, takes
from lexfed.core.params import Params
from lexfed.core.seeds import Seed, torch_generator
from lexfed.models.model import lacking

EMBEDDING = "embedding.weight"  # (V, d)
OUTPUT = "output.weight"  # (V, d); absent when tied
BIAS = "output.bias"  # (V,)
TOKEN_ROWS = (EMBEDDING, OUTPUT, BIAS)  # what has a row per token, and moves with the tokenizer

# positions whose logits exist at once: a block that stays in the cache, and 10 MB at 10,000 tokens
CHUNK = 256
_TOGETHER = 64  # sequences that are scored at once

Step = Callable[[Tensor, Tensor], Tensor]


NAMES = ("lstm", "transformer")


@dataclass(frozen=True)
class LanguageModelOptions:
    """The `[language_model]` table. Defaults are the paper's LSTM: 14.0 M parameters at 10,000
    tokens.
    """

    # lstm, transformer, or `package.module:FUNCTION` that builds one of your own
    name: str = "lstm"
    layers: int = 3  # of the LSTM or the transformer
    width: int = 584  # the paper's transformer, also of 14.0 M, is layers = 6 and width = 376
    heads: int = 8  # of a transformer
    dropout: float = 0.0  # share of numbers left out in a training step
    tied: bool = True  # the output's rows are the embedding's
    context: int = 64  # tokens of a training window, and the positions a transformer knows

    def __post_init__(self) -> None:
        if self.name not in NAMES and not is_own(self.name):
            raise ConfigError(
                f"language_model.name = '{self.name}' is not known; {nearest(self.name, NAMES)}"
            )
        if min(self.layers, self.width, self.heads) < 1:
            raise ConfigError("language_model.layers, .width and .heads must be at least 1")
        if self.name == "transformer" and self.width % self.heads:
            raise ConfigError("language_model.width must be a multiple of language_model.heads")
        if not 0 <= self.dropout < 1:
            raise ConfigError("language_model.dropout is a share: at least 0 and below 1")
        if self.context < 2:
            raise ConfigError("language_model.context must be at least 2")


@dataclass(frozen=True)
class TokenBatch:
    """On the CPU: a model moves what it needs to where its parameters are."""

    ids: Tensor  # (B, T + 1) int64, padded with 0 behind each window's end
    lengths: Tensor  # (B,) int64: a window of n tokens has n - 1 targets
    # soft targets: what is added to the token that came next, at these places of the inputs laid
    # out flat, (n,) -> (V, n); none: the token alone. The gradient knows of it, and the loss, a
    # number to look at, does not
    beside: Callable[[Tensor], Tensor] | None = None

    def __len__(self) -> int:
        return len(self.lengths)


class LanguageModel(Protocol):
    """Where it also has `gradient(params, batch, seed) -> (loss, gradient)`, training asks that,
    and else torch for the gradient of its loss. Where it has `soft_targets = True`, that gradient
    minds `batch.beside`. With `adam_rate` it says which learning rate of Adam suits it once it has
    learned something.
    """

    def init(self, vocab_size: int, seed: Seed) -> Params:
        """Every parameter from a generator of its own: the size of the vocabulary moves no
        parameter but TOKEN_ROWS.
        """

    def hidden(self, params: Params, ids: Tensor, seed: Seed | None) -> Tensor:
        """(B, T) -> (B, T, d), from an empty state. `seed` is dropout's; None means no dropout."""

    def loss(self, params: Params, batch: TokenBatch, seed: Seed | None) -> Tensor:
        """Mean negative log likelihood of the batch's targets."""

    def read(self, params: Params, ids: Tensor, counts: Tensor) -> Iterator[Tensor]:
        """Whole sequences, however long: hidden states (b, t, d) of one stretch of columns after
        the other.

        Of the inputs in row i of `ids` (B, T) the first counts[i] are real. Rows come longest
        first; b have not ended.
        """

    def stepper(self, params: Params, rows: int) -> Step:
        """Reading token by token: step(ids (R,), fresh (R,) bool) -> (R, d). A fresh row starts
        from an empty state.
        """


def adam_rate(model: LanguageModel) -> float:
    rate = getattr(model, "adam_rate", 1e-3)
    if not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise ConfigError(
            f"{type(model).__name__}.adam_rate is {rate!r}, and no learning rate: make it a number "
            "above 0, or set tokenizer_for_free.teach_lr"
        )
    return float(rate)


LANGUAGE_MODELS = ("lstm", "transformer")  # ours; any other is the user's own


def build(options: LanguageModelOptions) -> LanguageModel:
    from lexfed.models.lstm_lm import LstmLanguageModel  # both import this module
    from lexfed.models.transformer_lm import TransformerLanguageModel

    if options.name == "lstm":
        return LstmLanguageModel(options)
    if options.name == "transformer":
        return TransformerLanguageModel(options)
    make = own(options.name, "language_model.name")
    if not callable(make) or not takes(make, options):
        raise ConfigError(f"language_model.name = '{options.name}' must be a function of (options)")
    found: LanguageModel = make(options)
    if lacks := lacking(found, LanguageModel):
        raise ConfigError(
            f"language_model.name = '{options.name}': {type(found).__name__} is no LanguageModel: "
            f"it lacks {', '.join(lacks)}"
        )
    return found


# --- training -------------------------------------------------------------------------------------


def windows(sequences: Sequence[Sequence[int]], context: int) -> list[list[int]]:
    """Pieces of at most context + 1 tokens. The last of one is the first of the next, so each token
    is a target once.
    """
    return [
        list(one[at : at + context + 1])
        for one in sequences
        for at in range(0, len(one) - 1, context)
    ]


def batches(windows: TokenBatch, size: int, seed: Seed) -> Iterator[TokenBatch]:
    """One epoch in random order."""
    order = torch.randperm(len(windows), generator=torch_generator(seed))
    for some in torch.split(order, size):
        lengths = windows.lengths[some]
        # what is held in fewer bytes is made numbers of here
        yield TokenBatch(windows.ids[some, : int(lengths.max())].long(), lengths)


def pad(sequences: Sequence[Sequence[int]]) -> TokenBatch:
    lengths = torch.tensor([len(one) for one in sequences])
    ids = torch.zeros(len(sequences), int(lengths.max()), dtype=torch.int64)
    for row, one in zip(ids, sequences, strict=True):
        row[: len(one)] = torch.tensor(one, dtype=torch.int64)
    return TokenBatch(ids, lengths)


def output_of(params: Params) -> tuple[Tensor, Tensor]:
    return params[OUTPUT] if OUTPUT in params else params[EMBEDDING], params[BIAS]


# --- scoring --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scored:
    """A sequence of n tokens, of which the first is given."""

    nll: Tensor  # (n - 1,)
    best: Tensor  # (n - 1,) bool: no other token was more likely


def score(model: LanguageModel, params: Params, sequences: Sequence[Sequence[int]]) -> list[Scored]:
    """Every token but the first of each sequence, from all that the model can take in before it."""
    params = {name: value.detach() for name, value in params.items()}
    # neighbours in length together
    order = sorted(range(len(sequences)), key=lambda i: -len(sequences[i]))
    scored: dict[int, Scored] = {}
    for start in range(0, len(order), _TOGETHER):
        some = order[start : start + _TOGETHER]
        scored.update(
            zip(some, _score(model, params, pad([sequences[i] for i in some])), strict=True)
        )
    return [scored[i] for i in range(len(sequences))]


def _score(model: LanguageModel, params: Params, batch: TokenBatch) -> Iterator[Scored]:
    inputs, targets, counts = batch.ids[:, :-1], batch.ids[:, 1:], (batch.lengths - 1).clamp(min=0)
    nll, best = torch.zeros(inputs.shape), torch.zeros(inputs.shape, dtype=torch.bool)
    at = 0
    for hidden in model.read(params, inputs, counts):
        rows, width = hidden.shape[:2]
        here = slice(0, rows), slice(at, at + width)
        real = torch.arange(at, at + width) < counts[:rows, None]  # (b, t)
        found = _likelihood(params, hidden[real], targets[here][real].to(hidden.device))
        nll[here][real], best[here][real] = (one.cpu() for one in found)
        at += width
    for row, count in enumerate(counts.tolist()):
        yield Scored(nll[row, :count].clone(), best[row, :count].clone())


def _likelihood(params: Params, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """(N, d), (N,) -> (N,), (N,)"""
    weight, bias = output_of(params)
    nll, best = [], []
    for h, y in zip(torch.split(hidden, CHUNK), torch.split(targets, CHUNK), strict=True):
        z = torch.addmm(bias, h, weight.t())  # (n, V)
        nll.append(torch.logsumexp(z, 1) - z.gather(1, y[:, None]).squeeze(1))
        best.append(z.argmax(1) == y)
    return torch.cat(nll), torch.cat(best)


def expected_tokens(
    model: LanguageModel, params: Params, sequences: Sequence[Sequence[int]]
) -> Tensor:
    """How often the model expects each token at the places of these sequences, (V,)."""
    weight, bias = output_of(params)
    total = torch.zeros_like(bias)
    for start in range(0, len(sequences), _TOGETHER):
        batch, at = pad(sorted(sequences[start : start + _TOGETHER], key=len, reverse=True)), 0
        counts = (batch.lengths - 1).clamp(min=0)
        for hidden in model.read(params, batch.ids[:, :-1], counts):
            rows, width = hidden.shape[:2]
            real = torch.arange(at, at + width) < counts[:rows, None]  # (b, t)
            for h in torch.split(hidden[real], CHUNK):
                total += torch.softmax(torch.addmm(bias, h, weight.t()), 1).sum(0)
            at += width
    return total


# --- sampling -------------------------------------------------------------------------------------


def sample(
    model: LanguageModel,
    params: Params,
    count_tokens: int,
    length: int,
    bos: int,
    eos: int,
    temperature: float,
    seed: Seed,
    rows: int = 256,
) -> Iterator[list[int]]:
    """Sequences from BOS until EOS or `length` tokens, without either; so many that `count_tokens`
    were drawn, EOS too.

    A row that ends begins anew at once. When there are enough tokens none begins, but those begun
    are finished: leaving them out would leave out long ones more often than short ones.
    """
    if not temperature > 0 or min(length, rows) < 1 or bos == eos:
        raise ConfigError(
            "sampling needs a temperature above 0, at least one token and row, and an EOS that is "
            "not BOS"
        )
    params = {name: value.detach() for name, value in params.items()}
    step, generator = model.stepper(params, rows), torch_generator(seed)
    ids, fresh = torch.full((rows,), bos), torch.ones(rows, dtype=torch.bool)
    texts: list[list[int]] = [[] for _ in range(rows)]
    alive, drawn = list(range(rows)) if count_tokens > 0 else [], 0
    while alive:
        hidden, uniform = step(ids, fresh), torch.rand(rows, 1, generator=generator)
        tokens = _draw(params, hidden[alive], bos, temperature, uniform[alive])
        ids[alive], drawn = tokens, drawn + len(alive)
        ended = _appended(texts, alive, tokens.tolist(), eos, length)
        for row in ended:
            yield texts[row]
            texts[row] = []
        ids[ended], fresh = bos, torch.zeros(rows, dtype=torch.bool)
        fresh[ended] = True
        alive = alive if drawn < count_tokens else [row for row in alive if not fresh[row]]


def continued(
    model: LanguageModel,
    params: Params,
    prompt: Sequence[int],
    rows: int,
    full: Callable[[Sequence[int], int], bool],
    ends: tuple[int, int],
    temperature: float,
    seed: Seed,
) -> list[list[int]]:
    """So many sequences that go on from a prompt (without it), each until EOS, or a token that
    `full(sequence, token)` has no room for. `ends` are BOS and EOS.
    """
    bos, eos = ends
    params = {name: value.detach() for name, value in params.items()}
    step, generator = model.stepper(params, rows), torch_generator(seed)
    for place, token in enumerate([bos, *prompt]):
        hidden = step(torch.full((rows,), token), torch.full((rows,), place == 0))
    texts: list[list[int]] = [[] for _ in range(rows)]
    alive, stay = list(range(rows)), torch.zeros(rows, dtype=torch.bool)
    ids = torch.full((rows,), bos)
    while True:
        uniform = torch.rand(rows, 1, generator=generator)
        ids[alive] = _draw(params, hidden[alive], bos, temperature, uniform[alive])
        alive = [row for row in alive if not (ids[row] == eos or full(texts[row], int(ids[row])))]
        if not alive:
            return texts
        for row in alive:
            texts[row].append(int(ids[row]))
        hidden = step(ids, stay)


def _appended(
    texts: list[list[int]], alive: list[int], tokens: list[int], eos: int, length: int
) -> list[int]:
    """Each text longer by its token; which of them have ended."""
    ended = []
    for row, token in zip(alive, tokens, strict=True):
        if token != eos:
            texts[row].append(token)
        if token == eos or len(texts[row]) == length:
            ended.append(row)
    return ended


def _draw(
    params: Params, hidden: Tensor, bos: int, temperature: float, uniform: Tensor
) -> Tensor:  # (R,)
    """The token at which the cumulative chance passes a uniform number (R, 1): ten times as fast as
    torch.multinomial.
    """
    weight, bias = output_of(params)
    uniform = uniform.to(hidden.device)
    z = torch.addmm(bias, hidden, weight.t()).div_(temperature)  # (R, V)
    z[:, bos] = -torch.inf
    cumulative = torch.softmax(z, 1, out=z).cumsum_(1)
    # rounding makes the whole not quite 1; uniform is below 1, so this is below the whole, and no
    # token of chance 0 is met
    drawn = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    return drawn.squeeze(1).cpu()
