"""Noise in shares: how much of it is in an opened sum, what it costs, and whom a client trusts."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.signal import fftconvolve
from scipy.stats import norm as normal

from lexfed.core.errors import ConfigError, NotAgreedError, PrivacyError
from lexfed.core.params import Params
from lexfed.core.seeds import derive, fresh, root
from lexfed.corpus.population import Client
from lexfed.federation import Answer, ClientState, Replies, Requests, ServerState, Sum, gated
from lexfed.federation.sampling import Everyone, FixedSize, Poisson
from lexfed.federation.server_optimizer import ServerOptimizer
from lexfed.federation.sums import Federation
from lexfed.learning.parts import loop
from lexfed.learning.training_verbs import TRAIN
from lexfed.privacy import accounting, noise
from lexfed.privacy.accounting import Gaussian, Ledger, Release, SummedGaussian
from lexfed.privacy.distributed import TAIL, DistributedGaussian, shares
from lexfed.privacy.gaussian import GaussianMechanism, Privacy, norm
from lexfed.privacy.mechanism import Asked
from lexfed.privacy.planning import Plan, central, distributed, local
from lexfed.privacy.promise import Promise, build
from lexfed.secure import ring
from lexfed.secure.member import Member, securing
from lexfed.secure.secure_options import Secure
from lexfed.secure.secure_sum import NOT_OPENED, secured
from lexfed.secure.secure_verbs import REFUSALS, exchanges
from lexfed.secure.sessions import Sessions
from lexfed.wire import ClientId, Message, Verb, echoing, pack
from lexfed.wire.verbs import COHORT
from tests.conftest import Lexfed
from tests.property.test_secure_sums import client, pinned
from tests.unit.test_promises import PUBLIC, sets, summary_of

CLIP, Z = 0.5, 1.0
KEYS, _, MASKED, OPEN = exchanges(TRAIN)

SECURE = Secure(sums=True)
DISTRIBUTED = ("privacy.placement=distributed", "secure.sums=true", "privacy.noise=2.0")


def built(
    clients: int,
    z: float = Z,
    fresh: bool = False,
    options: Secure = SECURE,
    sampling: Any = "everyone",
    size: int = 3,
    **privacy: Any,
) -> tuple[DistributedGaussian, Promise]:
    mechanism, _, promise = build(
        Privacy(placement="distributed", clip=CLIP, noise=z, **privacy), 5, sampling,
        "system" if fresh else "seed", 1, lambda: shares(options, sampling, size, clients),
    )  # fmt: skip
    assert isinstance(mechanism, DistributedGaussian)
    assert promise is not None
    return mechanism, promise


@dataclass
class Room:
    """Clients with an update each, and a wire that drops who is told to leave."""

    folder: Path
    mechanism: DistributedGaussian
    deltas: dict[ClientId, Params]
    options: Secure = SECURE
    leaves: dict[ClientId, Verb] = field(default_factory=dict)
    silent: Sequence[ClientId] = ()  # colluders: the server knows their noise, so they add none
    down: Callable[[Verb, Message], Message] = lambda verb, message: message

    def train(self, message: Message, one: Client, state: ClientState) -> Answer:
        seed = derive(one.secret, int(message.meta["step"]))
        update = self.mechanism.bound(self.deltas[one.id], 1, 0.0, message, seed)
        if one.id in self.silent:
            quiet = noise.in_steps(self.deltas[one.id], self.mechanism.grid)
            update = {f"delta/{name}": value for name, value in quiet.items()}
        return Message(pack(update)), state

    @property
    def federation(self) -> Federation:
        member = Member(
            self.options, Sessions(self.folder), lambda one: derive(one.secret, "identity"), pinned
        )
        handlers = securing({TRAIN: self.train}, member)

        def ask(verb: Verb, requests: Requests) -> Replies:
            for number, request in requests.items():
                if self.leaves.get(number) is verb:
                    continue
                message = self.down(verb, request)
                reply, _ = handlers[verb](message, client(number), ClientState())
                if reply is not None:
                    yield number, echoing(message, reply)

        def never(verb: Verb, requests: Requests) -> Sum:
            raise AssertionError("a plain sum")

        return secured(gated(Federation(list(self.deltas), ask, never)), self.options, pinned)

    def total(self, step: int = 1, **told: float) -> Sum:
        model = {
            f"model/{n}": torch.zeros_like(v) for n, v in next(iter(self.deltas.values())).items()
        }
        meta = {"step": step, "ask": 0, "round": 0, **self.mechanism.tell({}), **told}
        return self.federation.total(TRAIN, dict.fromkeys(self.deltas, Message(model, meta)))


def steps(total: Sum) -> torch.Tensor:
    value = total.update["delta/w"]
    assert isinstance(value, torch.Tensor)
    assert value.dtype == torch.int64
    return value


def zeros(clients: int, size: int) -> dict[ClientId, Params]:
    return {number: {"w": torch.zeros(size)} for number in range(clients)}


# --- how much noise ------------------------------------------------------------------------------


@pytest.mark.parametrize("fresh", [False, True])
def test_with_drop_outs_and_colluders_the_noise_is_what_was_promised_and_without_more(
    fresh: bool, tmp_path: Path
) -> None:
    """Of ten seven must stay and one may collude: six shares are all of it. The variance of 20,000
    numbers is known to 1 %: five times that is tolerated.
    """
    size = 20_000
    mechanism, _ = built(10, fresh=fresh)
    assert (SECURE.stay(10), SECURE.collude(10)) == (7, 1)
    promised = (Z * CLIP) ** 2
    everybody = Room(tmp_path / "all", mechanism, zeros(10, size)).total()
    assert everybody.clients == 10
    variance = float((steps(everybody).double() * mechanism.grid).var())
    assert variance == pytest.approx(10 / 6 * promised, rel=0.05)
    few = Room(
        tmp_path / "few", mechanism, zeros(10, size), silent=[3],
        leaves={0: MASKED, 1: KEYS, 2: MASKED},
    )  # fmt: skip
    opened = few.total()
    assert opened.clients == 7
    variance = float((steps(opened).double() * mechanism.grid).var())
    assert variance == pytest.approx(promised, rel=0.05)
    central = GaussianMechanism(Privacy(placement="central", clip=CLIP, noise=Z), 5, fresh)
    asked = Asked(range(10), 10.0, 10, {"w": torch.zeros(size)})
    update, _ = central.release({}, asked, {}, root(0))
    value = update["w"]
    assert isinstance(value, torch.Tensor)
    assert float((value * 10).var()) == pytest.approx(variance, rel=0.1), "at equal noise"


def test_the_sum_is_the_clipped_updates_and_their_noise_to_the_last_step(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    deltas = {n: {"w": torch.randn(50, generator=generator)} for n in range(5)}
    mechanism, _ = built(5)
    room = Room(tmp_path, mechanism, deltas)
    message = Message(meta={"step": 1, **mechanism.tell({}), COHORT: 5})
    sent = [room.train(message, client(n), ClientState())[0] for n in range(5)]
    assert all(reply is not None for reply in sent)
    alone = sum(reply.arrays["delta/w"] for reply in sent if reply is not None)
    assert torch.equal(steps(room.total()), alone), "a simulation repeats to the bit"
    for delta in deltas.values():
        short = noise.in_steps(
            {"w": delta["w"].double() * min(1, CLIP / norm(delta))}, mechanism.grid
        )
        assert norm({"w": short["w"].double()}) <= CLIP / mechanism.grid
    again, _ = built(5, fresh=True)
    other = Room(tmp_path / "fresh", again, deltas)
    assert not torch.equal(steps(other.total(1)), steps(other.total(2))), "never the same again"


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("z", [0.2, 1.0, 30.0])
@pytest.mark.parametrize(("threshold", "colluding"), [(0.67, 0.1), (0.9, 0.3), (1.0, 0.0)])
def test_whatever_the_cohort_the_noise_is_enough_and_fits(
    bits: int, z: float, threshold: float, colluding: float
) -> None:
    options = Secure(sums=True, bits=bits, threshold=threshold, colluding=colluding, least=5)
    mechanism, _ = built(400, z, options=options, sampling="poisson", size=60)
    event = mechanism.planned(60.0, 400).event
    assert isinstance(event, SummedGaussian)
    message = Message({"model/w": torch.zeros(3)}, dict(mechanism.tell({})))
    for n in range(5, 401):
        honest = options.stay(n) - options.collude(n)
        share = mechanism.share(honest)
        assert honest * (share * mechanism.grid) ** 2 >= (z * CLIP) ** 2 * (1 - 1e-12)
        assert share >= event.steps
        (slot,) = (
            s for s in ring.layout(TRAIN, message, n, bits, 1.0).slots if s.name == "delta/w"
        )
        assert CLIP / mechanism.grid + TAIL * share <= slot.bound, "nothing is cut"
        assert n * slot.bound < 2 ** (bits - 1), "and nothing wraps"


def test_of_32_bits_the_sum_is_the_same(tmp_path: Path) -> None:
    """As much noise as fits: the same numbers, added in Python's own integers."""
    options = Secure(sums=True, bits=32)
    mechanism, _ = built(6, 300.0, options=options)
    assert mechanism.grid > noise.grid_of(CLIP), "coarser, so that it fits"
    deltas = {n: {"w": torch.full((40,), (-1.0) ** n)} for n in range(6)}
    room = Room(tmp_path, mechanism, deltas, options)
    message = Message(meta={"step": 1, **mechanism.tell({}), COHORT: 6})
    replies = [room.train(message, client(n), ClientState())[0] for n in range(6)]
    columns = zip(*(r.arrays["delta/w"].tolist() for r in replies if r is not None), strict=True)
    assert steps(room.total()).tolist() == [sum(column) for column in columns]


