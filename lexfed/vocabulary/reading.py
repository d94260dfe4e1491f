"""How texts become numbers: with one vocabulary that all share, or with a private table of one's
own.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from lexfed.corpus.kept import Kept
from lexfed.corpus.text import Corpus
from lexfed.models.model import Example
from lexfed.vocabulary.splitting import words
from lexfed.vocabulary.tables.vectors import PublicTable
from lexfed.vocabulary.word import UNKNOWN, Tokenizer, count_words

NUMBERS = 1_000_000  # of texts that are kept as such: some 30 MB


@dataclass(frozen=True)
class Reading:
    """Texts as ids. Ids past the embedding table's end are rows of `beyond`, which are looked up
    and never trained.
    """

    examples: list[Example]
    beyond: Tensor | None = None  # (n, d)


class Reader(Protocol):
    def read(self, corpus: Corpus) -> Reading: ...


@dataclass(frozen=True)
class SharedReader:
    """With the tokenizer that server and clients agree on."""

    tokenizer: Tokenizer
    limit: int
    kept: Kept[list[list[int]]] = field(
        default_factory=lambda: Kept(NUMBERS, lambda texts: sum(map(len, texts))),
        compare=False,
        repr=False,
    )

    def read(self, corpus: Corpus) -> Reading:
        ids = self.kept.get(corpus, None, lambda: self._ids(corpus))
        return Reading(
            [Example(i, int(label)) for i, label in zip(ids, corpus.labels, strict=True)]
        )

    def _ids(self, corpus: Corpus) -> list[list[int]]:
        return [self.tokenizer.encode(text)[: self.limit] for text in corpus]


@dataclass(frozen=True)
class PrivateReader:
    """With a client's own words; a word it lacks is looked up in the public table, if there is one,
    else unknown.
    """

    own: tuple[str, ...]  # row i of the private table is the i-th; the first is unknown
    public: PublicTable | None
    limit: int

    def read(self, corpus: Corpus) -> Reading:
        ids: dict[str, int] = {word: i for i, word in enumerate(self.own)}
        public: Mapping[str, int] = self.public.ids if self.public is not None else {}
        met: list[str] = []  # words of the public table only, in the order they were met
        examples = []
        for text, label in zip(corpus, corpus.labels, strict=True):
            tokens = words(text)[: self.limit]
            for word in tokens:
                if word not in ids and word in public:
                    ids[word] = len(self.own) + len(met)
                    met.append(word)
            examples.append(Example([ids.get(word, 0) for word in tokens] or [0], int(label)))
        return Reading(examples, self.public.rows(met) if self.public is not None and met else None)


def own_words(
    corpus: Corpus, public: Mapping[str, int], minimum: int, size: int, only_public: bool
) -> tuple[str, ...]:
    """The words of a client's own text, most frequent first: those the public table has, and
    (unless `only_public`) those that occur at least `minimum` times."""
    counts: Counter[str] = count_words(corpus)
    kept = {w: n for w, n in counts.items() if w in public or (not only_public and n >= minimum)}
    ranked = sorted(kept, key=lambda word: (-kept[word], word))
    return (UNKNOWN, *ranked[: size - 1])


def initial_rows(
    own: tuple[str, ...], public: PublicTable | None, random: Tensor
) -> Tensor:  # (n, d) and (n, d)
    """Public vectors where there are some; else of these random ones, N(0, 1), as long as the
    public ones are.
    """
    rows = random * (0.1 if public is None else float(public.vectors[:1000].std()))
    if public is not None:
        known = [i for i, word in enumerate(own) if word in public.ids]
        rows[known] = public.rows(own[i] for i in known)
    return rows
