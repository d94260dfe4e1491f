"""Membership: the attacks against hand computations, against each other, and against the project's
own trained models.
"""

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lexfed.audits.membership.lira import (
    MANY,
    Membership,
    confidence,
    dp_limit,
    label_matched,
    lira,
    loss_threshold,
    losses,
    report,
)
from lexfed.audits.membership.shadows import ShadowStudy
from lexfed.core.errors import DataError, PrivacyError
from lexfed.core.seeds import Seed, derive, root, torch_generator
from lexfed.metrics.leakage import auc, tpr_at


def normal(seed: Seed, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch_generator(seed), dtype=torch.float64)


# --- phi -----------------------------------------------------------------------------------------


def test_confidence_is_the_logit_of_the_true_label_s_probability() -> None:
    logits, labels = normal(root(0), 50, 4), torch.arange(50) % 4
    p = logits.softmax(1)[torch.arange(50), labels]
    assert torch.allclose(confidence(logits, labels), torch.log(p / (1 - p)))
    assert torch.allclose(losses(confidence(logits, labels)), -p.log())
    assert torch.equal(loss_threshold(losses(p)).argsort(), losses(p).argsort(descending=True))


def test_confidence_is_finite_where_the_probability_rounds_to_one() -> None:
    logits = torch.tensor([[90.0, -90.0], [-90.0, 90.0]])
    assert confidence(logits, torch.tensor([0, 0])).tolist() == [180.0, -180.0]
    assert float(logits.softmax(1)[0, 0]) == 1.0, "the pair: p / (1 - p) would be infinite"


# --- LiRA ----------------------------------------------------------------------------------------


def slow_lira(target: Tensor, shadow: Tensor, inside: Tensor, online: bool) -> list[float]:
    """Text by text, with Python's own normal distribution."""

    def fits(chosen: Tensor) -> list[NormalDist]:
        values = [shadow[chosen[:, i], i].tolist() for i in range(len(target))]
        means = [sum(v) / len(v) for v in values]
        squares = [sum((x - m) ** 2 for x in v) for v, m in zip(values, means, strict=True)]
        shared = sum(squares) / sum(len(v) - 1 for v in values)
        few = min(map(len, values)) < MANY // 2
        own = [
            q / (len(v) - 1) if len(v) > 1 else math.nan
            for q, v in zip(squares, values, strict=True)
        ]
        return [
            NormalDist(m, math.sqrt(shared if few else o)) for m, o in zip(means, own, strict=True)
        ]

    out, inn = fits(~inside), fits(inside)
    if not online:
        return [o.zscore(x) for o, x in zip(out, target.tolist(), strict=True)]
    return [
        math.log(i.pdf(x) / o.pdf(x)) for i, o, x in zip(inn, out, target.tolist(), strict=True)
    ]


@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("shadows", [6, 80])
def test_lira_is_what_gaussian_fits_by_hand_say(shadows: int, online: bool) -> None:
    seed = derive(root(1), shadows)
    inside = torch.stack(
        [
            torch.randperm(shadows, generator=torch_generator(derive(seed, i))) % 2 == 0
            for i in range(9)
        ],
        1,
    )
    shadow = normal(derive(seed, "shadow"), shadows, 9) + inside * 1.5 + torch.arange(9)
    target = normal(derive(seed, "target"), 9) + torch.arange(9)
    assert lira(target, shadow, inside, online).tolist() == pytest.approx(
        slow_lira(target, shadow, inside, online)
    )


def test_with_the_true_gaussians_lira_is_the_likelihood_ratio() -> None:
    """4,000 shadows: mu_in 2, mu_out 0, sigma 1, so log N(x|2,1) - log N(x|0,1) = 2x - 2, up to
    the fits' error of 0.15.
    """
    inside = (torch.arange(4000) % 2 == 0)[:, None].expand(4000, 5)
    shadow, x = (
        normal(root(2), 4000, 5) + 2.0 * inside,
        torch.tensor([-2.0, -1.0, 0.5, 1.0, 3.0], dtype=torch.float64),
    )
    assert lira(x, shadow, inside, online=True).tolist() == pytest.approx(
        (2 * x - 2).tolist(), abs=0.6
    )
    assert lira(x, shadow, inside, online=False).tolist() == pytest.approx(x.tolist(), abs=0.2)


def test_a_text_that_no_shadow_knows_is_refused_online_only() -> None:
    shadow, inside = normal(root(3), 6, 4), torch.ones(6, 4, dtype=torch.bool)
    inside[:3] = False
    inside[:, 0] = False
    with pytest.raises(DataError, match="train more"):
        lira(shadow[0], shadow, inside, online=True)
    assert len(lira(shadow[0], shadow, inside, online=False)) == 4
    with pytest.raises(DataError, match="of every text"):
        lira(shadow[0, :3], shadow, inside, online=True)