def test_bits_that_leave_no_room_are_refused() -> None:
    few = Secure(sums=True, bits=32)
    with pytest.raises(ConfigError, match=r"32 bits leave too few steps .* set secure.bits = 64"):
        built(20_000, 0.1, options=few)
    built(20_000, 0.1)


# --- what it costs -------------------------------------------------------------------------------

Chances = npt.NDArray[np.float64]


def discrete(sigma: float, reach: int) -> Chances:
    places = np.arange(-reach, reach + 1)
    weights = np.exp(-(places**2) / (2 * sigma**2))
    return np.asarray(weights / weights.sum())


def summed(parts: int, sigma: float, reach: int) -> Chances:
    """The law of a sum of discrete Gaussians, by adding up all ways."""
    one, total = discrete(sigma, reach), np.ones(1)
    for _ in range(parts):
        total = np.convolve(total, one)
    return total


@pytest.mark.parametrize(("parts", "sigma"), [(2, 1), (3, 1), (12, 1), (5, 2)])
def test_a_sum_of_discrete_gaussians_is_as_near_to_one_as_the_ledger_says(
    parts: int, sigma: int
) -> None:
    law = summed(parts, sigma, 12 * sigma)
    middle = len(law) // 2
    near = slice(middle - 6 * sigma, middle + 6 * sigma + 1)  # beyond, doubles are no chances
    one = discrete(math.sqrt(parts) * sigma, middle)
    apart = float(np.abs(np.log(law[near] / one[near])).max())
    event = SummedGaussian(math.sqrt(parts) * sigma, parts, sigma, numbers=1)
    exact = 10 * sum(math.exp(-2 * (math.pi * sigma) ** 2 * k / (k + 1)) for k in range(1, parts))
    assert apart <= exact + 1e-12
    assert exact <= event.apart
    assert replace(event, steps=4 * sigma).apart < 1e-50
    assert replace(event, numbers=7).apart == pytest.approx(7 * event.apart)


