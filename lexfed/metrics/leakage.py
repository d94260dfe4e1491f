"""What an upload tells about the text behind it: attacks in closed form, and how they are scored.

The attacker sees how the shared parameters moved, and every public file. The truth enters in
scoring only.

    rows    a row of the embedding that moved is a word of the client  (FedAvg)
    span    the first shared matrix moves by G = sum_t delta_t x_t^T, so its row space is the span
            of the inputs x_t:
                rank G below d:  |x - P x| / |x|                   residual of a public vector x,
                                                                   0 for every word read
                else:            x^T (G^T G + ridge)^-1 x / |x|^2  leverage, small where the text is
            a transformer's inputs are LayerNorm(word + position + type): the same, for every
            position
    labels  the output bias moves by step * (share - predicted), class by class
    texts   a sentence is a member if its words are near the span

Every attack ranks: a threshold that says "safe" when vectors drifted a little would miss what a
ranking still finds. A recall stands beside that of the prior, the public order of words by
frequency, which needs no upload. What these attacks don't find, another may.

Precision, recall, F1 and PTLR follow FedeVocab (Zhang et al., EMNLP 2022, sec. 4.2); ROUGE is Lin's
(2004).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from lexfed.core.errors import ConfigError, DataError
from lexfed.core.params import Rows

# of the largest singular value: below it is float32's rounding (4e-8), above it text (3e-6 and
# more)
TOLERANCE = 1e-6
# of d: with a rank up to here the rest of the space is wide enough to tell words apart by their
# residual
EXACT = 0.9
# smallest values that count as noise at most; and their share of the largest at which they do once
FLAT, STEEP = 4.0, 3e-3
# from one singular value to the next: those of text fall by a few times, to rounding by hundreds
STEP = 30.0
CHUNK = 4096  # candidates at a time: they stay in the cache


def moved_rows(table: Tensor | Rows) -> Tensor:
    """The ids of the rows that moved, those that moved furthest first."""
    if isinstance(table, Rows):
        values = (
            table.values.double() if table.scale is None else table.values.double() * table.scale
        )
        return table.ids[moved_rows(values)]
    norms: Tensor = torch.linalg.vector_norm(table.double(), dim=1)
    return norms.argsort(descending=True, stable=True)[: int((norms > 0).sum())]


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Singular values and right singular vectors of the first shared matrix, the strongest
    first.
    """

    values: Tensor  # (d,) float64
    axes: Tensor  # (d, d) float64, an axis per column

    @property
    def rank(self) -> int:
        return int((self.values > TOLERANCE * self.values[0]).sum())

    @property
    def sharp_rank(self) -> int | None:
        """Where text ends and rounding begins: the place of the deepest step down, if there is one
        that text does not make. What was subtracted from weights far larger than itself is rounded
        more than `rank` expects.
        """
        above, below = self.values[:-1], self.values[1:].clamp(min=1e-9 * float(self.values[0]))
        steps = above / below
        deepest = int(steps.argmax())
        return deepest + 1 if float(steps[deepest]) > STEP else None

    @property
    def exact(self) -> bool:
        """Whether there is room outside the span: residuals then; past it every residual is 0, and
        leverage ranks.
        """
        return self.rank <= EXACT * len(self.values)


def span(*first: Tensor) -> Spectrum:
    """Of one matrix that multiplies the inputs, (out, d), or several: both ways of an LSTM; query,
    key and value.

    Each counts with norm 1, so that G has no scale, and a ridge means the same for every upload.
    """
    if len({matrix.shape[-1] for matrix in first}) != 1 or any(
        matrix.ndim != 2 for matrix in first
    ):
        raise DataError("a span is that of matrices (out, d) which read the same inputs")
    # each in its own unit: a query that moves 200 times less than the value is not buried in the
    # value's rounding. squaring costs half of the digits, so in float64: singular values are then
    # right to 1e-8 of the largest
    units = [
        matrix.double() / matrix.double().norm().clamp(min=torch.finfo(torch.float64).tiny)
        for matrix in first
    ]
    gram = torch.stack([unit.T @ unit for unit in units]).sum(0)  # (d, d)
    if not gram.isfinite().all():
        raise DataError("the upload holds values that are not numbers")
    squares, axes = torch.linalg.eigh(gram)
    return Spectrum(squares.clamp(min=0).sqrt().flip(0), axes.flip(1))


