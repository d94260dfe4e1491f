"""Laws of partitions and samplers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexfed.core.seeds import derive, root
from lexfed.corpus.partition import Parts, by_source, by_user, dirichlet, iid, quantity
from lexfed.federation.sampling import Everyone, FixedSize, Poisson, Sampler

LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=200).map(
    lambda x: np.array(x, dtype=np.int64)
)


def check(parts: Parts, examples: int, clients: int) -> None:
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(examples)), "disjoint and complete"
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1, "equal sizes"


@settings(max_examples=200)
@given(LABELS, st.data(), st.floats(1e-300, 1e4), st.sampled_from(["class", "uniform"]))
def test_dirichlet_is_a_partition_at_any_alpha(
    labels: np.ndarray, data: st.DataObject, alpha: float, prior: str
) -> None:
    clients = data.draw(st.integers(1, len(labels)))
    parts = dirichlet(labels, clients, alpha, prior, root(0))
    check(parts, len(labels), clients)
    again = dirichlet(labels, clients, alpha, prior, root(0))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@given(st.integers(1, 300), st.data())
def test_iid_is_a_partition(examples: int, data: st.DataObject) -> None:
    clients = data.draw(st.integers(1, examples))
    check(iid(examples, clients, root(1)), examples, clients)


@given(st.integers(1, 300), st.data(), st.floats(1e-3, 1e3))
def test_quantity_gives_everyone_something(
    examples: int, data: st.DataObject, alpha: float
) -> None:
    clients = data.draw(st.integers(1, examples))
    parts = quantity(examples, clients, alpha, root(2))
    assert sorted(np.concatenate(parts).tolist()) == list(range(examples))
    assert len(parts) == clients
    assert min(map(len, parts)) >= 1


def test_quantity_skews_more_at_small_alpha() -> None:
    spread = [
        np.std([len(part) for part in quantity(10_000, 20, alpha, root(0))])
        for alpha in (0.1, 1.0, 100.0)
    ]
    assert spread[0] > 1.5 * spread[1] > 3 * spread[2]


NAMES = st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=60)


@given(NAMES)
def test_users_keep_their_texts(names: list[str | None]) -> None:
    users = sorted({name for name in names if name})
    parts = by_user(names, len(users), root(0))
    assert sorted(sorted(part.tolist()) for part in parts) == sorted(
        [i for i, name in enumerate(names) if name == user] for user in users
    )


@given(NAMES, st.integers(1, 3))
def test_sources_are_shared_out_among_their_clients(names: list[str | None], each: int) -> None:
    sources = sorted({name for name in names if name})
    if any(names.count(source) < each for source in sources):
        return
    parts = by_source(names, each * len(sources), False, root(0))
    assert sorted(i for part in parts for i in part.tolist()) == [
        i for i, name in enumerate(names) if name
    ]
    assert all(len({names[i] for i in part}) == 1 for part in parts)


def top_share(labels: np.ndarray, parts: Parts) -> float:
    return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts]))


@pytest.mark.parametrize(
    ("alpha", "prior", "expected"),
    [
        # two balanced classes: E max of Beta(1/2, 1/2) is 1/2 + 1/pi, of Beta(1, 1) is 3/4
        (1.0, "class", 0.5 + 1 / np.pi),
        (1.0, "uniform", 0.75),
        (1e6, "uniform", 0.5),
        (1e-9, "class", 0.95),  # one class each, but for the clients that must mix to use up both
    ],
)
def test_dirichlet_skews_as_its_law_says(alpha: float, prior: str, expected: float) -> None:
    labels = np.arange(60_000) % 2
    shares = [
        top_share(labels, dirichlet(labels, 100, alpha, prior, root(seed))) for seed in range(5)
    ]
    assert np.mean(shares) == pytest.approx(expected, abs=0.03)


def test_other_seeds_part_differently() -> None:
    labels = np.arange(100) % 2
    assert not np.array_equal(
        dirichlet(labels, 4, 1.0, "class", root(0))[0],
        dirichlet(labels, 4, 1.0, "class", root(1))[0],
    )


def cohorts(sampler: Sampler, clients: int, rounds: int = 2000) -> list[list[int]]:
    return [sampler.sample(range(clients), derive(root(0), i)) for i in range(rounds)]


@pytest.mark.parametrize(
    ("sampler", "variance"),
    [(Everyone(), 0.0), (FixedSize(7), 0.0), (Poisson(7), 7 * (1 - 7 / 50))],
)
def test_samplers_keep_their_expectation(sampler: Sampler, variance: float) -> None:
    drawn = cohorts(sampler, 50)
    sizes = np.array([len(cohort) for cohort in drawn])
    expected = sampler.expected_size(50)
    assert sizes.mean() == pytest.approx(expected, abs=0.3)
    assert sizes.var() == pytest.approx(variance, rel=0.15)
    assert all(len(set(cohort)) == len(cohort) for cohort in drawn), "without replacement"
    turns = np.bincount([client for cohort in drawn for client in cohort], minlength=50)
    spread = 5 * np.sqrt(2000 * expected / 50) + 1
    assert np.abs(turns - 2000 * expected / 50).max() < spread, "everyone alike"


def test_a_poisson_cohort_can_be_empty() -> None:
    assert [] in cohorts(Poisson(1), 3, 200)