def least_epsilon(law: Chances, shift: int, times: int, delta: float) -> float:
    """Of `times` releases of whole numbers with this noise, one unit moving each by `shift`: the
    whole law of the privacy loss, no accountant.
    """
    losses = np.log(law[shift:] / law[: len(law) - shift])
    masses = law[shift:]
    step = 1e-3
    places = np.ceil(losses / step).astype(np.int64)  # rounded up: never too small
    low = int(places.min())
    one = np.bincount(places - low, weights=masses)
    total = one
    for _ in range(times - 1):
        total = fftconvolve(total, one)
    loss = (times * low + np.arange(len(total))) * step
    beyond = law[:shift].sum() * times  # where the other law has nothing
    least, most = 0.0, 20.0
    while most - least > step:
        middle = (least + most) / 2
        fits = beyond + masses_above(loss, total, middle) <= delta
        least, most = (least, middle) if fits else (middle, most)
    return most


def masses_above(loss: Chances, mass: Chances, epsilon: float) -> float:
    above = loss > epsilon
    return float(np.sum(mass[above] * -np.expm1(epsilon - loss[above])))


@pytest.mark.parametrize(("parts", "sigma", "shift", "times"), [(4, 3, 4, 1), (6, 4, 8, 3)])
def test_the_printed_epsilon_against_the_law_of_the_summed_integers(
    parts: int, sigma: int, shift: int, times: int
) -> None:
    """By convolution, independently of any library; both ways are alike."""
    true = least_epsilon(summed(parts, sigma, 14 * sigma), shift, times, 1e-4)
    event = SummedGaussian(math.sqrt(parts) * sigma / shift, parts, sigma)
    printed = accounting.epsilon((Release("user", event, times),), "user", 1e-4)
    one = accounting.epsilon((Release("user", Gaussian(event.noise), times),), "user", 1e-4)
    assert printed == pytest.approx(true, rel=0.01)
    assert printed >= true - (times + 1) * 1e-3, "as exact as the reference is"
    assert printed == pytest.approx(one, rel=1e-9), "with steps like these the sum costs nothing"
    coarse = SummedGaussian(event.noise, parts, 1, numbers=100)
    cost = accounting.epsilon((Release("user", coarse, times),), "user", 1e-4)
    assert cost > one + 2 * times * coarse.apart, "with coarse ones it is paid for"