def residuals(spectrum: Spectrum, candidates: Tensor, rank: int) -> Tensor:  # (C,)
    """How much of each candidate is outside the span of the `rank` strongest axes: 0 all inside, 1
    all outside.
    """
    # what differs by float32's rounding alone is the same: an upload of zeros must not rank by
    # chance
    return _lengths(candidates, spectrum.axes[:, rank:]).round(decimals=6)


def leverage(spectrum: Spectrum, candidates: Tensor, ridge: float | None = None) -> Tensor:  # (C,)
    """x^T (G^T G + ridge)^-1 x / |x|^2: small along what the text moved. The ridge is rounding's,
    if none is given.
    """
    if ridge is not None and not ridge > 0:
        raise ConfigError(
            "a ridge is above 0: without it a direction that no word moved has no finite leverage"
        )
    weights = (spectrum.values**2 + (_rounding(spectrum) if ridge is None else ridge)).rsqrt()
    return (_lengths(candidates, spectrum.axes * (weights / weights.max())) * weights.max()) ** 2


def _rounding(spectrum: Spectrum) -> float:
    """As a ridge; above 0, though an upload may be all zero."""
    return max(float(TOLERANCE * spectrum.values[0]) ** 2, torch.finfo(torch.float64).tiny)


def _lengths(candidates: Tensor, transform: Tensor) -> Tensor:  # (C,) float64
    """|x A| / |x|; infinite for a row of zeros, which is in every span and tells nothing."""
    if candidates.ndim != 2 or candidates.shape[1] != len(transform):
        raise DataError(
            f"candidates are rows of {len(transform)} numbers, as the upload's inputs are"
        )
    small, parts = transform.float(), []
    for chunk in torch.split(candidates, CHUNK):
        x = chunk.float()
        parts.append(
            torch.linalg.vector_norm(x @ small, dim=1) / torch.linalg.vector_norm(x, dim=1)
        )
    return torch.cat(parts).double().nan_to_num(nan=torch.inf, posinf=torch.inf)


def distances(spectrum: Spectrum, candidates: Tensor) -> Tensor:  # (C,)
    """Residuals where the span leaves room, else leverage: the nearer, the more likely it was
    read.
    """
    return (
        residuals(spectrum, candidates, spectrum.rank)
        if spectrum.exact
        else leverage(spectrum, candidates)
    )


def ranking(spectrum: Spectrum, candidates: Tensor) -> Tensor:  # (C,)
    """Ids from the most to the least likely; equals stay in the candidates' order, which is that of
    the prior.
    """
    return word_distances(spectrum, candidates).argsort(stable=True)


def word_distances(spectrum: Spectrum, candidates: Tensor) -> Tensor:  # (C,)
    """`distances`, with a ridge for words."""
    return (
        distances(spectrum, candidates)
        if spectrum.exact
        else leverage(spectrum, candidates, flat_ridge(spectrum))
    )


def flat_ridge(spectrum: Spectrum) -> float:
    """For words: the flatter a spectrum, the more of its smallest values is no text.

    Adam scales every number by itself, so that an update leaves the span: of two texts' words
    leverage then finds 0.37 with rounding's ridge and 0.53 with this one. After SGD the spectrum is
    steep, and nothing changes.
    """
    largest, smallest = float(spectrum.values[0]), float(spectrum.values[-1])
    noise = smallest * min(FLAT, smallest / (STEEP * largest)) if largest > 0 else 0.0
    return max(noise**2, _rounding(spectrum))


def label_shares(
    bias: Tensor, step: float = 1.0, predicted: Tensor | None = None
) -> Tensor:  # (C,)
    """predicted + moved / step; exact for one SGD step of rate `step`, else a score: higher where a
    class is frequent.
    """
    if bias.ndim != 1:
        raise DataError("label shares are read from how the output bias moved, a number per class")
    return (1 / len(bias) if predicted is None else predicted) + bias / step


