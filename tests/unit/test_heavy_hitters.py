"""Count-Mean-Sketch: its privacy by enumeration, its error by repetition, its sums against the
paper's formulas.
"""

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import blake2b
from itertools import chain, product
from typing import Literal

import numpy as np
import pytest
import scipy.stats

from lexfed.core.errors import ConfigError, DataError, WireError
from lexfed.core.seeds import derive, numpy_generator, root
from lexfed.corpus.catalogue import load
from lexfed.vocabulary.sketch import (
    NO_WORD,
    Reports,
    Sketch,
    add,
    choose_words,
    empty,
    encode,
    estimate,
    histogram,
    per_word_epsilon,
    places,
    standard_error,
)
from lexfed.vocabulary.splitting import words
from lexfed.vocabulary.word import count_words, most_frequent
from tests.conftest import needs_data

# --- privacy ---
from tests.references import encode_many


def probability(sketch: Sketch, word: str, row: int, signs: Sequence[int]) -> float:
    """Of one report, from the algorithm: a row by chance, then every sign for itself; `NO_WORD`
    is a column by chance.
    """
    columns = range(sketch.width) if word == NO_WORD else [int(places(sketch, [word])[row, 0])]

    def given(column: int) -> float:
        true = [1 if i == column else -1 for i in range(sketch.width)]
        return math.prod(
            1 - sketch.flip if a == b else sketch.flip for a, b in zip(true, signs, strict=True)
        )

    return sum(map(given, columns)) / len(columns) / sketch.hashes


def outputs(sketch: Sketch) -> Iterator[tuple[int, tuple[int, ...]]]:
    return product(range(sketch.hashes), product((-1, 1), repeat=sketch.width))


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_a_report_is_epsilon_private_and_no_more(epsilon: float) -> None:
    """All 512 outputs, all pairs of words: the largest ratio of probabilities is e^epsilon, to
    the last digits.
    """
    sketch = Sketch(epsilon, hashes=2, width=8)
    table = {
        w: np.array([probability(sketch, w, *o) for o in outputs(sketch)])
        for w in ("film", "plot", "actor", NO_WORD)
    }
    assert all(column.sum() == pytest.approx(1) for column in table.values())
    worst = {(a, b): float(np.log(table[a] / table[b]).max()) for a, b in product(table, table)}
    assert max(worst.values()) == pytest.approx(epsilon, rel=1e-9)
    assert 0 < worst["film", NO_WORD] < epsilon, "no word is hidden better than a word"
    assert 0 < worst[NO_WORD, "film"] < epsilon


@pytest.mark.parametrize("word", ["film", NO_WORD])
def test_reports_are_drawn_with_these_probabilities(word: str) -> None:
    """Chi-square over all 512 outputs of 200,000 reports; and the other word's probabilities
    are refused.
    """
    sketch, n = Sketch(2.0, hashes=2, width=8), 200_000
    reports = encode(sketch, [word] * n, root(11))
    seen = np.bincount(
        reports.rows * 256 + reports.bits[:, 0], minlength=512
    )  # the order of `outputs`
    right, wrong = (
        np.array([probability(sketch, w, *o) for o in outputs(sketch)]) * n for w in (word, "plot")
    )
    assert scipy.stats.chisquare(seen, right).pvalue > 0.001
    assert scipy.stats.chisquare(seen, wrong).pvalue < 1e-12


def test_flips_are_the_papers() -> None:
    for epsilon in (0.1, 1.0, 8.0):
        e = math.exp(epsilon / 2)
        assert Sketch(epsilon).flip == pytest.approx(1 / (1 + e))
        assert Sketch(epsilon).scale == pytest.approx((e + 1) / (e - 1))
    assert Sketch(1e5).flip == 0.0, "and don't overflow"


def test_a_budget_is_a_users_or_a_words() -> None:
    budgets: list[tuple[Literal["user", "word"], float]] = [("user", 8 / 3), ("word", 8.0)]
    assert [per_word_epsilon(8.0, 3, unit) for unit, _ in budgets] == [
        epsilon for _, epsilon in budgets
    ]
    with pytest.raises(ConfigError, match="at least one word"):
        per_word_epsilon(8.0, 0, "user")


# --- what a client sends ---


