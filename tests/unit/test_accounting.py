"""Epsilons against dp_accounting from scratch; the word selection against its definition, by
arithmetic and by chance.
"""

import json
import math
from dataclasses import replace
from itertools import pairwise
from statistics import NormalDist

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld, rdp

from lexfed.core.errors import PrivacyError
from lexfed.core.seeds import derive, root
from lexfed.privacy.accounting import (
    Gaussian,
    Ledger,
    Release,
    SampledGaussian,
    charge,
    epsilon,
    from_json,
    to_json,
)
from lexfed.privacy.set_union import Pass, charged, passes, release, threshold


def rounds(number: int, noise: float = 1.0, probability: float = 0.01) -> Ledger:
    ledger: Ledger = ()
    for _ in range(number):
        ledger = charge(ledger, Release("user", SampledGaussian(noise, probability)))
    return ledger


def test_the_same_release_again_only_counts() -> None:
    other = Release("document", Gaussian(2.0))
    ledger = charge(charge(rounds(5000), Release("user", Gaussian(2.0))), other)
    assert [(r.unit, r.count) for r in ledger] == [("user", 5000), ("user", 1), ("document", 1)]
    assert len(charge(ledger, replace(other, delta=1e-9))) == 4, "another delta is another release"


def test_five_thousand_rounds_cost_what_dp_accounting_says() -> None:
    scratch = pld.PLDAccountant()
    scratch.compose(
        dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0)), 5000
    )
    ours = epsilon(rounds(5000), "user", 1e-6)
    assert ours == scratch.get_epsilon(1e-6)
    looser = epsilon(rounds(5000), "user", 1e-6, accountant="rdp")
    other = rdp.RdpAccountant()
    other.compose(
        dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0)), 5000
    )
    assert looser == other.get_epsilon(1e-6) > ours


def test_composition() -> None:
    two, one = (
        (Release("user", Gaussian(2.0), 2),),
        (Release("user", Gaussian(2.0 / math.sqrt(2))),),
    )
    assert epsilon(two, "user", 1e-6) == pytest.approx(epsilon(one, "user", 1e-6), rel=1e-5)
    apart = (
        Release("user", Gaussian(2.0)),
        Release("document", Gaussian(0.5)),
        Release("user", Gaussian(2.0)),
    )
    assert epsilon(apart, "user", 1e-6) == pytest.approx(epsilon(two, "user", 1e-6), rel=1e-5), (
        "units are apart"
    )
    assert epsilon(two, "organisation", 1e-6) == epsilon((), "user", 1e-6) == 0.0
    assert epsilon(two, "user", 1e-5) < epsilon(two, "user", 1e-6)


def test_the_delta_of_releases_is_taken_off_first() -> None:
    with_delta = (Release("user", Gaussian(2.0), 3, delta=1e-7),)
    assert epsilon(with_delta, "user", 1e-6) == epsilon(
        (Release("user", Gaussian(2.0), 3),), "user", 1e-6 - 3e-7
    )
    assert epsilon(with_delta, "user", 3e-7) == math.inf


def test_a_ledger_survives_as_json() -> None:
    ledger = (
        Release("document", Gaussian(1.5), 3, 1e-9),
        Release("user", SampledGaussian(1.0, 0.01), 5000),
    )
    assert from_json(json.loads(json.dumps(to_json(ledger)))) == ledger


GOOD = {"unit": "user", "event": "gaussian", "noise": 1.0, "count": 1, "delta": 0.0}


@pytest.mark.parametrize(
    "change",
    [
        {"event": "laplace"},
        {"event": "cos\nsystem"},
        {"unit": "world"},
        {"count": 0},
        {"count": 1.5},
        {"delta": 1.0},
        {"noise": 0.0},
        {"noise": "much"},
        {"probability": 0.1},
        {"event": "sampled_gaussian", "probability": 2.0},
    ],
)
def test_what_is_not_known_is_refused_not_left_out(change: dict[str, object]) -> None:
    assert len(from_json([GOOD])) == 1
    with pytest.raises(PrivacyError, match="can't be read"):
        from_json([GOOD | change])


def test_no_noise_has_no_epsilon() -> None:
    with pytest.raises(PrivacyError, match="without noise"):
        Gaussian(0.0)


# --- DP-SIPS -------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon_", [0.1, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-3])
def test_the_passes_cost_what_was_asked_for(epsilon_: float, delta: float) -> None:
    steps = passes(epsilon_, delta, 100)
    assert len(steps) == 3
    assert all(one.sigma == pytest.approx(2 * two.sigma) for one, two in pairwise(steps)), "growing"
    assert sum(step.delta for step in steps) == pytest.approx(delta / 2)
    scratch = pld.PLDAccountant()
    for step in steps:
        scratch.compose(dp_accounting.GaussianDpEvent(step.sigma))
    ours = epsilon(charged((), steps), "document", delta)
    assert ours == pytest.approx(scratch.get_epsilon(delta / 2), rel=1e-9)
    assert 0.999 * epsilon_ < ours <= epsilon_


@pytest.mark.parametrize(
    ("sigma", "delta", "words"), [(1.0, 1e-6, 100), (5.0, 1e-9, 1), (0.1, 0.05, 30)]
)
def test_the_threshold_is_the_least_that_holds_for_every_document(
    sigma: float, delta: float, words: int
) -> None:
    rho = threshold(sigma, delta, words)
    noise = NormalDist(0.0, sigma)

    def any_released(t: int) -> float:  # of t words that this document alone holds
        return -math.expm1(t * math.log1p(-noise.cdf(-(rho - 1 / math.sqrt(t)))))

    chances = [any_released(t) for t in range(1, words + 1)]
    assert max(chances) == pytest.approx(delta, rel=1e-6)


def test_noise_has_the_variance_it_is_charged_for() -> None:
    weights = {i.to_bytes(4): 0.0 for i in range(20_000)}
    noisy = np.array(list(release(weights, Pass(3.0, -math.inf, 0.0), root(0)).values()))
    assert len(noisy) == len(weights), "on every word that somebody sent"
    assert noisy.std() == pytest.approx(3.0, rel=0.02)
    assert abs(noisy.mean()) < 0.1
    again = np.array(list(release(weights, Pass(3.0, -math.inf, 0.0), root(1)).values()))
    assert abs(np.corrcoef(noisy, again)[0, 1]) < 0.05, "another pass, other noise"


@pytest.mark.parametrize("words", [1, 5])
def test_words_of_one_document_come_no_more_often_than_delta_allows(words: int) -> None:
    delta, tries = 0.05, 20_000
    step = Pass(1.0, threshold(1.0, delta, words), delta)
    lone = {i.to_bytes(1): 1 / math.sqrt(words) for i in range(words)}
    released = sum(bool(release(lone, step, derive(root(0), n))) for n in range(tries))
    spread = math.sqrt(delta * (1 - delta) / tries)
    assert released / tries <= delta + 3 * spread
    common = dict.fromkeys(lone, 50.0)
    assert len(release(common, step, root(0))) == words, (
        "the pair: what many documents hold is told"
    )