def sentence_scores(
    spectrum: Spectrum, sentences: Sequence[Tensor], quantile: float | None = None
) -> Tensor:  # (S,)
    """Higher for members: minus the mean distance of a sentence's vectors (T, d), or that quantile
    of minus distances.
    """
    if not all(len(sentence) for sentence in sentences):
        raise DataError("a sentence without a word that is a candidate has no score")
    near = -distances(spectrum, torch.cat(list(sentences)))
    lengths = torch.tensor([len(sentence) for sentence in sentences])
    if quantile is not None:
        return torch.stack(
            [part.quantile(quantile) for part in torch.split(near, lengths.tolist())]
        )
    owners = torch.arange(len(lengths)).repeat_interleave(lengths)
    return near.new_zeros(len(lengths)).index_add(0, owners, near) / lengths


@dataclass(frozen=True)
class Leak:
    """How well a ranking tells a client's distinct words, of which there are n."""

    words: int  # n
    precision: float  # of the guessed words
    recall: float
    f1: float
    recall_at_n: float  # of the first n
    # Wilson's, 95 %, of recall at n, as if words were drawn one by one
    interval: tuple[float, float]
    prior_recall_at_n: float  # without any upload
    # at n, of the words that the prior does not place among the most common
    rare_recall: float | None
    ptlr: float | None  # at n, of the words with a digit; None (as above) if there are none


def score_words(
    ranking: Tensor,
    truth: Iterable[int],
    prior: Tensor,
    tokens: Sequence[str],
    common: int = 1000,
    guesses: int | None = None,
) -> Leak:
    """`guesses` is the attacker's own number, such as the spectrum's rank; if it is not given, he
    is told n.
    """
    true = set(truth)
    if not true:
        raise DataError("a client without words can't leak any")
    n = len(true)
    first = set(ranking[:n].tolist())
    tried = first if guesses is None else set(ranking[:guesses].tolist())
    found, hits = first & true, len(tried & true)
    rare = true - set(prior[:common].tolist())
    digits = {i for i in true if any(letter.isdigit() for letter in tokens[i])}
    return Leak(
        words=n,
        precision=hits / max(len(tried), 1),
        recall=hits / n,
        f1=2 * hits / (len(tried) + n),
        recall_at_n=len(found) / n,
        interval=wilson(len(found), n),
        prior_recall_at_n=len(set(prior[:n].tolist()) & true) / n,
        rare_recall=len(found & rare) / len(rare) if rare else None,
        ptlr=len(found & digits) / len(digits) if digits else None,
    )


def wilson(hits: int, tries: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a share: inside 0 and 1, and of some width even at 0 and 1."""
    share, spread = hits / tries, z * z / tries
    centre = (share + spread / 2) / (1 + spread)
    half = z * sqrt(share * (1 - share) / tries + spread / (4 * tries)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


def auc(members: Tensor, others: Tensor) -> float:
    """The chance that a member scores above a non-member; a tie is half."""
    ordered = others.double().sort().values
    below, upto = (
        torch.searchsorted(ordered, members.double(), right=right) for right in (False, True)
    )
    return float((below + upto).double().mean() / 2 / len(others))


def tpr_at(fpr: float, members: Tensor, others: Tensor) -> float | None:
    """The share of members found when at most this share of non-members is accused. None: too few
    of them to say.
    """
    if len(others) < 10 / fpr:
        return None
    allowed = int(fpr * len(others) + 1e-9)  # 0.29 * 100 is below 29
    threshold = others.sort(descending=True).values[allowed]
    return float((members > threshold).double().mean())


@dataclass(frozen=True)
class Rouge:
    """F-measures of what two texts share."""

    words: float  # ROUGE-1
    pairs: float  # ROUGE-2
    longest: float  # ROUGE-L: the longest common subsequence


def rouge(reference: Sequence[str], guess: Sequence[str]) -> Rouge:
    def shared(size: int) -> float:
        true, tried = (
            Counter(zip(*(text[i:] for i in range(size)), strict=False))
            for text in (reference, guess)
        )
        return _f_measure((true & tried).total(), true.total(), tried.total())

    return Rouge(
        shared(1), shared(2), _f_measure(_common(reference, guess), len(reference), len(guess))
    )


def _f_measure(hits: int, true: int, tried: int) -> float:
    return 2 * hits / (true + tried) if true + tried else 0.0


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the longest common subsequence, row by row of the usual table."""
    row = [0] * (len(other) + 1)
    for word in one:
        above, row = row, [0]
        for j, also in enumerate(other):
            row.append(above[j] + 1 if word == also else max(above[j + 1], row[j]))
    return row[-1]