def test_words_are_drawn_by_occurrence_and_no_place_twice() -> None:
    text, known = (
        words("the film the plot the actor an unheard-of xylograph"),
        {"the", "film", "plot"},
    )
    drawn = [choose_words(text, known, 3, derive(root(1), i)) for i in range(3000)]
    assert all(len(own) == 3 and own.count("film") <= 1 and own.count("plot") <= 1 for own in drawn)
    share = sum(own.count("the") for own in drawn) / 9000  # three of five places
    assert share == pytest.approx(3 / 5, abs=4 * math.sqrt(0.24 / 9000))


def test_every_user_sends_as_many_reports() -> None:
    assert sorted(choose_words(["film", "odd"], {"film"}, 3, root(2))) == [NO_WORD, NO_WORD, "film"]
    assert (
        choose_words(["odd"], {"film"}, 3, root(2))
        == choose_words([], {"film"}, 3, root(2))
        == [NO_WORD] * 3
    )
    sent = [encode(Sketch(8.0), own, root(3)) for own in (["a", "film", "film"], [NO_WORD] * 3)]
    assert [(r.rows.nbytes, r.bits.nbytes) for r in sent] == [(24, 384)] * 2


def test_places_are_public_and_for_ever() -> None:
    sketch, names = Sketch(1.0, hashes=20, width=1000), ["film", "the", "straße"]

    def place(word: str, row: int) -> int:
        digest = blake2b(
            word.encode(), key=bytes([0, 0, 0, row // 16]), person=b"lexfed sketch"
        ).digest()
        return int.from_bytes(digest[row % 16 * 4 :][:4], "big") % 1000

    slow = [[place(word, row) for word in names] for row in range(20)]
    assert places(sketch, names).tolist() == slow
    assert places(sketch, []).shape == (20, 0)


def test_places_are_uniform_and_rows_are_independent() -> None:
    at = places(Sketch(1.0, hashes=18, width=16), [f"w{i}" for i in range(20_000)])
    for row in at:
        assert scipy.stats.chisquare(np.bincount(row, minlength=16)).pvalue > 1e-4
    for a, b in ((0, 1), (0, 16), (15, 17)):  # of one digest, and of two
        assert scipy.stats.chisquare(np.bincount(at[a] * 16 + at[b], minlength=256)).pvalue > 1e-4


# --- the server's sums ---


def papers_estimate(sketch: Sketch, reports: Reports, word: str) -> float:
    """The paper's formulas, one report after the other."""
    k, m, e = sketch.hashes, sketch.width, math.exp(sketch.epsilon / 2)
    c, table = (e + 1) / (e - 1), np.zeros((k, m))
    for row, bits in zip(reports.rows, reports.bits, strict=True):
        v = np.array([1 if bits[i // 8] >> (7 - i % 8) & 1 else -1 for i in range(m)])
        table[row] += k * (c / 2 * v + 1 / 2)
    mean = np.mean([table[j, places(sketch, [word])[j, 0]] for j in range(k)])
    return float(m / (m - 1) * (mean - len(reports.rows) / m))


def test_estimates_are_the_papers() -> None:
    sketch, text = (
        Sketch(3.0, hashes=5, width=24),
        words(" ".join(list(load("rotten_tomatoes"))[:20])),
    )
    reports = encode(sketch, text, root(4))
    summed = add(empty(sketch), reports)
    for word, count in zip(
        ("the", "film", "absent"), estimate(summed, sketch, ["the", "film", "absent"]), strict=True
    ):
        assert count == pytest.approx(papers_estimate(sketch, reports, word))


def test_sums_add_up_and_leave_their_parts_alone() -> None:
    sketch = Sketch(2.0, hashes=4, width=16)
    a, b = (encode(sketch, ["x", "y", "x"], derive(root(5), i)) for i in range(2))
    start = empty(sketch)
    apart, together = add(start, a) + add(start, b), add(add(start, a), b)
    assert np.array_equal(apart.signs, together.signs)
    assert np.array_equal(apart.reports, together.reports)
    assert together.reports.sum() == 6
    assert not start.signs.any()


def test_reports_of_another_sketch_are_refused() -> None:
    sketch = Sketch(2.0, hashes=4, width=16)
    good = encode(sketch, ["x"], root(6))
    for bad in (
        Reports(good.rows + 4, good.bits),
        Reports(good.rows - 4, good.bits),
        Reports(good.rows, good.bits[:, :1]),
        Reports(good.rows[:0], good.bits),
    ):
        with pytest.raises(WireError, match="4 rows of 16 columns"):
            add(empty(sketch), bad)
    with pytest.raises(DataError, match="5 rows of 16 columns"):
        estimate(empty(sketch), Sketch(2.0, hashes=5, width=16), ["x"])


@pytest.mark.parametrize(
    "wrong", [{"epsilon": 0.0}, {"epsilon": math.inf}, {"hashes": 0}, {"width": 0}, {"width": 12}]
)
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="a sketch"):
        Sketch(**{"epsilon": 1.0, **wrong})  # type: ignore[arg-type]


def test_the_sum_of_many_is_the_sum_of_each_in_law() -> None:
    """1,000 sums of both kinds. Means of all cells within 4.5 errors, variances of cells and of
    whole rows within 25 %.
    """
    sketch, runs = Sketch(2.0, hashes=3, width=16), 1000
    own = [["the"] * 40, ["film"] * 10, [NO_WORD] * 20, [f"w{i}" for i in range(30)]]
    flat = list(chain.from_iterable(own))
    each = np.array(
        [
            add(empty(sketch), encode(sketch, flat, derive(root(7), "each", i))).signs
            for i in range(runs)
        ]
    )
    many = np.array(
        [encode_many(sketch, own, derive(root(7), "many", i)).signs for i in range(runs)]
    )
    error = np.sqrt((each.var(axis=0) + many.var(axis=0)) / runs)
    assert np.abs((each.mean(axis=0) - many.mean(axis=0)) / error).max() < 4.5
    assert np.abs(each.mean(axis=0)).max() > 20 * error.max(), (
        "and the cells differ, so that a mix-up would show"
    )
    # a variance of 1,000 draws has an error of 4.5 %, a ratio of two 6.3 %; the row sums hold all
    # covariances of columns
    for a, b in ((each, many), (each.sum(axis=2), many.sum(axis=2))):
        assert np.abs(np.log(a.var(axis=0) / b.var(axis=0))).max() < math.log(1.25)


# --- the error ---

COUNTS = {"the": 300, "film": 40, "rare": 4, NO_WORD: 100} | {f"w{i}": 4 for i in range(50)}
N = sum(COUNTS.values())


def squares(word: str) -> float:
    return sum(
        n if w == NO_WORD else n * n for w, n in COUNTS.items() if w != word
    )  # each NO_WORD is a word of its own


@cache
def repeated(epsilon: float, runs: int = 1000) -> dict[str, np.ndarray]:
    """Estimates of a frequent, a rare and an absent word. Every run has its own names: that is,
    its own hash functions.
    """
    sketch, draws = Sketch(epsilon, hashes=16, width=32), []
    for run in range(runs):
        own = [[f"{run} {word}" if word else NO_WORD] * n for word, n in COUNTS.items()]
        names = [f"{run} {word}" for word in ("the", "rare", "absent")]
        draws.append(estimate(encode_many(sketch, own, derive(root(8), run)), sketch, names))
    return dict(zip(("the", "rare", "absent"), np.array(draws).T, strict=True))


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
@pytest.mark.parametrize("word", ["the", "rare", "absent"])
def test_estimates_are_unbiased_and_off_by_the_stated_error(epsilon: float, word: str) -> None:
    """1,000 runs: the mean is right within 4 of its errors, the variance as stated within 15 %
    (its error is 4.5 %).
    """
    draws, sketch, f = (
        repeated(epsilon)[word],
        Sketch(epsilon, hashes=16, width=32),
        COUNTS.get(word, 0),
    )
    stated = standard_error(sketch, N, f, squares(word))
    assert abs(draws.mean() - f) < 4 * stated / math.sqrt(len(draws))
    assert draws.var() == pytest.approx(stated**2, rel=0.15)


def test_collisions_have_to_be_counted() -> None:
    """At epsilon 8 the frequent words' collisions are most of the error: without them it would
    be far too small.
    """
    without = standard_error(Sketch(8.0, hashes=16, width=32), N)
    assert repeated(8.0)["absent"].var() > 2 * without**2


def test_a_vector_without_a_word_would_have_biased_estimates() -> None:
    """Why NO_WORD has a column: -1 everywhere takes n / (m - 1) off every count; a column by
    chance takes nothing.
    """
    sketch, n = Sketch(4.0, hashes=2, width=8), 200_000
    rng = numpy_generator(root(9))
    flipped = np.packbits(rng.random((n, 8)) < sketch.flip, axis=1)
    nothing = add(empty(sketch), Reports(rng.integers(2, size=n), flipped))
    chance = add(empty(sketch), encode(sketch, [NO_WORD] * n, root(9)))
    error = standard_error(sketch, n, squares=n)
    assert estimate(nothing, sketch, ["film"])[0] == pytest.approx(-n / 7, abs=4 * error)
    assert estimate(chance, sketch, ["film"])[0] == pytest.approx(0, abs=4 * error)
    assert n / 7 > 50 * error


# --- a word list ---


@cache
def names() -> list[str]:
    return list(most_frequent(count_words(load("rotten_tomatoes")), 10_001, 1).tokens[1:])


@cache
def a_million() -> tuple[list[list[str]], np.ndarray]:
    """A million users with three words each, by Zipf's law, and the true counts."""
    law = 1 / np.arange(1, len(names()) + 1)
    drawn = numpy_generator(root(10)).choice(len(names()), (1_000_000, 3), p=law / law.sum())
    return np.array(names(), dtype=object)[drawn].tolist(), np.bincount(
        drawn.ravel(), minlength=len(names())
    )


def test_a_million_users_take_seconds() -> None:
    own, true = a_million()
    sketch, start = Sketch(8.0), time.process_time()
    counts = estimate(encode_many(sketch, own, root(12)), sketch, names())
    assert time.process_time() - start < 10
    off, square = counts - true, float(np.square(true, dtype=np.float64).sum())
    assert off.std() == pytest.approx(standard_error(sketch, 3_000_000, squares=square), rel=0.05)
    assert off.std() > 5 * standard_error(sketch, 3_000_000), (
        "so many reports are off by collisions, not by flips"
    )


def test_a_histogram_holds_what_stands_out() -> None:
    """Of 10,000 absent candidates 191 stand out by three errors and 11 by six: collisions with
    the first word are few and
    large. With collisions forgotten it would be 1,891 and 1,244. The 25th word is eight errors
    above 0.
    """
    own, true = a_million()
    sketch, absent = Sketch(8.0), [f"absent {i}" for i in range(10_000)]
    summed = encode_many(sketch, own, root(13))
    found = histogram(summed, sketch, [*names(), *absent])
    assert set(names()[:25]) <= set(found)
    assert abs(found[names()[0]] / true[0] - 1) < 0.03
    assert len(set(found) & set(absent)) < 250
    assert len(histogram(summed, sketch, absent, z=3.0)) > 1000, (
        "who asks for no frequent word can't know of them"
    )
    assert len(set(histogram(summed, sketch, [*names(), *absent], z=6.0)) & set(absent)) < 25
    assert histogram(empty(sketch), sketch, names()) == {}


@needs_data
def test_the_words_of_blogs() -> None:
    """6,000 authors, three words each, candidates from Wikipedia, epsilon 8 a word: 55 of the
    100 most frequent words of
    their text, rank correlation 0.88 over these; with epsilon 8 a user 14 and 0.54. Bounds are
    three words, 0.05 off.
    """
    wiki, blogs = load("wikitext2").where("splits", "valid"), load("blogs")
    candidates = list(most_frequent(count_words(wiki), 10_001, 1).tokens[1:])
    known, first = frozenset(candidates), dict[str, int]()
    for place, user in enumerate(blogs.users.take(blogs.rows).to_pylist()):
        first.setdefault(user, place)
    texts = [words(text) for text in blogs.take(np.array(list(first.values())[:6000]))]
    own = [choose_words(text, known, 3, derive(root(1), "u", i)) for i, text in enumerate(texts)]
    true = Counter(word for text in texts for word in text if word in known)
    top = [word for word, _ in true.most_common(100)]

    def scores(epsilon: float) -> tuple[int, float]:
        sketch = Sketch(epsilon)
        counts = dict(
            zip(
                candidates,
                estimate(encode_many(sketch, own, root(2)), sketch, candidates),
                strict=True,
            )
        )
        ranked = sorted(candidates, key=lambda word: -counts[word])[:100]
        rank = scipy.stats.spearmanr([counts[w] for w in top], [true[w] for w in top]).statistic
        return len(set(ranked) & set(top)), float(rank)

    overlap, rank = scores(per_word_epsilon(8.0, 3, "word"))
    assert overlap >= 52
    assert rank >= 0.83
    less, worse = scores(per_word_epsilon(8.0, 3, "user"))
    assert 11 <= less < 25
    assert worse < 0.65
