"""What may go wrong with a corpus, said before it does: no text is quoted, only counted.

of the texts    rows without text, duplicates, one class, texts of the test set that are trained
                on, scripts and texts without spaces
of the clients  how few texts they hold, how many hold one class only, what `limit` leaves out
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from lexfed.corpus.population import Data, Population
from lexfed.corpus.text import Corpus

FEW = 5  # texts of a client that are too few to learn from
LOOKED_AT = 2_000  # texts whose letters are counted
NO_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")


def of_texts(corpus: Corpus) -> Iterator[str]:
    """Remarks on the texts themselves."""
    yield from of_blanks(corpus)
    texts = list(corpus)
    again = len(texts) - len(set(texts))
    if again > 0.01 * len(texts):
        yield f"{again:,} of {len(texts):,} texts occur more than once"
    if corpus.label_column is not None:
        yield from _of_classes(corpus)
    if corpus.splits is not None:
        yield from _of_splits(corpus)
    yield from of_scripts(texts[:LOOKED_AT])


def of_blanks(corpus: Corpus) -> Iterator[str]:
    if corpus.blanks:
        yield f"{corpus.blanks:,} of {len(corpus.texts):,} rows have no text, and are left out"


def _of_classes(corpus: Corpus) -> Iterator[str]:
    _, counts = np.unique(corpus.labels, return_counts=True)
    if len(counts) == 1:
        yield "all texts have the same label: there is nothing to learn"
    elif counts.max() > 0.9 * counts.sum():
        yield (
            f"{100 * counts.max() / counts.sum():.0f} % of the texts are of one class: always "
            "saying it scores as much"
        )
    if len(counts) > 1 and counts.min() < FEW:
        yield f"the rarest class has {counts.min()} texts"


def _of_splits(corpus: Corpus) -> Iterator[str]:
    train, test = (set(corpus.where("splits", name)) for name in ("train", "test"))
    both = len(train & test)
    if both:
        yield (
            f"{both:,} texts of the test split are in the training split too: scores on them say "
            "little"
        )


def of_scripts(texts: Iterable[str]) -> Iterator[str]:
    """Words are cut at spaces, and public word lists are mostly English."""
    letters: Counter[str] = Counter()
    for text in texts:
        letters.update(
            _script(c) for c in text[:200] if c.isalpha() or unicodedata.category(c) == "So"
        )
    total = sum(letters.values())
    if not total:
        yield "the texts hold no letters"
        return
    shares = {script: n / total for script, n in letters.most_common()}
    others = {s: share for s, share in shares.items() if s != "LATIN" and share > 0.02}
    if others:
        listed = ", ".join(f"{name.lower()} {100 * share:.0f} %" for name, share in others.items())
        yield f"letters that are not latin: {listed}; an English word list knows none such word"
    unspaced = sum(share for script, share in shares.items() if script in NO_SPACES)
    if unspaced > 0.1:
        yield (
            f"{100 * unspaced:.0f} % of the letters are of scripts that put no spaces between "
            "words: cut the texts into words first"
        )


def _script(character: str) -> str:
    """The first word of a letter's name: LATIN, CYRILLIC, CJK, ARABIC ..."""
    if unicodedata.category(character) == "So":
        return "EMOJI"
    return unicodedata.name(character, "UNKNOWN").partition(" ")[0]


def of_clients(people: Population, data: Data, whole: int, labelled: bool = True) -> Iterator[str]:
    """Remarks on how the texts lie with the clients; `whole` is how many texts the data has,
    `labelled` whether labels are what is learned.
    """
    starts = people.starts[: len(people) + 1]
    sizes = np.diff(starts)
    few = int((sizes < FEW).sum())
    if few:
        yield (
            f"{few} of {len(sizes)} clients hold fewer than {FEW} texts (all together "
            f"{sizes.sum():,}, the median client {np.median(sizes):.0f})"
        )
    if data.limit is None and data.partition != "user" and people.train.splits is None:
        again = whole - people.train.blanks - len(people.train) - people.held_out
        if again > 0.01 * whole:
            yield (
                f"{again:,} of {whole:,} texts are left out: they occur among the held-out texts "
                "too, or name no source"
            )
    if data.limit is not None and data.limit < whole:
        yield (
            f"data.limit = {data.limit} leaves out others of the {whole:,} texts; to use them all: "
            "--set data.limit=none"
        )
    elif data.partition == "user" and sizes.sum() < 0.5 * whole:
        yield (
            f"the {len(sizes)} users that were drawn hold {sizes.sum():,} of {whole:,} texts; "
            "raise data.clients for more"
        )
    if labelled and people.classes > 1:
        labels, some = people.train.labels[: starts[-1]], starts[:-1][sizes > 0]
        least, most = (law.reduceat(labels, some) for law in (np.minimum, np.maximum))
        single = int((least == most).sum())
        if single > 0.2 * len(people):
            yield f"{single} of {len(people)} clients hold texts of one class only"
