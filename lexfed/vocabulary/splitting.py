"""How text is cut into words: one rule for everybody, of any script.

A word is letters and digits with marks (vowel signs, accents, joiners) and apostrophes inside.
Where a script has no blanks, a clause is one word. Symbols come in runs ("...", "--") in word
lists, as published vectors have them, and one by one for tokenizers, which put them together.
"""

import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Literal

from lexfed.vocabulary.stray_bytes import STRAY

Symbols = Literal["runs", "single"]

_ASCII = {
    "runs": re.compile(r"\w+(?:'\w+)*|[^\w\s]+"),
    "single": re.compile(r"\w+(?:'\w+)*|[^\w\s]"),
}
_SURROGATE = re.compile("[\ud800-\udfff]")


def words(text: str, lowercase: bool = True, symbols: Symbols = "runs") -> list[str]:
    """The words and symbols of a text, in their order."""
    text = text.lower() if lowercase else text
    if not text.isascii():
        return _any_script(symbols).findall(_SURROGATE.sub("\ufffd", text))
    if text.replace(" ", "").isalnum():  # nothing but words and blanks: the same, much sooner
        return text.split()
    return _ASCII[symbols].findall(text)


def words_with_stray_bytes(text: str, lowercase: bool) -> list[str]:
    """The same of what a model wrote, symbols one by one. A byte that is no text is a letter: half
    of one may stand in any word.
    """
    return _any_script("single", stray=True).findall(text.lower() if lowercase else text)


@cache
def _any_script(symbols: Symbols, stray: bool = False) -> re.Pattern[str]:
    r"""The same, with what `\w` leaves out: marks and joiners stay with their letter or emoji.

    That no mark is below U+0300, and few are above U+FFFF, is told to the expression: it is then
    five times as fast.
    """
    marks = _marks()
    near = "".join(mark for mark in marks if mark <= "\uffff")
    far = "".join(mark for mark in marks if mark > "\uffff")
    mark = rf"(?![\0-\u02ff])(?:[{near}]|(?=[\U00010000-\U0010ffff])[{far}])"
    also = STRAY if stray else ""
    return re.compile(_rule(rf"[\w{also}]", rf"[^\w\s{also}]", mark, symbols))


def _rule(letter: str, symbol: str, mark: str, symbols: Symbols) -> str:
    """The expression of a word, from those of one character each."""
    word, marked = rf"{letter}+(?:{mark}{letter}*)*", rf"{symbol}(?:{mark})*"
    other = rf"{symbol}+" if symbols == "runs" else rf"{marked}(?:(?<={JOINER}){marked})*"
    return rf"{word}(?:['’]{word})*|{other}"


JOINER = "\u200d"  # of emoji that are drawn as one


def _marks() -> list[str]:
    points = chain(range(0x20000), range(0xE0000, 0xF0000))  # the other planes have none
    marks = [chr(point) for point in points if unicodedata.category(chr(point))[0] == "M"]
    skin_tones = map(chr, range(0x1F3FB, 0x1F400))
    return sorted([*marks, "\u200c", JOINER, *skin_tones])


# --- the same rule, for others -------------------------------------------------------------------


@cache
def spelled_out(symbols: Symbols) -> str:
    r"""The rule as one expression with every letter, blank and mark in it: programs differ in what
    `\w` is, and so do versions of Unicode. Python's `re` and the library `tokenizers` read it the
    same way.
    """
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    letters, blanks = (_ranges(re.findall(kind, everything)) for kind in (r"\w+", r"\s+"))
    marks = _ranges(_runs(_marks()))
    return _rule(f"[{letters}]", f"[^{letters}{blanks}]", f"[{marks}]", symbols)


def _ranges(runs: Iterable[str]) -> str:
    """Runs of neighbouring characters, as they stand in a class."""
    return "".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _runs(characters: Sequence[str]) -> Iterator[str]:
    """Sorted characters, cut where a code point is missing."""
    start = 0
    for end in range(1, len(characters) + 1):
        if end == len(characters) or ord(characters[end]) != ord(characters[end - 1]) + 1:
            yield "".join(characters[start:end])
            start = end


@cache
def final_sigma() -> str:
    """The expression of a capital sigma that `str.lower` writes as ς: after a letter with a case
    and before none, whatever has no say between them (apostrophes, marks). Which characters these
    are, `str.lower` is asked.
    """
    everyone = [chr(point) for point in range(sys.maxunicode + 1)]
    cased = [c for c in everyone if f"{c}Σ".lower()[-1] == "ς"]
    silent = [c for c in everyone if f"aΣ{c}a".lower()[1] == "σ" and f"aΣ{c}".lower()[1] == "ς"]
    has_case, between = (f"[{_ranges(_runs(kind))}]" for kind in (cased, silent))
    return rf"{has_case}{between}*\KΣ(?!{between}*{has_case})"
