"""The privacy experiment of FedeVocab (Zhang et al., EMNLP 2022, sec. 4.2, A.3): Table 2, Figure 3,
Tables 8 and 9.

It reports that 1.3 % of the private tokens leak. Its attacker decodes with a table that is not the
client's ("wrong" below); whether the search worked shows in the same vectors beside the public
table ("right").
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from lexfed.audits.guesses import texts, words
from lexfed.audits.inversion.dlg import (
    Inversion,
    Recovered,
    decode,
    gradients,
    invert,
    other_table,
    sentences,
    spectrum,
    threat_of,
)
from lexfed.core.errors import DataError
from lexfed.core.params import Params
from lexfed.core.seeds import Seed, derive, numpy_generator, torch_generator
from lexfed.corpus.text import Corpus
from lexfed.methods.fedrecon import is_private_token
from lexfed.metrics.leakage import moved_rows, ranking
from lexfed.models.bilstm import INPUTS
from lexfed.models.model import EMBEDDING, Batch, Classifier, Example, collate, inputs_of
from lexfed.vocabulary.reading import initial_rows
from lexfed.vocabulary.tables.vectors import PublicTable
from lexfed.vocabulary.word import Tokenizer

BATCHES = (1, 2, 4, 8, 16, 32, 64)  # Figure 3


@dataclass(frozen=True, eq=False)
class Target:
    """A client's model, and what the public has for the same tokens."""

    model: Classifier
    params: Params  # the client's word table among them
    tokens: Sequence[str]  # by row
    public: Tensor  # (V, d)
    classes: int
    # ids, the most frequent first; a token that every text has is not among them, and does not
    # count
    prior: Tensor
    # a gradient and a table (V, d) to ids, the likeliest first
    ranked: Callable[[Params, Tensor], Tensor]

    @cached_property
    def private(self) -> Tensor:  # (V,) bool: FedRecon's private rows, and what PTLR counts
        return torch.tensor([is_private_token(token) for token in self.tokens])

    @cached_property
    def counted(self) -> frozenset[int]:
        return frozenset(self.prior.tolist())

    def truth(self, batch: Batch) -> set[int]:
        """Distinct words."""
        rows = zip(batch.ids.tolist(), batch.lengths.tolist(), strict=True)
        return {i for row, n in rows for i in row[:n]} & self.counted


def target_of(
    model: Classifier, tokens: tuple[str, ...], public: PublicTable, classes: int, seed: Seed
) -> Target:
    """An untrained body under the public table. A token that the table lacks gets a vector, taken
    for public as well.
    """
    generator = torch_generator(derive(seed, "table"))
    table = initial_rows(
        tokens, public, torch.randn(len(tokens), public.dimension, generator=generator)
    )
    params = {**model.init(len(tokens), derive(seed, "body")), model.word_table: table}
    return Target(model, params, tokens, table, classes, torch.arange(len(tokens)), _spanned)


def _spanned(observed: Params, table: Tensor) -> Tensor:
    found = spectrum(observed, INPUTS)
    if found is None:
        raise DataError("no matrix of this model multiplies the word vectors themselves")
    return ranking(found, table)


def private_texts(
    corpus: Corpus, tokenizer: Tokenizer, count: int, longest: int, seed: Seed
) -> list[Example]:
    """Texts of at most so many words, at least three of them with a digit (A.3), drawn without
    replacement.
    """
    private = {i for i, token in enumerate(tokenizer.vocabulary.tokens) if is_private_token(token)}
    drawn = corpus.take(numpy_generator(derive(seed, "texts")).permutation(len(corpus)))
    found = []
    for text, label in zip(drawn, drawn.labels, strict=True):
        # a '#' in AG News is the rest of an HTML entity, '#36;' for a dollar: its digits are no
        # one's
        ids = [] if "#" in text else tokenizer.encode(text)
        if len(ids) <= longest and sum(i in private for i in ids) >= 3:
            found.append(Example(ids, int(label)))
        if len(found) == count:
            return found
    raise DataError(
        f"only {len(found)} of the texts have at most {longest} words, three of them with a digit"
    )


@dataclass(frozen=True)
class Row:
    """One way to read one batch; or, from `cells`, the mean over batches."""

    attack: str  # in closed form: prior, rows, span; by search: dlg, tag
    # what is shared: fedavg all, fedrecon all but the rows with digits, fedevocab no row
    method: str
    # right, wrong; right among moved rows, right within the span; - where nothing is decoded
    decoding: str
    batch: int
    first: int  # where the batch begins among the texts
    sentences: int
    precision: float | None
    recall: float | None
    f1: float | None
    ptlr: float | None  # None if no word has a digit
    rouge_1: float | None = None  # None where no order is guessed
    rouge_2: float | None = None
    rouge_l: float | None = None
    seconds: float | None = None  # of the search
    loss: float | None = None  # where it ended


Place = tuple[int, int]  # the size of a batch, and its first text


def places(texts: int, batches: Sequence[int] = BATCHES) -> list[Place]:
    return [(size, first) for size in batches for first in range(0, texts, size)]


