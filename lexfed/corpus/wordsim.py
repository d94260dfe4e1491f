"""Word lists by which word vectors are judged: pairs that people have scored, and analogies.

They are looked for in the folder `wordsim` of LEXFED_DATA, then among the test data that gensim
ships.
"""

import math
import os
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from lexfed.core.errors import DataError, nearest
from lexfed.corpus.catalogue import FOLDER

Pair = tuple[str, str, float]
Question = tuple[str, str, str, str, str]  # section, a, b, c, d: a is to b as c is to d
Item = TypeVar("Item")

PAIRS: Mapping[str, str] = {"wordsim353": "wordsim353.tsv", "simlex999": "simlex999.txt"}
QUESTIONS = "questions-words.txt"


def pairs(name: str) -> tuple[Pair, ...]:
    """Two words, and how alike people find them."""
    if name not in PAIRS:
        raise DataError(f"no list of word pairs is called '{name}'; {nearest(name, PAIRS)}")
    return _pairs(_find(PAIRS[name]))


def analogies() -> tuple[Question, ...]:
    """The questions of Mikolov et al. (2013), each with the name of its section."""
    return _questions(_find(QUESTIONS))


def _find(file: str) -> Path:
    # finds the package without the seconds of importing it
    folder, spec = os.environ.get(FOLDER), find_spec("gensim")
    places = [Path(folder) / "wordsim"] if folder else []
    places += [
        Path(place) / "test" / "test_data"
        for place in (spec.submodule_search_locations if spec else None) or ()
    ]
    for place in places:
        if (place / file).is_file():
            return place / file
    raise DataError(
        f"{file} is neither in the folder wordsim of {FOLDER} nor in gensim's test data; pip "
        "install gensim"
    )


@cache
def _pairs(path: Path) -> tuple[Pair, ...]:
    def parse(line: str) -> Pair:
        one, other, score = line.split("\t")
        if not math.isfinite(float(score)):
            raise ValueError("a score must be a number")
        return one.lower(), other.lower(), float(score)

    return _parsed(path, lambda line: None if line.startswith("#") else parse(line))


@cache
def _questions(path: Path) -> tuple[Question, ...]:
    section: str | None = None

    def parse(line: str) -> Question | None:
        nonlocal section
        if line.startswith(":"):
            section = line[1:].strip()
            return None
        if section is None:
            raise ValueError("a question stands before the first section")
        a, b, c, d = line.lower().split()
        return section, a, b, c, d

    return _parsed(path, parse)


def _parsed(path: Path, parse: Callable[[str], Item | None]) -> tuple[Item, ...]:
    """What the lines say, without those that say nothing; the first that can't be understood is
    named.
    """
    items, number = [], 0
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):  # noqa: B007
            if line.strip() and (item := parse(line.rstrip())) is not None:
                items.append(item)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}{f', line {number}' if number else ''} can't be read: {error}"
        ) from error
    if not items:
        raise DataError(f"{path} is an empty list")
    return tuple(items)