def population(difficulty: float, gain: float, number: int) -> tuple[ShadowStudy, Tensor]:
    """Ten models on 4,000 texts: phi is a text's own ease, a gain if it was trained on, and the
    model's chance.
    """
    seed = derive(root(4), number)
    heads = torch.rand(5, 4000, generator=torch_generator(derive(seed, "coins"))) < 0.5
    inside = torch.stack([heads, ~heads], 1).flatten(0, 1)
    ease = difficulty * normal(derive(seed, "ease"), 4000)
    phi = ease + gain * inside + normal(derive(seed, "chance"), 10, 4000)
    return ShadowStudy(phi, inside, torch.arange(4000) % 2, torch.ones(10), 0.5, None, None), phi


def both_attacks(study: ShadowStudy) -> tuple[Membership, Membership]:
    threshold = loss_threshold(losses(study.phi))
    likelihood = torch.stack(
        [study.attack(target, online=True) for target in range(len(study.phi))]
    )
    return tuple(
        report(s, study.inside, 1.0, root(5), resamples=30) for s in (threshold, likelihood)
    )  # type: ignore[return-value]


def test_lira_beats_the_threshold_where_texts_differ_in_difficulty_and_only_there() -> None:
    hard, equal = (population(difficulty, 1.5, 0)[0] for difficulty in (3.0, 0.0))
    threshold, likelihood = both_attacks(hard)
    assert likelihood.tpr_at_1pct is not None
    assert threshold.tpr_at_1pct is not None
    assert likelihood.tpr_at_1pct > 3 * threshold.tpr_at_1pct
    assert likelihood.intervals["tpr_at_1pct"][0] > threshold.intervals["tpr_at_1pct"][1]
    assert likelihood.auc > threshold.auc + 0.1
    threshold, likelihood = both_attacks(equal)
    assert likelihood.auc < threshold.auc, (
        "the pair: with nothing to calibrate, fits cost and bring nothing"
    )
    assert threshold.auc == pytest.approx(NormalDist().cdf(1.5 / math.sqrt(2)), abs=0.01)


def test_nothing_is_found_where_training_leaves_no_trace() -> None:
    for found in both_attacks(population(3.0, 0.0, 1)[0]):
        assert found.auc == pytest.approx(0.5, abs=4 * math.sqrt(1 / (12 * 2000) * 2 / 10))
        assert found.tpr_at_1pct == pytest.approx(0.01, abs=0.004)


# --- what DP allows ------------------------------------------------------------------------------

probability = st.floats(0, 1)


@given(fpr=probability, delta=probability, epsilon=st.floats(0, 1000))
def test_the_limit_s_identities(fpr: float, delta: float, epsilon: float) -> None:
    assert dp_limit(0.0, delta, fpr) == pytest.approx(min(1.0, fpr + delta))
    limit = dp_limit(epsilon, delta, fpr)
    assert min(1.0, fpr + delta) - 1e-9 <= limit <= 1.0
    assert limit <= dp_limit(epsilon + 0.5, delta, fpr) + 1e-12
    # accusing whom one did not accuse: the same test from the other side; e^12 leaves ten digits of
    # it
    assert epsilon > 12 or dp_limit(epsilon, delta, 1 - limit) >= 1 - fpr - 1e-9


def test_the_limit_is_met_by_randomised_response_and_held_by_the_gaussian() -> None:
    assert dp_limit(1.0, 0.0, 1 / (1 + math.e)) == pytest.approx(math.e / (1 + math.e))
    assert dp_limit(math.inf, 0.0, 0.01) == pytest.approx(1.0)
    # a Gaussian of sigma 1 is (epsilon, delta) with delta = Phi(1/2 - epsilon) - e^epsilon Phi(-1/2
    # - epsilon)
    phi, epsilon = NormalDist(), 1.0
    delta = phi.cdf(0.5 - epsilon) - math.exp(epsilon) * phi.cdf(-0.5 - epsilon)
    powers = {fpr: phi.cdf(1 + phi.inv_cdf(fpr)) for fpr in (0.001, 0.01, 0.1, 0.3, 0.6)}
    assert all(tpr <= dp_limit(epsilon, delta, fpr) for fpr, tpr in powers.items())
    assert any(tpr > dp_limit(epsilon / 2, delta, fpr) for fpr, tpr in powers.items()), (
        "the pair: half the epsilon is a lie"
    )


