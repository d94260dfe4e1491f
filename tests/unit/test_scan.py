"""Counting words in bounded memory gives what counting them all at once gives."""

import math
import os
import stat
from collections import Counter
from itertools import islice

import pytest

from lexfed.core.seeds import root
from lexfed.vocabulary import scan
from lexfed.vocabulary.scan import count, weigh
from lexfed.vocabulary.splitting import words

TEXTS = [f"the {i % 7} cat {i % 13} of {i * i % 31} and {'dog ' * (i % 4)}" for i in range(60)]


def reference(texts: list[str]) -> Counter[str]:
    return Counter(word for text in texts for word in text.lower().split())


@pytest.mark.parametrize("limit", [1, 2, 5, 20, 1000])
def test_counts_are_exact_whatever_fits(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_RUNS", 4)  # runs are merged into one on the way, too
    counts = count(TEXTS, limit=limit)
    assert list(counts) == sorted(reference(TEXTS).items())
    assert counts.total == sum(reference(TEXTS).values())
    assert len(counts.rest) <= limit
    assert (len(counts.runs) > 0) == (limit < 1000)


def test_counts_are_read_as_often_as_one_likes_also_at_once() -> None:
    counts = count(TEXTS, limit=5)
    one, two = iter(counts), iter(counts)
    next(one)
    assert [next(two), next(two)] == list(islice(counts, 2))
    assert len(list(one)) == len(list(two)) + 1


@pytest.mark.parametrize("limit", [3, 1000])
@pytest.mark.parametrize(("top", "minimum"), [(3, 1), (1000, 5), (10, 4), (1000, 1)])
def test_the_most_frequent(limit: int, top: int, minimum: int) -> None:
    ranked = sorted(reference(TEXTS).items(), key=lambda item: (-item[1], item[0]))
    assert (
        count(TEXTS, limit=limit).most_frequent(top, minimum)
        == [i for i in ranked if i[1] >= minimum][:top]
    )


def test_what_is_spilled_has_no_name_and_is_its_owners_alone() -> None:
    (run, *_) = count(TEXTS, limit=5).runs
    kept = os.fstat(run._descriptor)
    assert kept.st_nlink == 0
    assert stat.S_IMODE(kept.st_mode) & 0o077 == 0


def test_a_word_of_5000_characters_is_left_out_and_said_so() -> None:
    counts = count(["a fine " + "x" * 5000, "y" * 101 + " " + "z" * 100])
    assert [word for word, _ in counts] == ["a", "fine", "z" * 100]
    assert (counts.total, counts.left_out) == (3, 2)


def test_an_empty_corpus_has_no_words() -> None:
    counts = count([])
    assert (list(counts), counts.total, counts.most_frequent(10)) == ([], 0, [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("हिन्दी में भारत", ["हिन्दी", "में", "भारत"]),
        ("சென்னை", ["சென்னை"]),
        ("Москва, ΑΘΗΝΑ!", ["москва", ",", "αθηνα", "!"]),
        ("می‌خواهم", ["می‌خواهم"]),
        ("cafe\u0301 don't", ["cafe\u0301", "don't"]),
        ("❤️ ok", ["❤️", "ok"]),
        ("我喜欢北京。他也喜欢", ["我喜欢北京", "。", "他也喜欢"]),
        ("عربي ١٢", ["عربي", "١٢"]),
    ],
)
def test_words_of_any_script(text: str, expected: list[str]) -> None:
    assert words(text) == expected
    assert sorted(count([text], limit=1)) == sorted(Counter(expected).items())


def never(word: str) -> bool:
    return False


def norm(weights: dict[str, float]) -> float:
    return math.sqrt(sum(weight * weight for weight in weights.values()))


@pytest.mark.parametrize("most", [1, 3, 100])
def test_one_document_more_or_less_moves_the_weights_by_norm_1(most: int) -> None:
    whole = weigh(TEXTS, never, most, 100, root(0))
    for i in range(len(TEXTS)):
        less = weigh(TEXTS[:i] + TEXTS[i + 1 :], never, most, 100, root(0))
        moved = {word: whole[word] - less.get(word, 0.0) for word in whole}
        assert norm(moved) == pytest.approx(1.0)
        assert sum(abs(by) > 1e-9 for by in moved.values()) <= most


def test_a_document_weighs_its_words_once_and_leaves_out_what_is_released() -> None:
    weights = weigh(["a a a b c d " + "x" * 101], lambda word: word == "d", 100, 100, root(0))
    assert weights == pytest.approx(
        {"a": 1 / math.sqrt(3), "b": 1 / math.sqrt(3), "c": 1 / math.sqrt(3)}
    )
    assert weigh(["d", ""], lambda word: word == "d", 100, 100, root(0)) == {}


def test_which_words_count_is_chance() -> None:
    chosen = Counter(
        word for seed in range(300) for word in weigh(["a b c d e f"], never, 2, 100, root(seed))
    )
    assert sum(chosen.values()) == 600
    assert min(chosen.values()) > 60, "about 100 each"
