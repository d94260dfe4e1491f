"""The bound holds where the noise is what was claimed, and refutes the claim where it is not."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from lexfed.audits.one_run import SHARES, Share, audit, epsilon_lower_bound, p_value, right_guesses
from lexfed.core.errors import PrivacyError
from lexfed.core.seeds import numpy_generator, root
from lexfed.privacy.accounting import Gaussian, Release, epsilon, gaussian_noise

DELTA = 1e-6


# --- the p-value ---------------------------------------------------------------------------------


def tail(r: int, q: float, v: int) -> float:
    """P[Bin(r, q) >= v] by its definition."""
    return sum(math.comb(r, i) * q**i * (1 - q) ** (r - i) for i in range(max(v, 0), r + 1))


@pytest.mark.parametrize(
    ("m", "r", "v", "eps", "delta"),
    [(50, 20, 17, 1.0, 1e-3), (30, 30, 22, 0.2, 1e-4), (9, 4, 4, 2.0, 0.01)],
)
def test_the_p_value_is_the_theorem_s(m: int, r: int, v: int, eps: float, delta: float) -> None:
    q = math.exp(eps) / (1 + math.exp(eps))
    alpha = max((tail(r, q, v - i) - tail(r, q, v)) / i for i in range(1, m + 1))
    assert p_value(m, r, v, eps, 0.0) == pytest.approx(tail(r, q, v), rel=1e-9)
    assert p_value(m, r, v, eps, delta) == pytest.approx(
        min(1.0, tail(r, q, v) + 2 * m * delta * alpha), rel=1e-9
    )


def test_without_delta_it_is_what_randomised_response_does() -> None:
    """Coins told truly with probability q: epsilon-DP for each, and nothing is easier to guess."""
    q, tries = math.exp(0.7) / (1 + math.exp(0.7)), 40_000
    right = (numpy_generator(root(0)).random((tries, 60)) < q).sum(axis=1)
    for v in (38, 42, 47):
        p = p_value(60, 60, v, 0.7, 0.0)
        assert (right >= v).mean() == pytest.approx(p, abs=4 * math.sqrt(p / tries))


def test_with_delta_it_covers_mechanisms_that_sometimes_tell() -> None:
    """With probability m delta / i it tells i of the m coins; else randomised response.
    (epsilon, delta)-DP for each.
    """
    m, eps, delta = 100, 0.5, 1e-5
    q = math.exp(eps) / (1 + math.exp(eps))
    uncovered = 0
    for v in range(60, 101, 5):
        for i in range(1, v + 1):
            tells = m * delta / i
            chance = (1 - tells) * stats.binom.sf(v - 1, m, q) + tells * stats.binom.sf(
                v - i - 1, m - i, q
            )
            assert chance <= p_value(m, m, v, eps, delta) * (1 + 1e-9)
            uncovered += chance > p_value(m, m, v, eps, 0.0) * (1 + 1e-9)
    assert uncovered > 100, "the pair: without its delta the bound would be wrong"


@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-4, 1e-2])
@pytest.mark.parametrize(
    ("r", "v"), [(1000, 520), (1000, 999), (200, 150), (200, 200), (10, 8), (2, 2)]
)
def test_the_p_value_grows_with_epsilon_until_it_refutes_nothing(
    r: int, v: int, delta: float
) -> None:
    """So that bisection finds the one crossing: below a half it grows, and it never comes back
    there.
    """
    values = [p_value(1000, r, v, eps, delta) for eps in np.linspace(0, 12, 150)]
    assert all(one < two for one, two in pairwise(values) if min(one, two) < 0.5)


def test_the_p_value_grows_with_delta_and_probes() -> None:
    assert (
        p_value(1000, 200, 150, 0.5, 1e-5)
        > p_value(1000, 200, 150, 0.5, 1e-6)
        > p_value(500, 200, 150, 0.5, 1e-6)
    )


# --- the bound -----------------------------------------------------------------------------------


def test_the_bound_is_where_the_p_value_crosses() -> None:
    bound = epsilon_lower_bound(1000, 200, 170, DELTA)
    assert (
        p_value(1000, 200, 170, bound - 1e-5, DELTA)
        < 0.05
        < p_value(1000, 200, 170, bound + 1e-5, DELTA)
    )
    all_right = epsilon_lower_bound(1000, 1000, 1000, 0.0)
    q = 0.05 ** (1 / 1000)
    assert all_right == pytest.approx(math.log(q / (1 - q)), abs=1e-5)
    assert all_right == pytest.approx(math.log(1000 / math.log(20)), abs=0.01), (
        "as the docstring says: 5.8"
    )


def test_the_bound_is_monotone() -> None:
    bounds = [epsilon_lower_bound(1000, 200, right, DELTA) for right in range(0, 201, 4)]
    assert bounds[0] == bounds[25] == 0.0, "half of them right says nothing"
    assert all(one <= two for one, two in pairwise(bounds))
    assert bounds[-1] > 3
    assert epsilon_lower_bound(1000, 200, 170, 1e-4) < epsilon_lower_bound(1000, 200, 170, 1e-6)
    assert epsilon_lower_bound(1000, 200, 170, 1e-6, 0.99) < epsilon_lower_bound(
        1000, 200, 170, 1e-6, 0.9
    )


@pytest.mark.parametrize("shares", [SHARES[1:2], SHARES, [(0.1, 0.0), (0.4, 0.0)]])
def test_the_bound_is_wrong_no_more_often_than_it_says(shares: Sequence[Share]) -> None:
    """Randomised response of epsilon 1: scores are its answers, in an order that says nothing."""
    generator, q, wrong, tries = numpy_generator(root(1)), math.e / (1 + math.e), 0, 400
    for _ in range(tries):
        inside = generator.random(400) < 0.5
        told = np.where(generator.random(400) < q, inside, ~inside)
        wrong += audit(told + 0.5 * generator.random(400), inside, 0.0, 0.8, shares).epsilon > 1.0
    assert wrong / tries <= 0.2 + 3 * math.sqrt(0.16 / tries)
    assert wrong > 0, "so the test can tell"


# --- guesses -------------------------------------------------------------------------------------


def test_the_highest_are_in_and_the_lowest_out() -> None:
    scores = np.array([5.0, -3.0, 4.0, 0.0, -1.0, 3.0])
    inside = np.array([True, False, False, True, False, True])
    assert [right_guesses(scores, inside, r, r) for r in (1, 2, 3)] == [2, 3, 4]
    assert [right_guesses(-scores, inside, r, r) for r in (1, 2, 3)] == [0, 1, 2]
    assert [right_guesses(scores, inside, r, 0) for r in (1, 2, 3)] == [1, 1, 2], "in alone"
    assert [right_guesses(scores, inside, 0, r) for r in (1, 2, 3)] == [1, 2, 2], "out alone"
    assert right_guesses(np.zeros(6), np.array([False] * 3 + [True] * 3), 3, 3) == 6, (
        "ties: the order of the probes"
    )


@pytest.mark.parametrize(("ins", "outs"), [(0, 0), (-1, 2), (4, 3)])
def test_a_number_of_guesses_that_can_not_be_is_refused(ins: int, outs: int) -> None:
    with pytest.raises(PrivacyError, match="at least one guess"):
        right_guesses(np.zeros(6), np.zeros(6, np.bool_), ins, outs)


def test_what_is_no_audit_is_refused() -> None:
    with pytest.raises(PrivacyError, match="one finite score"):
        right_guesses(np.zeros(6), np.zeros(5, np.bool_), 1, 1)
    with pytest.raises(PrivacyError, match="one finite score"):
        right_guesses(np.array([0.0, math.nan]), np.zeros(2, np.bool_), 1, 1)
    with pytest.raises(PrivacyError, match="can't be"):
        epsilon_lower_bound(10, 4, 5, DELTA)
    with pytest.raises(PrivacyError, match="no probability"):
        epsilon_lower_bound(10, 4, 4, DELTA, confidence=1.0)


# --- a Gaussian mechanism, audited ---------------------------------------------------------------


def audited(number: int, noises: Sequence[float], probes: int = 1000) -> list[float]:
    """Probes whose coin fell heads, each a number of its own, released with each of these noises."""
    generator = numpy_generator(root(number))
    inside = generator.random(probes) < 0.5
    return [
        audit(inside + generator.normal(0.0, noise, probes), inside, DELTA).epsilon
        for noise in noises
    ]


def test_the_bound_holds_with_the_noise_that_was_claimed_and_refutes_a_claim_without_it() -> None:
    two, eight = gaussian_noise(2.0, DELTA), gaussian_noise(8.0, DELTA)
    assert epsilon((Release("user", Gaussian(two)),), "user", DELTA) == pytest.approx(2.0, rel=1e-3)
    assert epsilon((Release("user", Gaussian(eight)),), "user", DELTA) == pytest.approx(
        8.0, rel=1e-3
    )
    for number in range(3):
        fair, loose, little, none = audited(number, [two, eight, two / 20, 0.0])
        assert fair < 2.0
        assert 1.5 < loose < 8.0, "it sees the difference"
        assert fair < loose
        assert little > 4.0, "a claim of 2 with a twentieth of its noise"
        assert none > 4.0


def test_a_claim_of_eight_takes_more_probes_to_refute() -> None:
    """Twenty thousand: all found out, they show 8.2; a thousand show 5.2 at most."""
    eight = gaussian_noise(8.0, DELTA)
    fair, little = audited(0, [eight, eight / 20], 20_000)
    assert 3.0 < fair < 8.0 < little
    assert audited(0, [0.0])[0] < 5.3


def test_noise_alone_shows_nothing() -> None:
    generator = numpy_generator(root(2))
    assert audit(generator.normal(size=1000), generator.random(1000) < 0.5, DELTA).epsilon == 0.0
