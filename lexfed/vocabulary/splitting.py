"""How text is cut into words: one rule for everybody, of any script.

A word is letters and digits with marks (vowel signs, accents, joiners) and apostrophes inside.
Where a script has no blanks, a clause is one word. Symbols come in runs ("...", "--") in word
lists, as published vectors have them, and one by one for tokenizers, which put them together.
"""

import re
import sys
import unicodedata
from functools import cache
from typing import Literal

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


@cache
def _any_script(symbols: Symbols) -> re.Pattern[str]:
    r"""The same, with what `\w` leaves out: marks and joiners stay with their letter or emoji.

    That no mark is below U+0300, and few are above U+FFFF, is told to the expression: it is then
    five times as fast.
    """
    points = range(sys.maxunicode + 1)
    marks = [chr(point) for point in points if unicodedata.category(chr(point))[0] == "M"]
    near = "".join(mark for mark in marks if mark <= "\uffff") + "\u200c\u200d"
    # and skin tones
    far = "".join(mark for mark in marks if mark > "\uffff") + "\U0001f3fb-\U0001f3ff"
    mark = rf"(?![\0-\u02ff])(?:[{near}]|(?=[\U00010000-\U0010ffff])[{far}])"
    word, symbol = rf"\w+(?:{mark}\w*)*", rf"[^\w\s](?:{mark})*"
    other = r"[^\w\s]+" if symbols == "runs" else rf"{symbol}(?:(?<=\u200d){symbol})*"
    return re.compile(rf"{word}(?:['’]{word})*|{other}")
