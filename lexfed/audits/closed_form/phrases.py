"""Canary phrases: a first name, a surname and four tokens with digits, planted as one text of a
chosen client.

Drawn by chance from words of public lists: every attacker could try them out, and none knows which
it was. How well uploads tell is in `exposure`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pyarrow as pa

from lexfed.core.errors import DataError
from lexfed.core.seeds import Seed, derive, numpy_generator, root
from lexfed.corpus.population import Population
from lexfed.corpus.text import Corpus
from lexfed.experiment.config import Config
from lexfed.models import registry
from lexfed.vocabulary.splitting import words
from lexfed.vocabulary.tables import vectors

# frequent names, so that lists of words have them
FIRST = (
    "james mary john robert michael william david richard joseph thomas charles linda susan karen "
    "sarah nancy lisa betty "
    "margaret sandra helen anna peter paul mark george kevin brian edward donald laura emily "
    "alice rose henry frank daniel"
)
LAST = (
    "smith johnson williams brown jones miller davis wilson anderson taylor moore jackson martin "
    "lee thompson white harris "
    "clark lewis robinson walker young allen king wright scott hill green adams baker nelson "
    "carter mitchell roberts turner "
    "phillips campbell parker evans edwards collins stewart morris rogers reed cook morgan bell "
    "murphy bailey cooper kelly"
)
# where any token can be written: four digits
NUMBERS = tuple(str(number) for number in range(1000, 10_000))
DIGITS = 4  # tokens of a phrase that have digits

Slots = Sequence[Sequence[str]]


def slots(config: Config) -> Slots:
    """What may stand in each place of a phrase: of the words that public vectors have and every
    method knows.
    """
    first, last, numbers = FIRST.split(), LAST.split(), NUMBERS
    if config.vocabulary.vectors and registry.entry(config.model.name).reads_words:
        size = min(config.audit.candidates, config.vocabulary.size - 1)
        known = dict.fromkeys(vectors.load(config.vocabulary.vectors).words[:size])
        first, last = ([name for name in names if name in known] for names in (first, last))
        numbers = tuple(
            word for word in known if any(map(str.isdigit, word)) and words(word) == [word]
        )
    if min(len(first), len(last), len(numbers)) < 2:
        raise DataError(
            "audit.canaries needs names and words with digits: raise vocabulary.size or "
            "audit.candidates"
        )
    return [first, last, *[numbers] * DIGITS]


def drawn(places: Slots, count: int, seed: Seed) -> list[str]:
    """So many phrases, each of them once; fewer if there are hardly more than that."""
    choices = numpy_generator(seed).integers(
        [len(place) for place in places], size=(2 * count, len(places))
    )
    made = (
        " ".join(place[i] for place, i in zip(places, row, strict=True)) for row in choices.tolist()
    )
    return list(dict.fromkeys(made))[:count]


def phrases(config: Config) -> dict[int, str]:
    """The planted phrase of each chosen client."""
    if not config.audit.canaries:
        return {}
    seed = derive(root(config.seed), "canaries")
    return dict(enumerate(drawn(slots(config), config.audit.canaries, seed)))


def planted(people: Population, found: Mapping[int, str]) -> Population:
    """The same clients; each chosen one has its phrase as one more text, its first, so that it is
    read in any case.
    """
    if not found:
        return people
    owners = sorted(found)
    beginnings = people.starts[owners]
    size = len(people.train.texts)
    train = _longer(people.train, people.train.rows[beginnings], [found[owner] for owner in owners])
    rows = np.insert(people.train.rows, beginnings, size + np.arange(len(owners)))
    # texts that came before each client's
    more = np.searchsorted(owners, np.arange(len(people.starts)))
    return replace(people, train=replace(train, rows=rows), starts=people.starts + more)


def _longer(corpus: Corpus, like: Any, texts: Sequence[str]) -> Corpus:
    """More texts behind the columns; what else is known of each is as of a text that is there."""

    def longer(column: Any) -> Any:
        if column is None or isinstance(column, tuple):
            return column
        if isinstance(column, Mapping):
            return {name: longer(value) for name, value in column.items()}
        if isinstance(column, np.ndarray):
            return np.concatenate([column, column[like]])
        return _joined(column, column.take(pa.array(like)))

    others = {
        f.name: longer(getattr(corpus, f.name))
        for f in fields(corpus)
        if f.name not in ("rows", "texts", "blanks")  # of these, none is a column beside the texts
    }
    return replace(
        corpus, texts=_joined(corpus.texts, pa.array(texts, corpus.texts.type)), **others
    )


def _joined(one: Any, other: Any) -> Any:
    parts = [chunk for column in (one, other) for chunk in getattr(column, "chunks", [column])]
    return pa.chunked_array(parts)