def test_what_is_no_probability_has_no_limit() -> None:
    for epsilon, delta, fpr in [
        (-1.0, 0.0, 0.1),
        (1.0, 1.1, 0.1),
        (1.0, 0.0, -0.1),
        (math.nan, 0.0, 0.1),
    ]:
        with pytest.raises(PrivacyError, match="can't be meant"):
            dp_limit(epsilon, delta, fpr)


# --- matching and reporting ----------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
)
def test_matched_labels_are_the_same_on_both_sides(ours: list[int], theirs: list[int]) -> None:
    one, two = torch.tensor(ours), torch.tensor(theirs)
    if not set(ours) & set(theirs):
        with pytest.raises(DataError, match="in common"):
            label_matched(one, two, root(0))
        return
    members, others = label_matched(one, two, root(0))
    assert one[members].sort().values.tolist() == two[others].sort().values.tolist()
    assert (
        len(members.unique())
        == len(members)
        == sum(min(ours.count(c), theirs.count(c)) for c in range(4))
    )
    assert len(others.unique()) == len(others)


def test_matching_is_by_chance_and_takes_away_what_labels_alone_tell() -> None:
    generator = torch_generator(root(6))
    one, two = ((torch.rand(4000, generator=generator) < share).long() for share in (0.9, 0.5))
    members, others = label_matched(one, two, root(6))
    assert auc(one.double(), two.double()) > 0.65, "the pair: unmatched, a label is a score"
    assert auc(one[members].double(), two[others].double()) == 0.5
    again = label_matched(one, two, root(7))
    assert torch.equal(label_matched(one, two, root(6))[1], others)
    assert not torch.equal(again[1], others)


def test_a_report_is_made_of_the_rates_and_counts_what_counts() -> None:
    scores, inside = normal(root(8), 2, 2400), torch.arange(2400).expand(2, -1) % 2 == 0
    scores = scores + inside
    found = report(scores, inside, 0.7, root(0), resamples=20)
    sides = [(s[m], s[~m]) for s, m in zip(scores, inside, strict=True)]
    rates = [rate for side in sides if (rate := tpr_at(0.01, *side)) is not None]
    assert found.auc == pytest.approx(np.mean([auc(*side) for side in sides]))
    assert found.tpr_at_1pct == pytest.approx(np.mean(rates))
    assert (found.tpr_at_01pct, set(found.intervals)) == (None, {"auc", "tpr_at_1pct"}), (
        "0.1 % needs 10,000 others"
    )
    assert (found.members, found.others, found.targets, found.accuracy) == (2400, 2400, 2, 0.7)
    half = report(
        scores[0], inside[0], 0.7, root(0), counted=torch.arange(2400) < 1200, resamples=20
    )
    assert half.auc == auc(scores[0, :1200][inside[0, :1200]], scores[0, :1200][~inside[0, :1200]])
    assert (half.members, half.others, half.tpr_at_1pct) == (600, 600, None)


def test_a_report_without_members_or_with_no_number_is_refused() -> None:
    with pytest.raises(DataError, match="members and others"):
        report(torch.zeros(5), torch.ones(5, dtype=torch.bool), 0.5, root(0))
    with pytest.raises(DataError, match="finite"):
        report(torch.tensor([0.0, math.nan]), torch.tensor([True, False]), 0.5, root(0))
    with pytest.raises(DataError, match="finite"):
        report(torch.zeros(3), torch.tensor([True, False]), 0.5, root(0))


def test_the_bootstrap_covers() -> None:
    """Normals 1 apart: AUC 0.760, TPR at 1 % 0.092. Of 30 intervals at 95 %, fewer than 25 has
    a chance below 2 %.
    """
    inside, truth = torch.arange(2400) % 2 == 0, {"auc": 0.7602, "tpr_at_1pct": 0.0924}
    right, wrong = dict.fromkeys(truth, 0), dict.fromkeys(truth, 0)
    for number in range(30):
        found = report(
            normal(derive(root(9), number), 2400) + inside,
            inside,
            1.0,
            derive(root(10), number),
            resamples=80,
        )
        for name, (low, high) in found.intervals.items():
            right[name] += low < truth[name] < high
            wrong[name] += low < truth[name] + 0.06 < high
    assert min(right.values()) >= 25
    assert max(wrong.values()) < 8, "the pair: a wrong value is outside"


def test_a_target_s_complement_is_not_among_its_shadows() -> None:
    study, _ = population(1.0, 1.0, 2)
    moved = study.phi.clone()
    moved[1] += 100
    assert torch.equal(
        replace(study, phi=moved).attack(0, online=True), study.attack(0, online=True)
    )
    assert not torch.equal(
        replace(study, phi=moved).attack(2, online=True), study.attack(2, online=True)
    ), "the pair"
