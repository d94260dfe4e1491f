"""Metrics per word against a slow hand computation, their errors against the spread of repeated
draws.
"""

import math
from collections import Counter
from functools import cache
from itertools import islice

import numpy as np
import pytest
from scipy.stats import entropy

from lexfed.core.errors import DataError
from lexfed.core.seeds import derive, numpy_generator, root
from lexfed.corpus.catalogue import load as load_corpus
from lexfed.metrics.perplexity import (
    TextScore,
    equal_size,
    figures,
    paired_difference,
    text_score,
    unigram_kld,
)
from lexfed.vocabulary.tokenizer import TrainedTokenizer, load, train
from tests.references import token_words as words

RNG = numpy_generator(derive(root(0), "language metrics"))


@cache
def texts() -> list[list[str]]:
    return [words(text) for text in islice(load_corpus("rotten_tomatoes"), 600)]


# --- scores --------------------------------------------------------------------------------------


def slow_score(
    nll: list[float], best: list[bool], lengths: list[int], unknown: list[bool]
) -> TextScore:
    right = oov = place = 0
    for length in lengths:
        mine = range(place, place + length)
        oov += any(unknown[i] for i in mine)
        right += length > 0 and all(best[i] and not unknown[i] for i in mine)
        place += length
    return TextScore(math.fsum(nll), len(lengths), place, right, oov)


def test_a_text_s_score() -> None:
    for _ in range(200):
        lengths = RNG.integers(0, 4, RNG.integers(0, 12)).tolist()
        tokens = sum(lengths) + 1
        nll, best = RNG.exponential(3, tokens).tolist(), (RNG.random(tokens) < 0.7).tolist()
        unknown = (RNG.random(tokens) < 0.1).tolist()
        ours, slow = (
            text_score(nll, best, lengths, unknown),
            slow_score(nll, best, lengths, unknown),
        )
        assert ours.nll == pytest.approx(slow.nll)
        assert (ours.words, ours.tokens, ours.right, ours.oov) == (
            slow.words,
            slow.tokens,
            slow.right,
            slow.oov,
        )


def test_a_word_is_right_if_all_its_tokens_are() -> None:
    def right(best: list[bool], unknown: list[bool]) -> int:
        return text_score([1.0] * 4, best, [2, 1], unknown).right

    no = [False] * 4
    assert right([True, True, True, True], no) == 2
    assert right([True, True, True, False], no) == 2, "the end of the text is no word"
    assert right([True, False, True, True], no) == 1
    assert right([True, True, True, True], [False, False, True, False]) == 1, (
        "<unk> is wrong, even if it was the first choice"
    )
    with pytest.raises(ValueError, match="need 4 values"):
        text_score([1.0] * 3, [True] * 3, [2, 1], [False] * 3)


def test_figures_by_hand() -> None:
    one = text_score([1.0, 2.0, 3.0], [True, True, False], [1, 1], [False] * 3)
    two = text_score(
        [4.0, 0.5, 1.5, 2.0], [True, True, False, True], [2, 1], [False, False, True, False]
    )
    users = [one, two + two]
    found = figures(users)
    assert found["word_perplexity"] == pytest.approx(math.exp((6 + 16) / 6))
    assert found["worst_tenth_perplexity"] == pytest.approx(math.exp(4.0)), "16/4 against 6/2"
    assert found["word_accuracy"] == (2 + 2) / 6
    assert found["tokens_per_word"] == (2 + 6) / 6
    assert found["oov_rate"] == 2 / 6
    residuals = [6 - 22 / 6 * 2, 16 - 22 / 6 * 4]
    error = math.sqrt(2 / 1 * sum(r * r for r in residuals)) / 6
    assert found["word_perplexity_interval"] == pytest.approx(
        1.96 * error * found["word_perplexity"]
    )


def test_the_worst_tenth_is_pooled() -> None:
    users = [TextScore(nll=float(i * (i % 3 + 1)), words=i % 3 + 1, tokens=3) for i in range(1, 26)]
    worst = [
        user for user in users if user.nll / user.words > 22
    ]  # 23, 24, 25: a tenth of 25, rounded up
    expected = math.exp(sum(user.nll for user in worst) / sum(user.words for user in worst))
    assert figures(users)["worst_tenth_perplexity"] == pytest.approx(expected)


def test_users_without_words_and_models_without_numbers() -> None:
    user = TextScore(nll=4.0, words=2, tokens=3, right=1)
    assert figures([user, TextScore(nll=3.0), user]) == figures([user, user])
    assert math.isnan(figures([user])["word_perplexity_interval"]), "one user tells no error"
    for nll in (math.inf, math.nan, 1e9):
        assert figures([user, TextScore(nll=nll, words=1)])["word_perplexity"] == math.inf
    with pytest.raises(DataError, match="no user has a word"):
        figures([TextScore(nll=1.0)])


def population(users: int, shift: float) -> list[TextScore]:
    """Users of very different length; those that write much are easier."""
    lengths = RNG.integers(5, 300, users)
    rates = RNG.normal(6, 0.5, users) - lengths / 300 + shift
    return [
        TextScore(nll=float(r * n), words=int(n), tokens=int(n))
        for r, n in zip(rates, lengths, strict=True)
    ]


