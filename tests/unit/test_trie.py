"""TrieHH: its parameters against the theorem, its levels against a slow reference, its promises on
skewed text.
"""

import math
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import scipy.special

from lexfed.core.errors import ConfigError, DataError, PrivacyError
from lexfed.core.seeds import derive, numpy_generator, root
from lexfed.corpus.catalogue import load
from lexfed.vocabulary.splitting import words
from lexfed.vocabulary.trie import END, Parameters, grow, parameters, vote
from lexfed.vocabulary.word import count_words, most_frequent
from tests.references import discover

USERS = 100_000
CANARY = "xylograph"


@cache
def zipf_users() -> tuple[tuple[str, ...], ...]:
    """A word each, of 2,000 real words by Zipf's law; the last user alone holds the canary."""
    names = most_frequent(count_words(load("rotten_tomatoes")), 2001, 1).tokens[1:]
    law = 1 / np.arange(1, len(names) + 1)
    drawn = numpy_generator(derive(root(0), "zipf")).choice(
        len(names), USERS - 1, p=law / law.sum()
    )
    return (*((names[i],) for i in drawn.tolist()), (CANARY,))


def held() -> Counter[str]:
    return Counter(own[0] for own in zipf_users())


GRID = [
    (1.0, 1e-6, 1_000_000, 10),
    (2.0, 1e-3, 100_000, 10),
    (4.0, 2.3e-12, 1_780_000, 10),
    (4.0, 1e-6, 10_000, 10),
    (8.0, 1e-9, 50_000, 20),
]


@pytest.mark.parametrize(("epsilon", "delta", "users", "length"), GRID)
def test_parameters_spend_what_the_theorem_says_and_no_more(
    epsilon: float, delta: float, users: int, length: int
) -> None:
    p = parameters(epsilon, delta, users, length)

    def cost(sample: int, theta: int) -> tuple[float, float]:
        gamma = sample / math.sqrt(users)
        spent = length * math.log(1 + 1 / (math.sqrt(users) / (gamma * theta) - 1))
        return spent, (theta - 2) / ((theta - 3) * math.factorial(theta))

    assert (p.epsilon, p.delta) == pytest.approx(cost(p.sample, p.theta), rel=1e-9)
    assert p.epsilon <= epsilon < cost(p.sample + 1, p.theta)[0], "the largest sample"
    assert p.delta <= delta
    assert p.theta == 10 or cost(p.sample, p.theta - 1)[1] > delta, "the least theta"
    assert 10 <= p.theta <= math.sqrt(users)
    assert 1 <= p.gamma <= math.sqrt(users) / (p.theta + 1)


def test_a_published_setting() -> None:
    """epsilon 4, delta 2.3e-12 and words of ten: the authors' own experiments have theta = 15."""
    p = parameters(4.0, 2.3e-12, 1_780_000, 10)
    assert (p.theta, p.sample) == (15, math.floor(1_780_000 * (1 - math.exp(-0.4)) / 15))


def closed_form(delta: float) -> int:
    c = math.log(8 / (7 * math.sqrt(2 * math.pi) * delta)) / math.e
    return max(10, math.ceil(math.exp(scipy.special.lambertw(c).real + 1) - 0.5))


def test_theta_is_the_closed_forms_but_where_that_misses_delta() -> None:
    deltas = np.geomspace(1e-15, 1e-6, 500)
    ours = [parameters(4.0, delta, 10**9, 10).theta for delta in deltas]
    apart = [abs(theta - closed_form(delta)) for theta, delta in zip(ours, deltas, strict=True)]
    assert max(apart) <= 1
    assert sum(apart) < 20
    # the theorem's delta of theta = 10 is 3.149e-7, Burnside's approximation makes it 3.137e-7
    between = 3.14e-7
    assert closed_form(between) == 10
    assert parameters(4.0, between, 10**9, 10).theta == 11


def choose(n: np.ndarray, k: np.ndarray) -> np.ndarray:
    """ln of n over k; -inf where there is no way."""
    log = scipy.special.gammaln
    return np.where(
        (k >= 0) & (k <= n), log(n + 1.0) - log(k + 1.0) - log(np.maximum(n - k, 0) + 1.0), -np.inf
    )


@pytest.mark.parametrize(
    ("epsilon", "users", "length"), [(4.0, 10_000, 10), (1.0, 100_000, 10), (2.0, 10_000, 1)]
)
def test_one_prefix_keeps_the_promise_exactly(epsilon: float, users: int, length: int) -> None:
    """Whether a prefix of K users gets theta votes, with and without one of them, for every K:
    by the hypergeometric law.
    """
    p, holders = parameters(epsilon, 1e-6, users, length), np.arange(users + 1)

    def excess(sample: int) -> float:
        got = np.arange(p.theta)[:, None]  # votes, of K holders and of n - K others
        log = (
            choose(holders, got)
            + choose(users - holders, sample - got)
            - choose(np.array(users), np.array(sample))
        )
        gone = np.exp(log).sum(axis=0)
        kept, factor = 1 - gone, math.exp(p.epsilon / length)
        return float(
            max((kept[1:] - factor * kept[:-1]).max(), (gone[:-1] - factor * gone[1:]).max())
        )

    assert length * excess(p.sample) <= p.delta, "all levels together, by plain composition"
    assert length * excess(6 * p.sample) > p.delta, "a sample six times as large breaks it"


