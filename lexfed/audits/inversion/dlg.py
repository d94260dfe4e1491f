"""Deep leakage from gradients, on embeddings: the text behind one gradient (Zhu, Liu, Han, NeurIPS
2019).

    observed  g_l = dL(F(x, W), y) / dW_l    for every W_l that is shared;
                                             one batch, one step, no noise
    start     x ~ N(0, spread^2), a vector per word;  y = softmax(z), z ~ N(0, 1), a row per text
    descend   D(x, z) = sum_l  |g_l(x, y) - g_l|^2 / |g_l|^2  +  alpha |g_l(x, y) - g_l|_1 / |g_l|_1
    decode    each vector to the word of a table that is nearest by cosine

With alpha = 0 this is DLG, above it TAG (Deng et al., Findings of EMNLP 2021). Differs from both:
every tensor counts in its own unit, else the largest hides the others. `inside` keeps x in the row
space of the first matrix's gradient, where all true vectors lie, if that leaves room: fewer
unknowns; off, it is the papers' search. The label of a single text is not searched for: one entry
of the output bias's gradient is negative, that of the label.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from time import process_time
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from lexfed.audits.inversion.lstm_gradient import lstm_gradients
from lexfed.core.errors import ConfigError, DataError, DivergedError
from lexfed.core.params import Params
from lexfed.core.seeds import Seed, derive, torch_generator
from lexfed.metrics.leakage import Spectrum, span
from lexfed.models.bilstm import BiLSTMClassifier
from lexfed.models.model import HEAD, Batch, Classifier, inputs_of

# of D: the gradients agree up to float32's rounding, another start finds nothing better
ENOUGH = 1e-6
# of the largest tensor's norm: what is smaller is rounding (a key's bias has no gradient at all)
FAINT = 1e-5
BOUT = 20  # steps of L-BFGS before it is asked whether to go on
CHUNK = 256  # vectors at a time beside the whole table


@dataclass(frozen=True)
class Threat:
    """What the attacker knows beside the shared parameters and their gradient."""

    lengths: tuple[int, ...]  # in words, longest first, as batches are
    dimension: int  # of a word vector
    classes: int
    labels: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if (
            not self.lengths
            or self.lengths[-1] < 1
            or list(self.lengths) != sorted(self.lengths, reverse=True)
        ):
            raise DataError(
                "the lengths of a batch are those of its texts, longest first, each at least 1"
            )
        if self.labels is not None and len(self.labels) != len(self.lengths):
            raise DataError("an attacker who knows the labels knows one for each text")

    def __str__(self) -> str:
        lengths = ", ".join(map(str, self.lengths))
        labels = (
            "the labels"
            if self.labels
            else f"that there are {self.classes} classes, not the labels"
        )
        return (
            "The attacker sees the gradient of the shared parameters on one batch: one step, no "
            "dropout, no noise, no "
            "secure aggregation. He knows these parameters, the size of the batch "
            f"({len(self.lengths)}), how many words "
            f"each text has ({lengths}), that a word is a vector of {self.dimension} numbers, and "
            f"{labels}."
        )


def threat_of(batch: Batch, dimension: int, classes: int) -> Threat:
    return Threat(tuple(batch.lengths.tolist()), dimension, classes)


@dataclass(frozen=True)
class Inversion:
    seed: Seed
    optimizer: Literal["lbfgs", "adam"] = "lbfgs"
    steps: int = 400
    lr: float = 1.0  # 0.05 is a good one for Adam
    alpha: float = 0.0  # above 0: TAG
    # of the first vectors' numbers: near 0 is better than as far out as words are (GloVe's: 0.5)
    spread: float = 0.01
    inside: bool = True
    restarts: int = 1  # the best counts

    def __post_init__(self) -> None:
        if (
            self.steps < 1
            or self.restarts < 1
            or self.alpha < 0
            or not self.lr > 0
            or not self.spread > 0
        ):
            raise ConfigError(
                "an inversion needs steps and restarts of at least 1, lr and spread above 0, "
                "alpha not below 0"
            )


@dataclass(frozen=True, eq=False)
class Recovered:
    vectors: Tensor  # (B, T, d), zero behind a text's end
    labels: Tensor  # (B, C) shares
    losses: tuple[float, ...]  # D at each evaluation of the best start
    seconds: float  # of the processor, all starts


def gradients(model: Classifier, params: Params, batch: Batch, names: Iterable[str]) -> Params:
    """What a client shares: the gradient of the mean loss of one batch, without dropout."""
    return _gradients(model, params, batch, tuple(names), batch.labels, False)


def as_gradient(delta: Params, rate: float) -> Params:
    """A weight delta, taken for one SGD step of this rate."""
    return {name: -value / rate for name, value in delta.items()}


def _gradients(
    model: Classifier,
    params: Params,
    batch: Batch,
    names: Sequence[str],
    target: Tensor,
    again: bool,
) -> Params:
    leaves = {name: params[name].detach().requires_grad_() for name in names}
    with sdpa_kernel(SDPBackend.MATH):  # the fast attention has no second derivative
        loss = F.cross_entropy(model.logits({**params, **leaves}, batch, None), target)
        return dict(
            zip(
                names,
                torch.autograd.grad(loss, list(leaves.values()), create_graph=again),
                strict=True,
            )
        )


@dataclass(frozen=True, eq=False)
class _Distance:
    """D of the head of the module. The vectors are the table, and word i of the batch reads row i +
    1; row 0 is padding.
    """

    model: Classifier
    params: Params
    observed: Params
    batch: Batch
    labels: Tensor | None  # (B,) if they are known
    basis: Tensor | None  # (r, d): orthonormal rows
    alpha: float

    def vectors(self, free: Tensor) -> Tensor:  # (N, d)
        return free if self.basis is None else free @ self.basis

    def __call__(self, free: Tensor, z: Tensor) -> Tensor:
        found = self._found(F.pad(self.vectors(free), (0, 0, 1, 0)), z.softmax(1))
        faint = FAINT * max(float(value.norm()) for value in self.observed.values())
        terms = []
        for name, value in self.observed.items():
            gap, size = found[name] - value, max(float(value.norm()), faint)
            terms.append(gap.square().sum() / size**2)
            if self.alpha:
                terms.append(self.alpha * gap.abs().sum() / max(float(value.abs().sum()), faint))
        return torch.stack(terms).sum()

    def _found(self, table: Tensor, target: Tensor) -> Params:
        """The gradients of a table (1 + N, d) of guessed words."""
        if isinstance(self.model, BiLSTMClassifier) and self.model.options.pooling == "mean":
            return lstm_gradients(self.params, table[self.batch.ids], self.batch, target)
        params = {**self.params, self.model.word_table: table}
        return _gradients(self.model, params, self.batch, tuple(self.observed), target, True)


def invert(
    model: Classifier, params: Params, observed: Params, threat: Threat, options: Inversion
) -> Recovered:
    """`params` are those the attacker knows; a word table among them is not read. `observed` are
    gradients by name.
    """
    if model.word_table in observed or not observed:
        raise DataError(
            "gradients are matched in the layers above the word table; the table's own rows are "
            "read directly"
        )
    begun = process_time()
    distance = _distance(model, params, observed, threat, options)
    best = min(_starts(distance, threat, options), key=lambda tried: tried.losses[-1], default=None)
    if best is None:
        raise DivergedError("every start left the numbers; lower lr or spread")
    vectors = F.pad(best.vectors, (0, 0, 1, 0))[distance.batch.ids].float()  # (B, T, d)
    return replace(
        best, vectors=vectors, labels=best.labels.float(), seconds=process_time() - begun
    )


def _starts(distance: _Distance, threat: Threat, options: Inversion) -> Iterator[Recovered]:
    """What each start leads to, vectors as (N, d); the first that explains the gradient is the
    last.
    """
    for number in range(options.restarts):
        x, z = _start(distance, threat, options, derive(options.seed, "start", number))
        losses = _SEARCHES[options.optimizer](distance, x, z, options)
        if not isfinite(losses[-1]):
            continue  # a search that left the numbers has found nothing
        yield Recovered(distance.vectors(x.detach()), z.detach().softmax(1), tuple(losses), 0.0)
        if losses[-1] < ENOUGH:
            return


def _distance(
    model: Classifier, params: Params, observed: Params, threat: Threat, options: Inversion
) -> _Distance:
    """In float64, which takes no longer on sizes like these: the only rounding is then the
    upload's.
    """
    body = {name: value.double() for name, value in params.items() if name != model.word_table}
    seen = {name: value.double() for name, value in observed.items()}
    lengths = torch.tensor(threat.lengths)
    real = torch.arange(threat.lengths[0]) < lengths[:, None]  # (B, T)
    ids = real.flatten().cumsum(0).view(real.shape) * real
    labels = threat.labels or _closed_form(model, observed, threat)
    known = None if labels is None else torch.tensor(labels)
    found = spectrum(observed, inputs_of(model)) if options.inside else None
    basis = (
        found.axes[:, : found.rank].T.contiguous() if found is not None and found.exact else None
    )
    return _Distance(
        model,
        body,
        seen,
        Batch(ids, lengths, torch.zeros_like(lengths)),
        known,
        basis,
        options.alpha,
    )


def spectrum(observed: Params, inputs: Sequence[str]) -> Spectrum | None:
    """Of the matrices that multiply the word vectors themselves; a transformer's read them after
    positions and a norm. Matrices of fewer rows than there may be words span a part of them alone.
    """
    first = [observed[name] for name in inputs if name in observed]
    found = span(*first) if first else None
    return found if found is not None and sum(map(len, first)) > found.rank else None


def _closed_form(model: Classifier, observed: Params, threat: Threat) -> tuple[int, ...] | None:
    """For a single text the gradient of the output bias is p - 1 in the label's class, below 0, and
    p in the others.
    """
    biases = [
        v for n, v in observed.items() if model.depth(n) == HEAD and v.shape == (threat.classes,)
    ]
    return (int(biases[-1].argmin()),) if len(threat.lengths) == 1 and biases else None


def _start(
    distance: _Distance, threat: Threat, options: Inversion, seed: Seed
) -> tuple[Tensor, Tensor]:
    shape = int(distance.batch.lengths.sum()), threat.dimension
    generator = torch_generator(seed)
    x = torch.empty(shape, dtype=torch.float64).normal_(0, options.spread, generator=generator)
    if distance.basis is not None:
        x = x @ distance.basis.T  # (N, r)
    if distance.labels is not None:  # softmax makes it 0 and 1
        return x.requires_grad_(), 100 * F.one_hot(distance.labels, threat.classes).double()
    z = torch.empty(len(threat.lengths), threat.classes, dtype=torch.float64).normal_(
        generator=generator
    )
    return x.requires_grad_(), z.requires_grad_()


def _descent(
    distance: _Distance, x: Tensor, z: Tensor, losses: list[float]
) -> tuple[list[Tensor], Callable[[], Tensor]]:
    """The unknowns, and a closure that sets their gradients alone: backward() would fill those of
    the weights as well.
    """
    unknowns = [value for value in (x, z) if value.requires_grad]

    def closure() -> Tensor:
        loss = distance(x, z)
        for value, gradient in zip(unknowns, torch.autograd.grad(loss, unknowns), strict=True):
            value.grad = gradient
        losses.append(float(loss.detach()))
        return loss.detach()

    return unknowns, closure


def _lbfgs(distance: _Distance, x: Tensor, z: Tensor, options: Inversion) -> list[float]:
    losses: list[float] = []
    unknowns, closure = _descent(distance, x, z, losses)
    search = torch.optim.LBFGS(
        unknowns, options.lr, BOUT, None, 1e-10, 1e-12, 50, line_search_fn="strong_wolfe"
    )
    begun = 0
    while len(losses) < options.steps:
        search.step(closure)  # type: ignore[no-untyped-call]
        if len(losses) - begun < BOUT or losses[-1] < ENOUGH:  # it has converged, or agrees
            break
        begun = len(losses)
    # the last evaluation may be one that the line search gave up
    return [*losses, float(distance(x, z).detach())]


def _adam(distance: _Distance, x: Tensor, z: Tensor, options: Inversion) -> list[float]:
    losses: list[float] = []
    unknowns, closure = _descent(distance, x, z, losses)
    search = torch.optim.Adam(unknowns, options.lr)
    for _ in range(options.steps):
        search.step(closure)
    return [*losses, float(distance(x, z).detach())]


_SEARCHES = {"lbfgs": _lbfgs, "adam": _adam}


def decode(vectors: Tensor, table: Tensor) -> Tensor:  # (..., d), (V, d) -> (...)
    """The nearest row by cosine, which is L2 after both have the same norm; the first of equals."""
    if vectors.shape[-1] != table.shape[-1] or not len(table):
        raise DataError(
            f"vectors of {vectors.shape[-1]} numbers can't be looked up in a table of "
            f"{tuple(table.shape)}"
        )
    rows = F.normalize(table.float(), dim=1).T  # (d, V)
    parts = torch.split(F.normalize(vectors.float().flatten(0, -2), dim=1), CHUNK)
    return torch.cat([(part @ rows).argmax(1) for part in parts]).view(vectors.shape[:-1])


def other_table(table: Tensor, seed: Seed) -> Tensor:  # (V, d)
    """As another model would have it: drawn anew, numbers as large as the table's."""
    return torch.empty_like(table).normal_(0, float(table.std()), generator=torch_generator(seed))


def sentences(ids: Tensor, lengths: Iterable[int], tokens: Sequence[str]) -> list[list[str]]:
    return [
        [tokens[i] for i in row[:length]] for row, length in zip(ids.tolist(), lengths, strict=True)
    ]
