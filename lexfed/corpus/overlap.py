"""Whether one corpus holds another's texts: what is called public text may be the users' own.

Texts are compared by their beginnings, letters and digits alone, so that spaces, case and
punctuation make no difference. Who rewrites the texts, or joins them, is not found: a promise says
so in a note.
"""

import re
from dataclasses import dataclass
from functools import cache

from lexfed.corpus.sources import load
from lexfed.corpus.text import Corpus

_BETWEEN = re.compile(r"[\W_]+")
LOOKED_AT, LETTERS = 400, 200  # characters of a text that are read, and that are compared
FEW, SURE = 3, 10  # words: with fewer a text may be anybody's, with so many it has one author
# so many texts of one author each, or so large a share of all, are no accident
MANY, SHARE = 3, 0.001


@dataclass(frozen=True)
class Common:
    """What two corpora have in common."""

    texts: int  # of the users, but for those that may be anybody's
    found: int  # of them, in the other corpus
    sure: int  # of these, long ones

    @property
    def notable(self) -> bool:
        return self.sure >= MANY or self.found > SHARE * self.texts


def common(users: Corpus, source: str) -> Common:
    """What of the users' texts stands in the corpus of this name."""
    there, texts, found, sure = _marks(source), 0, 0, 0
    for words in map(_words, users):
        if len(words) < FEW:
            continue
        texts += 1
        if _mark(words) in there:
            found += 1
            sure += len(words) >= SURE
    return Common(texts, found, sure)


@cache  # a run after the other in one process reads the same public text
def _marks(source: str) -> frozenset[int]:
    return frozenset(_mark(words) for words in map(_words, load(source)) if len(words) >= FEW)


def _words(text: str) -> list[str]:
    return [word for word in _BETWEEN.split(text[:LOOKED_AT].lower()) if word]


def _mark(words: list[str]) -> int:
    return hash("".join(words)[:LETTERS])
