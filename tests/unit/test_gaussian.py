"""User-level differential privacy, as statistics: what the mechanism does, not what it says it
does.
"""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from lexfed.core.errors import BudgetSpent, ConfigError
from lexfed.core.params import Params
from lexfed.core.seeds import derive, root
from lexfed.federation import Federation, Requests, Rounds, ServerState, paid_by, plain
from lexfed.federation.sampling import Everyone, Poisson
from lexfed.federation.server_optimizer import ServerOptimizer
from lexfed.learning.parts import loop
from lexfed.learning.training_verbs import TRAIN
from lexfed.privacy import accounting
from lexfed.privacy.accounting import Gaussian, Ledger, Pure, Release, SampledGaussian
from lexfed.privacy.gaussian import ASKED, CLIP, GaussianMechanism, Privacy, norm
from lexfed.privacy.mechanism import Asked
from lexfed.privacy.promise import build
from lexfed.wire import ClientId, Message, Verb, below, echoing, pack

MODEL = {"w": torch.zeros(200, 100), "b": torch.zeros(100)}  # 20,100 numbers
ASK = Asked(range(10), 10.0, 1000, MODEL)
CENTRAL = Privacy(placement="central", clip=0.5, noise=1.2)


def told(mechanism: GaussianMechanism, state: Params | None = None) -> Message:
    return Message(meta=dict(mechanism.tell(state or {})))


def update(length: float, seed: int = 0) -> Params:
    generator = torch.Generator().manual_seed(seed)
    raw = {name: torch.randn(value.shape, generator=generator) for name, value in MODEL.items()}
    return {name: value * (length / norm(raw)) for name, value in raw.items()}


def sent(mechanism: GaussianMechanism, delta: Params) -> Message:
    return Message(pack(mechanism.bound(delta, 17, 0.3, told(mechanism), root(1))))


# --- the client's half


@pytest.mark.parametrize("length", [0.01, 0.49, 0.5, 3.0, 1e12])
def test_what_leaves_is_never_longer_than_the_clip(length: float) -> None:
    reply = sent(GaussianMechanism(CENTRAL, 1), update(length))
    assert norm(below("delta", reply.arrays)) == pytest.approx(min(length, 0.5), rel=1e-5)


def test_nothing_but_the_clipped_update_leaves() -> None:
    assert set(sent(GaussianMechanism(CENTRAL, 1), update(1.0)).arrays) == {"delta/w", "delta/b"}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_client_whose_training_exploded_sends_zeros(bad: float) -> None:
    broken = {**update(1.0), "b": torch.full((100,), bad)}
    assert norm(below("delta", sent(GaussianMechanism(CENTRAL, 1), broken).arrays)) == 0


# --- the server's half, with clients that lie