@pytest.mark.parametrize("users", [0, 1, 99, 800])
def test_too_few_users_are_refused(users: int) -> None:
    with pytest.raises(PrivacyError, match=r"users are too few .* it takes some 921"):
        parameters(4.0, 1e-6, users, 10)


def test_the_number_of_users_that_is_asked_for_is_enough() -> None:
    assert parameters(4.0, 1e-6, 950, 10).gamma >= 1


def test_a_large_epsilon_is_not_spent() -> None:
    p = parameters(1000.0, 1e-6, 100_000, 10)
    assert p.sample == 100_000 // 11
    assert p.epsilon < 10 * math.log(11) + 1e-9


@pytest.mark.parametrize(
    "wrong",
    [
        (0.0, 1e-6, 9, 1),
        (math.inf, 1e-6, 9, 1),
        (1.0, 0.0, 9, 1),
        (1.0, 1.0, 9, 1),
        (1.0, 1e-6, 9, 0),
    ],
)
def test_nonsense_is_refused(wrong: tuple[float, float, int, int]) -> None:
    with pytest.raises(ConfigError, match="a trie needs"):
        parameters(*wrong)


def test_a_vote_extends_a_prefix_of_the_trie() -> None:
    assert [
        vote(["to"], prefixes, level, b"u")
        for level, prefixes in [(1, {""}), (2, {"t"}), (3, {"to"})]
    ] == [
        "t",
        "to",
        "to" + END,
    ]
    assert vote(["to"], {"b"}, 2, b"u") is None, "not its prefix"
    assert vote(["to"], {"to" + END}, 4, b"u") is None, "its word has ended"
    assert vote([], {""}, 1, b"u") is None
    with pytest.raises(DataError, match="line break"):
        vote(["t" + END + "o"], {""}, 1, b"u")


def test_a_user_keeps_its_word_and_words_go_by_occurrence() -> None:
    text = words("the cat and the dog and the bird")
    secrets = [derive(root(1), user) for user in range(4000)]
    first = [vote(text, {""}, 1, secret) for secret in secrets]
    again = [vote(text, {"t", "c", "a", "d", "b"}, 2, secret) for secret in secrets]
    assert all(
        a is not None and b is not None and b.startswith(a)
        for a, b in zip(first, again, strict=True)
    )
    assert Counter(first)["t"] / 4000 == pytest.approx(
        3 / 8, abs=4 * math.sqrt(3 / 8 * 5 / 8 / 4000)
    )


def test_the_trie_grows_by_theta_votes() -> None:
    votes = ["to"] * 3 + ["ta"] * 2 + [None] * 5 + ["xo"] * 9 + [""] * 9 + ["t" + END + "a"] * 9
    assert grow({"t", "t" + END}, votes, theta=3) == {"to": 3}, (
        "neither few votes, nor votes from outside the trie"
    )
    assert grow({"t"}, votes, theta=2) == {"to": 3, "ta": 2}


def test_discovery_is_the_algorithm_written_out() -> None:
    """With every user in the sample there is no chance left: all prefixes of a found word have
    theta holders.
    """
    users = [tuple(words(text))[:1] for text in load("rotten_tomatoes")]
    params = Parameters(len(users), length=8, theta=12, sample=len(users))
    counts = Counter(own[0] for own in users if own)
    expected = {word: number for word, number in counts.items() if number >= 12 and len(word) < 8}
    assert discover(users, params, root(2)) == expected
    assert len(expected) > 50
    assert any(number >= 12 and len(word) >= 8 for word, number in counts.items()), (
        "and longer ones were there"
    )


def test_frequent_words_are_found_and_rare_ones_are_not() -> None:
    """theta = 10 of 3,297 users a level: a word of 1.2 % of the users has 40 votes expected,
    below 10 once in 10^8.
    """
    params, counts = parameters(4.0, 1e-6, USERS, 10), held()
    found = discover(zipf_users(), params, root(3))
    sure = {word for word, number in counts.items() if number >= 0.012 * USERS and len(word) < 10}
    assert sure <= set(found)
    assert len(sure) >= 8
    assert all(counts[word] >= params.theta for word in found)
    for word, number in found.items():
        expected = counts[word] * params.sample / USERS
        assert params.theta <= number <= expected + 5 * math.sqrt(expected) + 5


def test_a_canary_is_never_found_but_without_the_threshold() -> None:
    params = parameters(4.0, 1e-6, USERS, 10)
    assert held()[CANARY] == 1
    assert all(
        CANARY not in discover(zipf_users(), params, derive(root(4), run)) for run in range(2)
    )
    few = replace(params, users=2000, sample=2000)
    text = zipf_users()[-2000:]
    assert CANARY in discover(text, replace(few, theta=1), root(5)), (
        "the threshold is what hides it"
    )
    assert CANARY not in discover(text, few, root(5))
    many = (*text[:-20], *[(CANARY,)] * 20)
    assert CANARY in discover(many, few, root(5)), "a word of twenty is no secret"


def test_the_parameters_are_for_this_number_of_users() -> None:
    params = parameters(4.0, 1e-6, 10_000, 10)
    with pytest.raises(PrivacyError, match="for 10,000 users, not for 3"):
        discover([("a",)] * 3, params, root(6))
