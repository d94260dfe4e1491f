"""Texts that were read are kept, as many as there is room for, and never taken for others."""

import numpy as np
import pyarrow as pa

from lexfed.corpus.kept import Kept
from lexfed.corpus.text import Corpus
from lexfed.vocabulary.reading import SharedReader
from lexfed.vocabulary.word import WordTokenizer, of_list

TEXTS = pa.array(["one two", "two three", "three", "one"], pa.large_string())
LABELS = np.array([0, 1, 0, 1])


def corpus(*rows: int, texts: pa.Array = TEXTS, labels: np.ndarray = LABELS) -> Corpus:
    return Corpus(np.array(rows, dtype=np.int64), texts, labels)


def test_the_same_rows_of_the_same_texts_are_made_once() -> None:
    made: list[str] = []

    def make(what: str) -> str:
        made.append(what)
        return what

    kept: Kept[str] = Kept(room=10)
    about = object()
    assert kept.get(corpus(0, 1), about, lambda: make("a")) == "a"
    assert kept.get(corpus(0, 1), about, lambda: make("b")) == "a"
    assert kept.get(corpus(1, 0), about, lambda: make("c")) == "c", "another order"
    assert kept.get(corpus(0, 1), object(), lambda: make("d")) == "d", "about something else"
    others = pa.array(["x", "y"], pa.large_string())
    assert kept.get(corpus(0, 1, texts=others), about, lambda: make("e")) == "e", "other texts"
    assert made == ["a", "c", "d", "e"]


def test_the_oldest_makes_room() -> None:
    kept: Kept[str] = Kept(room=5, takes=len)
    for number, what in enumerate(("aaa", "bb", "cc")):
        kept.get(corpus(number), None, lambda what=what: what)  # type: ignore[misc]
    assert kept.get(corpus(1), None, lambda: "new") == "bb"
    assert kept.get(corpus(0), None, lambda: "new") == "new", "it was the oldest"
    assert kept.get(corpus(3), None, lambda: "longer than all") == "longer than all"
    assert kept.get(corpus(1), None, lambda: "again") == "bb", "what is too long is not kept"
    assert kept.taken[0] == sum(len(made) for _, _, made in kept.made.values())


def test_a_reader_knows_other_labels_from_its_own() -> None:
    """A liar may hold the same texts under other labels."""
    reader = SharedReader(WordTokenizer(of_list(("one", "two", "three"), 1)), 256)
    honest, turned = reader.read(corpus(0, 1)), reader.read(corpus(0, 1, labels=1 - LABELS))
    assert [example.label for example in honest.examples] == [0, 1]
    assert [example.label for example in turned.examples] == [1, 0]
    assert len(reader.kept.made) == 1, "the texts are kept once, and no column of labels"