def honest(mechanism: GaussianMechanism, lengths: dict[ClientId, float]) -> Federation:
    def ask(verb: Verb, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        for client, request in requests.items():
            reply = sent(mechanism, update(lengths.get(client, 1.0), client))
            yield client, echoing(request, reply)

    return Federation(range(1000), ask, plain(ask))


ATTACKS = {
    "a huge update": {"delta/w": torch.full((200, 100), 1e6), "delta/b": torch.zeros(100)},
    "a little too long": {f"delta/{name}": value for name, value in update(0.5005).items()},
    "no number": {"delta/w": torch.full((200, 100), math.nan), "delta/b": torch.zeros(100)},
    "infinite": {"delta/w": torch.full((200, 100), math.inf), "delta/b": torch.zeros(100)},
    "another shape": {"delta/w": torch.zeros(100, 200), "delta/b": torch.zeros(100)},
    "a weight": {"delta/w": torch.zeros(200, 100), "delta/b": torch.zeros(100), "weight": torch.tensor(1e9)},
    "a parameter more": {"delta/w": torch.zeros(200, 100), "delta/b": torch.zeros(100), "delta/x": torch.ones(1)},
    "a bit that is none": {"delta/w": torch.zeros(200, 100), "delta/b": torch.zeros(100), "unclipped": torch.tensor(1e9)},
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_adversarial_client_moves_the_sum_by_the_clip_at_most(attack: str) -> None:
    mechanism = GaussianMechanism(CENTRAL, 1)
    good = honest(mechanism, {})

    def ask(verb: Verb, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        for client, reply in good.ask(verb, requests):
            yield client, Message(ATTACKS[attack]) if client == 3 else reply

    requests = dict.fromkeys(
        range(10), Message({f"model/{n}": v for n, v in MODEL.items()}, dict(mechanism.tell({})))
    )
    without = plain(good.ask)(TRAIN, {c: m for c, m in requests.items() if c != 3}).update
    with_attacker = plain(ask)(TRAIN, requests)
    moved = {name: with_attacker.update[name] - value for name, value in without.items()}  # type: ignore[operator]
    assert norm(moved) <= 0.5 * (1 + 1e-4)  # type: ignore[arg-type]
    assert with_attacker.clients == 9, "it counts as dropped out"


def test_removing_a_user_changes_the_sum_by_the_clip_at_most() -> None:
    mechanism = GaussianMechanism(CENTRAL, 1)
    federation = honest(mechanism, {client: 10.0 ** (client - 5) for client in range(10)})
    requests = dict.fromkeys(
        range(10), Message({f"model/{n}": v for n, v in MODEL.items()}, dict(mechanism.tell({})))
    )
    everybody = federation.total(TRAIN, requests).update
    for gone in range(10):
        rest = federation.total(TRAIN, {c: m for c, m in requests.items() if c != gone}).update
        assert norm({n: everybody[n] - rest[n] for n in rest}) <= 0.5 + 1e-5  # type: ignore[operator,misc]


def test_noise_has_the_deviation_it_should_and_the_sum_is_divided_by_the_expected_cohort() -> None:
    mechanism = GaussianMechanism(CENTRAL, 1)
    total = {f"delta/{name}": torch.full(value.shape, 3.0) for name, value in MODEL.items()}
    released, _ = mechanism.release(total, ASK, {}, root(0))
    numbers = torch.cat([value.flatten() for value in released.values()])  # type: ignore[union-attr]
    deviation = 1.2 * 0.5 / 10
    assert numbers.mean().item() == pytest.approx(3.0 / 10, abs=4 * deviation / len(numbers) ** 0.5)
    assert numbers.std().item() == pytest.approx(deviation, rel=4 / (2 * len(numbers)) ** 0.5)
    other, _ = mechanism.release(total, ASK, {}, root(1))
    assert not torch.equal(other["w"], released["w"])  # type: ignore[arg-type]


def test_an_empty_cohort_releases_noise_and_is_paid_for() -> None:
    mechanism = GaussianMechanism(CENTRAL, 1)
    nobody = Federation(
        range(1000), lambda verb, requests: iter(()), plain(lambda verb, requests: iter(()))
    )
    rounds = Rounds(Poisson(10), mechanism, ServerOptimizer(), TRAIN, pay=paid_by(mechanism))
    (state,) = rounds(nobody, ServerState(params=MODEL), until=1, seed=root(0))
    assert state.params["w"].std().item() == pytest.approx(0.06, rel=0.05)
    assert [(r.event, r.count) for r in state.ledger] == [(SampledGaussian(1.2, 0.01), 1)]


def test_everyone_is_no_sampling() -> None:
    mechanism = GaussianMechanism(CENTRAL, 1)
    ledger, _ = mechanism.charge((), replace(ASK, expected=1000.0), {})
    assert [release.event for release in ledger] == [Gaussian(1.2)]


def test_poisson_cohorts_have_the_binomial_law() -> None:
    sizes = torch.tensor(
        [len(Poisson(10).sample(range(1000), derive(root(0), i))) for i in range(4000)]
    ).double()
    variance = 1000 * 0.01 * 0.99
    assert sizes.mean().item() == pytest.approx(10, abs=4 * (variance / 4000) ** 0.5)
    assert sizes.var().item() == pytest.approx(variance, rel=4 * (2 / 4000) ** 0.5)
    assert sizes.min() < 4, "cohorts are small at times"
    assert sizes.max() > 18


# --- adaptive clipping


def test_the_clip_follows_the_quantile() -> None:
    """Half of the users have updates of length 0.2, half of 2: the clip should end between,
    where half are not clipped.
    """
    options = replace(CENTRAL, noise=0.5, quantile=0.5, clip=10.0, clip_lr=0.5)
    mechanism, state = GaussianMechanism(options, 100), Params
    state, clips = {}, []
    for step in range(60):
        message = told(mechanism, state)
        bits = [
            float(
                mechanism.bound(update(0.2 if c % 2 else 2.0, c), 1, 0.0, message, b"")["unclipped"]
            )
            for c in range(40)
        ]  # type: ignore[arg-type]
        total = {"unclipped": torch.tensor(sum(bits))}
        _, state = mechanism.release(
            total, Asked(range(40), 40.0, 1000, {"b": MODEL["b"]}), state, derive(root(0), step)
        )
        clips.append(float(state[CLIP]))
    assert 0.2 <= sum(clips[-20:]) / 20 <= 2.0
    assert clips[0] == pytest.approx(10 * math.exp(-0.5 * 0.5), rel=0.1), (
        "all are below 10: the clip shrinks"
    )


def test_noise_is_shared_out_between_update_and_bit() -> None:
    """z^-2 = z_delta^-2 + (2 sigma_b)^-2: the two together cost what z says."""
    mechanism = GaussianMechanism(replace(CENTRAL, quantile=0.5), 1)
    asked = replace(ASK, expected=100.0)
    z_delta, sigma_b = mechanism._deviation(asked), mechanism._bit_noise(asked)
    assert sigma_b == 5
    assert z_delta > 1.2
    assert z_delta**-2 + (2 * sigma_b) ** -2 == pytest.approx(1.2**-2)
    with pytest.raises(ConfigError, match="too small for adaptive"):
        mechanism._deviation(ASK)


# --- what it costs


def test_the_ledger_is_what_dp_accounting_makes_of_the_same_events() -> None:
    import dp_accounting
    from dp_accounting import pld

    mechanism, ledger = GaussianMechanism(CENTRAL, 1), ()
    for _ in range(50):
        ledger, _ = mechanism.charge(ledger, ASK, {})  # type: ignore[assignment]
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(
        dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.2)), 50
    )
    assert accounting.epsilon(ledger, "user", 1e-6) == accountant.get_epsilon(1e-6)


def test_a_small_cohort_carries_the_noise_of_a_large_one_and_both_costs_are_told() -> None:
    options = replace(CENTRAL, noise_cohort=1000.0, population=100_000)
    mechanism, _, promise = build(options, 10, "poisson")
    assert isinstance(mechanism, GaussianMechanism)
    assert promise is not None
    released, _ = mechanism.release({}, ASK, {}, root(0))
    assert released["w"].std().item() == pytest.approx(1.2 * 0.5 / 1000, rel=0.05)  # type: ignore[union-attr]
    ledger, _ = mechanism.charge((), ASK, {})
    assert [r.event for r in ledger] == [SampledGaussian(1.2 * 10 / 1000, 0.01)], (
        "what this run really adds"
    )
    assert [r.event for r in mechanism.deployment(ledger)] == [SampledGaussian(1.2, 0.01)]
    here, there = promise.epsilons(ledger)
    assert there is not None
    assert here is None or here > 100 * there
    words = promise.statement(ledger).sentence
    for part in (
        "unit: a user",
        "added or removed",
        "server is trusted",
        "cohort staying secret",
        "100,000 users",
    ):
        assert part in words


def test_training_stops_before_the_budget_is_overdrawn() -> None:
    mechanism = GaussianMechanism(replace(CENTRAL, noise=1.0, epsilon=3.0, accountant="rdp"), 1)
    ledger = ()
    with suppress(BudgetSpent):
        while True:
            ledger, _ = mechanism.charge(ledger, ASK, {})  # type: ignore[assignment]
    with pytest.raises(BudgetSpent, match="epsilon of 3"):
        mechanism.charge(ledger, ASK, {})
    assert accounting.epsilon(ledger, "user", 1e-6, "rdp") <= 3.0
    more = accounting.charge(ledger, replace(ledger[-1], count=1))  # type: ignore[index]
    assert accounting.epsilon(more, "user", 1e-6, "rdp") > 3.0


def test_noise_is_found_for_an_epsilon() -> None:
    options = Privacy(placement="central", epsilon=3.0, accountant="rdp")
    mechanism, ledger = GaussianMechanism(options, 20), ()
    for _ in range(20):
        ledger, _ = mechanism.charge(ledger, ASK, {})  # type: ignore[assignment]
    assert 2.9 < accounting.epsilon(ledger, "user", 1e-6, "rdp") <= 3.0


def test_two_halves_of_users_pay_for_their_own_half() -> None:
    mechanism, ledger = GaussianMechanism(CENTRAL, 1), ()
    for group in ("half 1", "half 1", "half 2"):
        ledger, _ = mechanism.of(group).charge(ledger, ASK, {})  # type: ignore[assignment]
    alone = (Release("user", SampledGaussian(1.2, 0.01), 2),)
    assert accounting.epsilon(ledger, "user", 1e-6) == accounting.epsilon(alone, "user", 1e-6)
    assert accounting.from_json(accounting.to_json(ledger)) == ledger


def test_words_that_users_randomise_themselves_have_a_budget_of_their_own() -> None:
    options = replace(
        CENTRAL, noise=1.0, epsilon=3.0, accountant="rdp", noise_cohort=20.0, population=2000
    )
    mechanism = GaussianMechanism(options, 1).of("half 2")
    sketch = (Release("user", Pure(24.0), group="half 1"),)
    ledger, _ = mechanism.charge(sketch, ASK, {})
    assert ledger[0] == sketch[0], "it stays what it was"
    assert mechanism.deployment(ledger)[0] == sketch[0]
    assert accounting.epsilon(mechanism.deployment(ledger), "user", 1e-6, "rdp") == 24.0, (
        "and is what its half paid"
    )


# --- local noise


def test_local_noise_is_added_by_the_client_and_charged_to_who_was_asked_most() -> None:
    mechanism, account, promise = build(replace(CENTRAL, placement="local"), 10, "fixed")
    assert isinstance(mechanism, GaussianMechanism)
    assert promise is not None
    reply = sent(mechanism, update(1.0))
    noise = reply.arrays["delta/w"] - update(0.5)["w"]
    assert noise.std().item() == pytest.approx(1.2 * 0.5, rel=0.03)
    ledger, state = (), {}
    for cohort in ([0, 1], [2, 3], [1, 4], [0, 2]):
        asked = Asked(cohort, 2.0, 5, MODEL)
        ledger, state = account.charge(ledger, asked, state)  # type: ignore[assignment]
        _, state = mechanism.release({}, asked, state, root(0))  # type: ignore[assignment]
    assert state[f"{ASKED}/0.6"].tolist() == [2, 2, 2, 1, 1]  # type: ignore[index]
    assert [(r.event, r.count) for r in ledger] == [(Gaussian(0.6), 2)], (  # type: ignore[attr-defined]
        "nobody was asked three times; any two updates are 2 clips apart"
    )
    assert "the server included" in promise.statement(ledger).sentence


def test_local_noise_of_users_in_two_groups_is_paid_by_each_group() -> None:
    """The second half of the users: ids beyond the size of their group, and counts of their own."""
    mechanism, account, _ = build(replace(CENTRAL, placement="local"), 10, "fixed")
    ledger: Ledger = ()
    state: Params = {}
    for group, cohort in (
        ("half 1", [0, 1]),
        ("half 1", [0, 1]),
        ("half 2", [5, 9]),
        ("half 2", []),
        ("half 2", [6, 7]),
    ):
        asked = Asked(cohort, 2.0, 5, MODEL)
        ledger, state = account.of(group).charge(ledger, asked, state)
        _, state = mechanism.release({}, asked, state, root(0))
    assert state[f"{ASKED}/0.6"].tolist() == [2, 2, 0, 0, 0, 1, 1, 1, 0, 1]
    assert [(release.group, release.count) for release in ledger] == [("half 1", 2), ("half 2", 1)]


# --- in deployment


def test_fresh_noise_is_paid_for_before_it_is_released() -> None:
    mechanism = GaussianMechanism(CENTRAL, 1, fresh=True)
    rounds = loop(Everyone(), mechanism, ServerOptimizer(), mechanism)
    federation = replace(honest(mechanism, {}), clients=range(4))
    steps = list(rounds(federation, ServerState(params=MODEL), until=1, seed=root(0)))
    assert [(s.round, len(s.ledger)) for s in steps] == [(0, 1), (1, 1)], (
        "kept with its charge, then with its release"
    )
    assert torch.equal(steps[0].params["w"], MODEL["w"]), "nothing was released when it was charged"
    again = list(rounds(federation, steps[0], until=1, seed=root(0)))
    assert again[-1].ledger[0].count == 2, "a repeated round pays again"
    assert not torch.equal(again[-1].params["w"], steps[-1].params["w"]), "and draws new noise"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"placement": "central"}, "privacy.epsilon"),
        ({"placement": "central", "noise": 1.0, "noise_cohort": 10.0}, "set both or none"),
        ({"placement": "local", "noise": 1.0, "quantile": 0.5}, "central"),
        ({"placement": "central", "noise": -1.0}, "at least 0"),
        ({"placement": "central", "epsilon": 1.0, "delta": 0.0}, "delta"),
    ],
)
def test_settings_that_mean_nothing(options: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        Privacy(**options)  # type: ignore[arg-type]


def test_a_fixed_cohort_is_refused() -> None:
    with pytest.raises(ConfigError, match="poisson"):
        build(CENTRAL, 1, "fixed")