def test_of_one_user_or_none_the_opened_sum_tells_no_more_than_is_printed(tmp_path: Path) -> None:
    """Two candidates: a user's update, or nothing in its place. The attacker knows all other
    updates, one client colludes, one leaves: two shares of noise are left. The likelihood ratio is
    the best it can do. (Most sums are added up here: what the protocol opens is the same.)
    """
    games, size = 600, 60
    mechanism, promise = built(4)
    update = {"w": torch.full((size,), 1.0)}  # clipped to its length
    clipped = noise.in_steps({"w": update["w"] * CLIP / norm(update)}, mechanism.grid)["w"]
    told = np.zeros((2, 2))  # truth, answer
    for game in range(games):
        truth = game % 2
        deltas = zeros(4, size) | ({1: update} if truth else {})
        room = Room(tmp_path, mechanism, deltas, silent=[2], leaves={3: MASKED})
        message = Message(meta={"step": game + 1, **mechanism.tell({}), COHORT: 4})
        sent = [room.train(message, client(n), ClientState())[0] for n in range(3)]
        seen = sum(reply.arrays["delta/w"] for reply in sent if reply is not None).double()
        if game < 4:
            assert torch.equal(steps(room.total(step=game + 1)).double(), seen)
        score = float(seen @ clipped.double()) / float(clipped.double().square().sum())
        told[truth, int(score > 0.5)] += 1
    rate = told / told.sum(axis=1, keepdims=True)
    (epsilon,) = [promise.statement((mechanism.planned(4.0, 4),)).epsilon_this_run]
    assert epsilon is not None
    spread = 4 * math.sqrt(0.25 / (games / 2))
    best = float(normal.cdf(1 / (2 * Z)))  # a Gaussian's
    assert rate[1, 1] == pytest.approx(best, abs=spread), "as good as Gaussian noise of z allows"
    assert rate[0, 0] == pytest.approx(best, abs=spread)
    assert rate[1, 1] <= math.exp(epsilon) * rate[0, 1] + promise.delta


def test_a_user_pays_whenever_it_is_asked_and_no_secret_draw_makes_it_less() -> None:
    mechanism, promise = built(6, sampling="poisson")
    ledger: Ledger = ()
    state: Params = {}
    for cohort in ([0, 1, 2], [3, 4, 5], [0, 1, 2, 3], []):
        ledger, state = mechanism.charge(ledger, Asked(cohort, 3.0, 6, {}), state)
    (release,) = ledger
    assert isinstance(release.event, SummedGaussian), "one event, whatever the cohort"
    assert (release.event.noise, release.event.parts, release.count) == (Z, 6, 2)
    central = (Release("user", Gaussian(Z), 2),)
    printed = promise.statement(ledger).epsilon_this_run
    assert printed == pytest.approx(accounting.epsilon(central, "user", promise.delta), rel=1e-9)


# --- whom a client trusts ------------------------------------------------------------------------


def lying(**terms: int) -> Callable[[Verb, Message], Message]:
    def down(verb: Verb, message: Message) -> Message:
        return replace(message, meta={**message.meta, **terms}) if verb is KEYS else message

    return down


@pytest.mark.parametrize(
    "terms",
    [{"survivors": 6}, {"survivors": 6, "threshold": 6}, {"threshold": 6}, {"clients": 11}],
    ids=str,
)
def test_terms_with_fewer_survivors_are_refused_by_every_client(
    terms: dict[str, int], tmp_path: Path
) -> None:
    """Noise that was made for more who stay than there are would be too little."""
    mechanism, _ = built(10)
    total = Room(tmp_path, mechanism, zeros(10, 5), down=lying(**terms)).total()
    assert total.update == {}
    assert total.refused == {REFUSALS[5]: 10, NOT_OPENED: 1}


