"""The rules, against what their definitions say word by word."""

import random
from collections.abc import Callable

import pytest

from lexfed.agreement import word_list as agreed
from lexfed.agreement.word_list import (
    extend,
    from_bytes,
    intersection,
    keyed,
    ordered,
    renew,
    summed,
    to_bytes,
    union,
)
from lexfed.core.errors import DataError, PrivacyError
from lexfed.core.seeds import derive, root
from lexfed.vocabulary.word import Vocabulary


def proposals(seed: int) -> list[dict[str, int]]:
    draw = random.Random(seed)
    return [
        {f"w{i}": draw.randint(1, 9) for i in draw.sample(range(40), draw.randint(0, 25))}
        for _ in range(4)
    ]


WORDS = [f"w{i}" for i in range(40)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("hashed", [False, True])
def test_rules_choose_what_they_say(seed: int, hashed: bool) -> None:
    given = proposals(seed)
    name: Callable[[str], str | bytes] = (lambda w: keyed(w, root(1))) if hashed else (lambda w: w)
    sent = [{name(word): n for word, n in proposal.items()} for proposal in given]
    held = {word: sum(word in proposal for proposal in given) for word in WORDS}
    total = {word: sum(proposal.get(word, 0) for proposal in given) for word in WORDS}
    assert union(sent) == {name(word): 0 for word in WORDS if held[word]}  # type: ignore[type-var]
    assert intersection(sent) == {name(word): 0 for word in WORDS if held[word] == 4}  # type: ignore[type-var]
    for minimum in (1, 8, 15):
        for holders in (1, 2, 4):
            expected = {
                name(w): total[w]
                for w in WORDS
                if total[w] >= max(1, minimum) and held[w] >= holders
            }
            assert summed(sent, minimum, holders) == expected  # type: ignore[type-var]


def test_nobody_proposes_nothing() -> None:
    assert union([]) == intersection([]) == summed([], 1, 1) == {}
    assert ordered({}) == Vocabulary((), ())


def test_most_frequent_first_ties_in_alphabetical_order() -> None:
    assert ordered({"b": 3, "a": 3, "c": 9, "d": 1}) == Vocabulary(
        ("c", "a", "b", "d"), (9, 3, 3, 1)
    )
    assert ordered({"b": 0, "a": 0}).tokens == ("a", "b"), "where counts are not shared"


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
def test_a_list_is_cut_alike_among_words_and_among_hashes_but_for_ties(size: int) -> None:
    given = [{"b": 3, "a": 3, "c": 9, "d": 1}, {"e": 3, "c": 1}]
    plain = ordered(summed(given, 1, 1, size))
    chosen = summed([{keyed(w, root(1)): n for w, n in p.items()} for p in given], 1, 1, size)
    assert plain.tokens == ("c", "a", "b", "e", "d")[:size]
    assert sorted(chosen.values()) == sorted(plain.counts)
    ties = sorted(keyed(word, root(1)) for word in "abe")
    assert {h for h in ties if h in chosen} == set(ties[: size - 1]), "by hash: none is preferred"


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("holders", [1, 2, 3])
def test_no_word_is_lifted_by_the_loudest(seed: int, holders: int) -> None:
    given = proposals(seed)
    for rest in (1, 4, 8):
        expected = {}
        for word in WORDS:
            said = sorted(proposal[word] for proposal in given if word in proposal)
            if len(said) >= holders and sum(said) >= 6 and sum(said[: 1 - holders or None]) >= rest:
                expected[word] = sum(said)
        assert summed(given, 6, holders, None, rest) == expected


def test_a_coarse_count_is_one_of_few_and_never_far() -> None:
    given = (1, 2, 3, 5, 6, 11, 12, 19, 20, 1000)
    assert [agreed.coarse(n) for n in given] == [1, 2, 4, 4, 8, 8, 16, 16, 23, 1024]
    told = [agreed.coarse(n) for n in range(1, 5000)]
    assert told == sorted(told)
    assert len(set(told)) == 5 + 2 * 8 + 1
    for n, value in enumerate(told, 1):
        assert 2**-0.5 < value / n < 2**0.5 if n < 16 else 0.8 < value / n < 1.2


def test_extending_keeps_old_ids() -> None:
    old, new = (
        Vocabulary(("the", "cat", "of"), (9, 5, 4), 3),
        Vocabulary(("of", "dog", "the", "ant"), (7, 6, 2, 1)),
    )
    longer = extend(old, new)
    assert longer == Vocabulary(("the", "cat", "of", "dog", "ant"), (11, 5, 11, 6, 1), 4)
    assert all(longer.ids[word] == old.ids[word] for word in old.tokens)
    assert renew(old, new).counts == (2, 5, 7, 6, 1), "those who count again don't count twice"
    assert extend(old, Vocabulary((), ())) == Vocabulary(old.tokens, old.counts, 4)


def test_a_hash_needs_its_key() -> None:
    key, other = derive(root(0), "common"), derive(root(1), "common")
    assert keyed("anna", key) == keyed("anna", key) != keyed("anna", other)
    assert len(keyed("我", key)) == agreed.HASH == 16
    with pytest.raises(PrivacyError, match="without a secret"):
        keyed("anna", b"")


def test_a_vocabulary_survives_as_bytes() -> None:
    for vocabulary in (Vocabulary(("हिन्दी", '"', "我"), (3, 2, 1), 7), Vocabulary((), ())):
        assert from_bytes(to_bytes(vocabulary)) == vocabulary


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"tokens": ["a"], "counts": [1]}',
        b'{"tokens": ["a"], "counts": [], "version": 1}',
        b'{"tokens": ["a", "a"], "counts": [1, 1], "version": 1}',
        b'{"tokens": [1], "counts": [1], "version": 1}',
        b'{"tokens": ["a"], "counts": [-1], "version": 1}',
        b'{"tokens": ["a"], "counts": [1.5], "version": 1}',
        b'{"tokens": ["a"], "counts": [1], "version": 0}',
        b'{"tokens": ["a"], "counts": [1], "version": "1"}',
        b'{"tokens": null, "counts": [1], "version": 1}',
    ],
)
def test_what_is_not_a_vocabulary_is_refused(data: bytes) -> None:
    with pytest.raises(DataError, match=r"list\.json can't be read") as error:
        from_bytes(data, "list.json")
    assert "\n" not in str(error.value)