def test_the_interval_holds_the_truth_19_times_in_20() -> None:
    """1,000 samples of 100 users: coverage 0.95 has a standard deviation of 0.007; the bound is
    four of them, and bias.
    """
    whole = population(20_000, 0.0)
    truth = math.log(figures(whole)["word_perplexity"])
    hits = 0
    for _ in range(1000):
        found = figures([whole[i] for i in RNG.integers(0, len(whole), 100)])
        half = found["word_perplexity_interval"] / found["word_perplexity"]
        hits += abs(math.log(found["word_perplexity"]) - truth) < half
    assert 0.92 < hits / 1000 < 0.98


def test_paired_differences_are_surer_than_two_figures() -> None:
    a = population(300, 0.0)
    gains = RNG.normal(0.05, 0.1, 300)
    b = [
        TextScore(nll=user.nll - g * user.words, words=user.words)
        for user, g in zip(a, gains, strict=True)
    ]
    difference, error = paired_difference(a, b)
    logs = [math.log(figures(users)["word_perplexity"]) for users in (a, b)]
    assert difference == pytest.approx(logs[0] - logs[1])
    resampled = []
    for _ in range(1000):
        at = RNG.integers(0, 300, 300)
        resampled.append(paired_difference([a[i] for i in at], [b[i] for i in at])[0])
    assert error == pytest.approx(np.std(resampled), rel=0.12), "the bootstrap's own error is 2 %"
    alone = figures(a)["word_perplexity_interval"] / figures(a)["word_perplexity"] / 1.96
    assert error < alone / 3
    back, same = paired_difference(b, a)
    assert (back, same) == pytest.approx((-difference, error))
    assert paired_difference(a, a) == (0.0, 0.0)
    with pytest.raises(ValueError, match="same words"):
        paired_difference(a, b[:-1])


def byte_model(tokenizer: TrainedTokenizer) -> tuple[float, float]:
    """Perplexity per word and per token of a model that gives every byte, blanks before words
    too, 1/256.
    """
    scores = []
    for text in texts():
        ids, lengths = tokenizer.encode_words(text)
        nll = [
            len(tokenizer.engine.id_to_token(i)) * math.log(256) for i in ids
        ]  # a symbol is a byte
        scores.append(
            text_score([*nll, 1.0], [False] * (len(ids) + 1), lengths, [False] * (len(ids) + 1))
        )
    whole = sum(scores, TextScore())
    return figures(scores)["word_perplexity"], math.exp(whole.nll / (whole.tokens + len(scores)))


def test_perplexity_per_word_does_not_depend_on_the_tokenizer() -> None:
    small, large = (load(train(texts(), "bpe", size)) for size in (300, 1500))
    assert byte_model(small)[0] == pytest.approx(byte_model(large)[0], rel=1e-9)
    assert byte_model(large)[1] > 5 * byte_model(small)[1], "the pair: per token it does"


# --- distance of unigrams ------------------------------------------------------------------------


def counts(start: int, stop: int) -> Counter[str]:
    return Counter(word for text in texts()[start:stop] for word in text)


def test_divergence_by_hand_and_by_scipy() -> None:
    by_hand = 4 / 6 * math.log((4 / 6) / (1 / 3)) + 2 / 6 * math.log((2 / 6) / (2 / 3))
    assert unigram_kld({"a": 3, "b": 1}, {"b": 1, "c": 90}) == pytest.approx(by_hand), (
        "c is not the users' word"
    )
    users, other = counts(0, 300), counts(300, 600)
    top = [word for word, _ in sorted(users.items(), key=lambda item: (-item[1], item[0]))][:500]
    scipy = entropy([users[word] + 1 for word in top], [other[word] + 1 for word in top])
    assert unigram_kld(users, other, top=500) == pytest.approx(scipy)
    assert unigram_kld(users, other, top=500) != pytest.approx(
        unigram_kld(other, users, top=500), rel=1e-3
    )
    assert unigram_kld(users, users) == 0.0
    with pytest.raises(DataError, match="no words"):
        unigram_kld({}, other)


def test_it_is_not_monotone_in_size_so_sizes_are_made_equal() -> None:
    users = counts(0, 600)
    sizes = [unigram_kld({"a": 1000, "b": 10}, {"a": n, "b": n // 20}) for n in (20, 200, 2000)]
    assert sizes[0] > sizes[1] > 0
    assert unigram_kld({"a": 100, "b": 5}, {"a": 40, "b": 1}) < unigram_kld(
        {"a": 100, "b": 5}, {"a": 4000, "b": 100}
    ), "more is not nearer"
    half = equal_size(users, users.total() // 2, root(3))
    assert sum(half.values()) == users.total() // 2
    assert all(0 < n <= users[word] for word, n in half.items())
    assert half == equal_size(dict(reversed(users.items())), users.total() // 2, root(3)), (
        "the order does not matter"
    )
    assert half != equal_size(users, users.total() // 2, root(4))
    assert equal_size(users, users.total(), root(3)) == users
    for total in (0, users.total() + 1):
        with pytest.raises(DataError, match="can't be drawn"):
            equal_size(users, total, root(3))


def test_draws_are_fair() -> None:
    """The mean of 400 draws of 50 from 40 + 60: 20 with a standard deviation of 2.5 / 20
    (hypergeometric), bound four.
    """
    drawn = [equal_size({"a": 40, "b": 60}, 50, derive(root(0), i))["a"] for i in range(400)]
    assert abs(np.mean(drawn) - 20) < 4 * 2.46 / 20
    assert np.std(drawn) == pytest.approx(math.sqrt(50 * 0.4 * 0.6 * 50 / 99), rel=0.15)