@pytest.mark.parametrize("told", [{"grid": 1.0}, {"clip": 100.0}, {"grid": 2.0**-50}], ids=str)
def test_another_clip_or_grid_is_refused_by_every_client(
    told: dict[str, float], tmp_path: Path
) -> None:
    mechanism, _ = built(5)
    total = Room(tmp_path, mechanism, zeros(5, 5)).total(**told)
    assert total.update == {}
    assert total.refused == {REFUSALS[5]: 5, NOT_OPENED: 1}


def test_outside_a_secure_sum_nothing_is_sent() -> None:
    mechanism, _ = built(5)
    plain = Message(meta=dict(mechanism.tell({})))
    with pytest.raises(NotAgreedError):
        mechanism.bound({"w": torch.ones(3)}, 1, 0.0, plain, root(0))
    other = Message(meta={**mechanism.tell({}), COHORT: 50})
    with pytest.raises(NotAgreedError, match="no cohort has 50 clients"):
        mechanism.bound({"w": torch.ones(3)}, 1, 0.0, other, root(0))


# --- rounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [KEYS, MASKED, OPEN], ids=lambda verb: verb.name)
def test_below_the_threshold_nothing_is_opened_no_step_is_taken_and_it_stays_charged(
    phase: Verb, tmp_path: Path
) -> None:
    mechanism, _ = built(10)
    room = Room(tmp_path, mechanism, zeros(10, 5), leaves=dict.fromkeys(range(4), phase))
    rounds = loop(Everyone(), mechanism, ServerOptimizer(), mechanism)
    start = ServerState(params={"w": torch.ones(5)})
    *_, state = rounds(room.federation, start, until=1, seed=root(0))
    assert state.round == 1
    assert torch.equal(state.params["w"], torch.ones(5))
    assert [r.count for r in state.ledger] == [1]
    room.leaves = dict.fromkeys(range(3), phase)
    *_, state = rounds(room.federation, state, until=2, seed=root(0))
    assert not torch.equal(state.params["w"], torch.ones(5)), "and with one more it is"
    assert [r.count for r in state.ledger] == [2]


def test_cohorts_below_the_least_release_nothing_and_the_divisor_is_the_expected_one(
    tmp_path: Path,
) -> None:
    options = replace(SECURE, least=4)
    mechanism, _ = built(12, 0.01, options=options, sampling="poisson", size=5)
    deltas = {n: {"w": torch.full((4,), 0.2)} for n in range(12)}
    room = Room(tmp_path, mechanism, deltas, options)
    rounds = loop(Poisson(5), mechanism, ServerOptimizer(), mechanism)
    state = ServerState(params={"w": torch.zeros(4)})
    for number in range(8):
        before, seed = state.params["w"], fresh()
        *_, state = rounds(room.federation, state, until=number + 1, seed=seed)
        here = derive(derive(seed, "round", number), "cohort")
        came = len(Poisson(5).sample(range(12), here))
        moved = float((state.params["w"] - before).mean())
        assert moved == pytest.approx(0.2 * came / 5 if came >= 4 else 0.0, abs=0.02)


def test_charged_before_it_is_released_in_a_deployment() -> None:
    mechanism, _ = built(6, fresh=True)
    assert mechanism.ahead
    assert not built(6)[0].ahead


# --- words and files -----------------------------------------------------------------------------


def test_the_ledger_comes_back_as_it_was_and_a_bent_one_is_refused() -> None:
    mechanism, _ = built(10)
    ledger = (replace(mechanism.planned(10.0, 10), count=3),)
    entries = json.loads(json.dumps(accounting.to_json(ledger)))
    assert accounting.from_json(entries) == ledger
    assert entries[0]["event"] == "summed_gaussian"
    assert entries[0]["against"] == "server"
    for bent in ({"parts": 1.5}, {"parts": 0}, {"steps": -3}, {"noise": 0.0}, {"steps": None}):
        with pytest.raises(PrivacyError, match="can't be read"):
            accounting.from_json([{**entries[0], **bent}])


def test_the_sentence_says_who_may_collude_and_who_must_stay() -> None:
    mechanism, promise = built(10, 2.0)
    statement = promise.statement((mechanism.planned(10.0, 10),))
    for part in (
        "the server and up to 1 colluding client, as long as 7 of 10 stay",
        "neighbours: one user's texts, or none in their place",
        "counts on no secret cohort",
    ):
        assert part in statement.sentence
    assert statement.against is not None
    assert "7 of 10" in statement.against
    assert any("does as the protocol says" in note for note in statement.notes)