def closed_forms(
    target: Target, examples: Sequence[Example], where: Iterable[Place], seed: Seed
) -> Iterator[Row]:
    """What needs no search. A ranking is cut at n, the number of distinct words, which its attacker
    is told.
    """
    tables = {"right": target.public, "wrong": other_table(target.public, seed)}
    for size, first in where:
        batch = collate(examples[first : first + size])
        observed = gradients(target.model, target.params, batch, target.params)
        moved, n = moved_rows(observed[target.model.word_table]), len(target.truth(batch))
        guesses = {
            ("prior", "-", "-"): target.prior[:n],
            ("rows", "fedavg", "-"): moved,
            ("rows", "fedrecon", "-"): moved[~target.private[moved]],
        }
        body = _body(target, observed)
        guesses |= {
            ("span", "fedevocab", name): target.ranked(body, table)[:n]
            for name, table in tables.items()
        }
        for (attack, method, decoding), guess in guesses.items():
            yield Row(
                attack, method, decoding, size, first, len(batch), **_words(target, batch, guess)
            )


def searches(
    target: Target, examples: Sequence[Example], where: Iterable[Place], options: Inversion
) -> Iterator[Row]:
    """All rows of a batch, batch after batch."""
    attack = "tag" if options.alpha else "dlg"
    for size, first in where:
        batch = collate(examples[first : first + size])
        lengths = batch.lengths.tolist()
        true = sentences(batch.ids, lengths, target.tokens)
        recovered, ways = _ways(target, batch, options)
        for (method, decoding), ids in ways.items():
            guess = torch.unique(torch.cat([row[:n] for row, n in zip(ids, lengths, strict=True)]))
            figures = {
                **_words(target, batch, guess),
                **texts(true, sentences(ids, lengths, target.tokens)),
            }
            figures |= {"seconds": recovered.seconds, "loss": recovered.losses[-1]}
            yield Row(attack, method, decoding, size, first, len(batch), **figures)


def _body(target: Target, observed: Params) -> Params:
    return {
        name: value for name, value in observed.items() if target.model.depth(name) != EMBEDDING
    }


def _words(target: Target, batch: Batch, guess: Tensor) -> dict[str, float | None]:
    return words(guess[torch.isin(guess, target.prior)], target.truth(batch), target.tokens)


def _ways(
    target: Target, batch: Batch, options: Inversion
) -> tuple[Recovered, dict[tuple[str, str], Tensor]]:
    """One search, as the layers above the embedding are shared alike; then the table of each
    method, (B, T) ids each.
    """
    observed = gradients(target.model, target.params, batch, target.params)
    body = _body(target, observed)
    threat = threat_of(batch, target.public.shape[1], target.classes)
    recovered = invert(target.model, target.params, body, threat, options)
    wrong = other_table(target.public, derive(options.seed, "wrong"))

    def among(rows: Tensor) -> Tensor:
        return rows[decode(recovered.vectors, target.public[rows])]

    right = decode(recovered.vectors, target.public)
    ways = {
        ("fedavg", "right"): right,
        ("fedavg", "moved rows"): among(moved_rows(observed[target.model.word_table])),
        ("fedrecon", "wrong"): decode(
            recovered.vectors, torch.where(target.private[:, None], wrong, target.public)
        ),
        ("fedrecon", "right"): right,
        ("fedevocab", "wrong"): decode(recovered.vectors, wrong),
        ("fedevocab", "right"): right,
    }
    found = spectrum(body, inputs_of(target.model))
    if found is not None and found.exact:  # the span names the words, the search their order
        ways["fedevocab", "span"] = among(ranking(found, target.public)[: found.rank])
    return recovered, ways


def cells(rows: Iterable[Row]) -> list[Row]:
    """The mean of each cell over its batches, weighted by texts; seconds are those of one batch."""
    groups: dict[tuple[str, str, str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.attack, row.method, row.decoding, row.batch), []).append(row)
    return [_mean(group) for group in groups.values()]


def _mean(group: Sequence[Row]) -> Row:
    def mean(name: str) -> float | None:
        pairs = [
            (getattr(row, name), row.sentences) for row in group if getattr(row, name) is not None
        ]
        return sum(value * n for value, n in pairs) / sum(n for _, n in pairs) if pairs else None

    means = {field.name: mean(field.name) for field in fields(Row)[6:]}
    return replace(group[0], first=0, sentences=sum(row.sentences for row in group), **means)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Case:
    """Tables 8 and 9: a text, and what is read of it under each method and decoding."""

    original: str
    read: dict[str, str]


def cases(target: Target, examples: Iterable[Example], options: Inversion) -> Iterator[Case]:
    """One text at a time."""

    def text(ids: Tensor) -> str:
        return " ".join(sentences(ids, [ids.shape[1]], target.tokens)[0])

    for example in examples:
        batch = collate([example])
        ways = _ways(target, batch, options)[1]
        yield Case(
            text(batch.ids),
            {f"{method}, {decoding}": text(ids) for (method, decoding), ids in ways.items()},
        )
