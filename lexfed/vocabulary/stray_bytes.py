"""Bytes that are no text. A model of bytes also writes half letters. Python's "surrogateescape"
keeps each such byte as a character of its own; U+FFFD in its place is what nobody ever wrote.

A tokenizer is learned from the words that are whole: what a broken one was to be is not known.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache

STRAY = "\udc80-\udcff"  # in a regular expression's brackets
_STRAY = re.compile(f"[{STRAY}]")
KEPT = "surrogateescape"


def has_stray(word: str) -> bool:
    return not word.isascii() and _STRAY.search(word) is not None


def whole(words: Iterable[str]) -> list[str]:
    return [word for word in words if not has_stray(word)]


def readable(word: str) -> str:
    """For who knows letters alone."""
    return word.encode("utf-8", KEPT).decode("utf-8", "replace") if has_stray(word) else word


@cache
def symbols() -> Mapping[int, str]:
    """How byte-level tokenizers write a byte: as itself if that can be seen, else as a letter."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(0x100) if byte not in seen]
    return {byte: chr(byte) for byte in seen} | {b: chr(0x100 + i) for i, b in enumerate(hidden)}


@cache
def _bytes() -> Mapping[str, int]:
    return {symbol: byte for byte, symbol in symbols().items()}


def in_symbols(text: str) -> str:
    symbol_of = symbols()
    return "".join(symbol_of[byte] for byte in text.encode("utf-8", KEPT))


def text_of(tokens: Iterable[str]) -> str:
    """What tokens say together; one that is not made of such symbols (it was added) says itself."""
    return b"".join(map(_said, tokens)).decode("utf-8", KEPT)


@cache
def _said(token: str) -> bytes:
    byte_of = _bytes()
    if all(symbol in byte_of for symbol in token):
        return bytes(byte_of[symbol] for symbol in token)
    return token.encode()