def test_rounds_that_counted_on_others_to_stay_are_named_and_trust_in_the_server_is_not_forgotten() -> (
    None
):
    weak, _ = built(10, 2.0, options=replace(SECURE, colluding=0.0))
    strong, promise = built(10, 2.0)
    ledger, state = weak.charge((), Asked(range(10), 10.0, 10, {}), {})
    ledger, state = strong.charge(ledger, Asked(range(10), 10.0, 10, {}), state)
    assert len(ledger) == 2
    notes = promise.statement(ledger).notes
    assert any("0 may collude" in note for note in notes)
    trusted = Release("user", Gaussian(4.0))
    against = promise.statement((*ledger, trusted)).against
    assert against is not None
    assert "the server is trusted" in against
    alone = Release("user", Gaussian(4.0), against="everybody")
    against = promise.statement((*ledger, alone)).against
    assert against is not None
    assert "as long as 7 of 10 stay" in against


@pytest.mark.parametrize(
    ("options", "privacy", "says"),
    [
        (Secure(), {}, "set secure.sums = true"),
        (SECURE, {"quantile": 0.5}, "privacy.quantile"),
        (SECURE, {"noise_cohort": 10.0, "population": 100}, "privacy.noise_cohort"),
        (SECURE, {"z": 0.0}, "privacy.noise above 0"),
        (replace(SECURE, least=7), {}, "ever large enough"),
        (replace(SECURE, threshold=0.6, colluding=0.7, dropping=0.0), {}, "nobody's noise"),
    ],
    ids=str,
)
def test_what_could_not_do_what_it_says_is_refused(
    options: Secure, privacy: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        built(6, options=options, **privacy)


def test_a_plan_has_noise_in_shares_between_the_servers_and_everybodys_own() -> None:
    plan = Plan(8.0, 1000, 100, 20, 1e-6, accountant="rdp")
    shared, alone, server = distributed(plan), local(plan), central(plan)
    assert server.number < shared.number < alone.number
    assert shared.multiplier == alone.multiplier / 2
    assert shared.number == pytest.approx(shared.multiplier / 100 * 0.5 / math.sqrt(0.57))


def test_a_run_of_it(tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    few = ("evaluation.clients=3", "data.classes=2")
    setting = sets(*DISTRIBUTED, PUBLIC, "rounds=3", "cohort.size=4", *few)
    refused = lexfed("run", tiny, "--out", "no", *setting, *sets("secure.sums=false"))
    assert refused.returncode == 2
    assert "set secure.sums = true" in refused.stderr
    plan = lexfed("privacy", tiny, *setting)
    assert plan.returncode == 0, plan.stderr
    assert "the server (sums alone)" in plan.stdout
    assert "up to 1 colluding client, as long as 3 of 4 stay" in plan.stdout
    for name in ("a", "b"):
        run = lexfed("run", tiny, "--out", name, *setting)
        assert run.returncode == 0, run.stderr
    models = [(tmp_path / n / "artifacts/model.safetensors").read_bytes() for n in ("a", "b")]
    assert models[0] == models[1], "to the bit"
    summary = summary_of(tmp_path / "a")
    (entry,) = summary["ledger"]
    assert entry["event"] == "summed_gaussian"
    asked = [sorted(FixedSize(4).sample(range(6), seed)) for seed in cohorts(3)]
    assert entry["count"] == max(sum(n in cohort for cohort in asked) for n in range(6))
    assert "3 of 4 stay" in summary["promise"]["against"]
    told = lexfed("privacy", "a")
    assert "each with its share of the noise" in told.stdout.replace("\n", " ")
    system = lexfed("run", tiny, "--out", "c", *setting, *sets("secrets=system", "rounds=1"))
    assert system.returncode == 0, system.stderr


@pytest.mark.slow
def test_workers_make_the_same_bits(tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    few = "evaluation.clients=3"
    setting = sets(*DISTRIBUTED, PUBLIC, "rounds=2", "cohort.size=4", few)
    for workers in (0, 2):
        run = lexfed("run", tiny, "--out", f"w{workers}", "--workers", workers, *setting)
        assert run.returncode == 0, run.stderr
    models = [(tmp_path / f"w{n}/artifacts/model.safetensors").read_bytes() for n in (0, 2)]
    assert models[0] == models[1]


def cohorts(rounds: int) -> list[bytes]:
    server = derive(root(0), "server")
    return [derive(derive(server, "round", number), "cohort") for number in range(rounds)]
