"""Each promise that an attacker once broke, and the epsilons of eight configurations computed again.

The breaks were found in commit 79332b5. The tests speak this version's names, so they do not run
on that one: `python benchmarks/old_breaks.py` plays the same attacks there with the names of then,
runs these, and writes `benchmarks/old_breaks.md`.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

from lexfed.agreement.proposals import hashes
from lexfed.agreement.protocol import VOCABULARY
from lexfed.agreement.word_list import from_bytes, keyed
from lexfed.core.errors import ConfigError
from lexfed.core.params import Params
from lexfed.core.seeds import derive, fresh, keystream, root, secret_choice, secret_normal
from lexfed.experiment.config import parse
from lexfed.federation import Federation, Requests, ServerState, Sum
from lexfed.federation.sampling import Everyone, FixedSize, Poisson
from lexfed.federation.server_optimizer import ServerOptimizer
from lexfed.learning.parts import loop
from lexfed.privacy import accounting, set_union
from lexfed.privacy.accounting import Bare, Gaussian, Ledger, Pure, Release, SampledGaussian
from lexfed.privacy.gaussian import GaussianMechanism, Privacy
from lexfed.privacy.mechanism import UNPAID, Asked
from lexfed.privacy.promise import Promise, build, inherited
from lexfed.records import checkpoint
from lexfed.runtime.store import Store
from lexfed.vocabulary import sketch
from lexfed.wire import Message, Verb, decode
from tests import hostile
from tests.conftest import Lexfed, no_pictures
from tests.references import epsilon_by_fft
from tests.unit.test_tokenizer_for_free import folder  # noqa: F401

MODEL = {"w": torch.zeros(300)}
CENTRAL = ("privacy.placement=central", "privacy.noise=1.0", "cohort.sampling=poisson")
STATED = "data.classes=2"  # what is read from users' labels is told as it is
PRIVATE = (*CENTRAL, STATED)
PUBLIC = "vocabulary.corpus=rotten_tomatoes"
CLIENTS = "vocabulary.corpus=clients"


def sets(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def summary_of(run: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return summary


def nobody(clients: int) -> Federation:
    def total(verb: Verb, requests: Requests) -> Sum:
        return Sum()

    return Federation(range(clients), lambda verb, requests: iter(()), total)


# --- 1: two candidates ---------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [4.0, 20.0, 80.0])
def test_of_two_candidates_the_right_one_is_not_told_through_fresh_local_noise(
    noise: float,
) -> None:
    """The update modulo the noise's grid stood in the clear: 40 of 40 at a printed epsilon of 2.25
    and of 0.40, 39 at 0.09.

    The attacker asks of which candidate the reply is whole steps away.
    """
    mechanism = GaussianMechanism(Privacy(placement="local", clip=0.5, noise=noise), 1, fresh=True)
    message = Message(meta=dict(mechanism.tell({})))
    grid = float(message.meta["grid"])
    right = 0
    for game in range(40):
        pair = [
            {"w": 0.01 * torch.randn(300, generator=torch.Generator().manual_seed(2 * game + i))}
            for i in range(2)
        ]
        truth = game % 2
        sent = mechanism.bound(pair[truth], 1, 0.0, message, root(game))["delta/w"]
        assert isinstance(sent, torch.Tensor)
        steps = [((sent.double() * grid - one["w"].double()) / grid) for one in pair]
        strangeness = [float((s - s.round()).abs().mean()) for s in steps]
        right += int(np.argmin(strangeness)) == truth
    assert 8 <= right <= 32, "as by tossing a coin"
    assert sent.dtype == torch.int64, "there is nothing below the grid"


# --- 2: released without paying ------------------------------------------------------------------


def test_a_word_list_of_the_users_own_words_takes_the_promise_away(
    tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text(texts.read_text().replace("a fine and moving film 5", "zyzzyva film 5", 1))
    leaky = lexfed("run", tiny, "--out", "leaky", *sets(*PRIVATE, CLIENTS))
    assert leaky.returncode == 0, leaky.stderr
    assert "zyzzyva" in (tmp_path / "leaky/artifacts/vocabulary.txt").read_text()
    summary = summary_of(tmp_path / "leaky")
    assert summary["epsilon_this_run"] is None
    assert summary["epsilon_deployment"] is None
    assert summary["promise"]["holds"] is False
    (taint,) = summary["promise"]["taints"]
    assert "word list" in taint
    assert "No promise: the word list was made from the users' own texts" in leaky.stdout
    assert "No promise" in (tmp_path / "leaky/report.html").read_text()

    kept = lexfed("run", tiny, "--out", "kept", *sets(*PRIVATE, PUBLIC))
    assert kept.returncode == 0, kept.stderr
    assert "zyzzyva" not in (tmp_path / "kept/artifacts/vocabulary.txt").read_text()
    summary = summary_of(tmp_path / "kept")
    assert summary["promise"]["holds"] is True
    assert 0 < summary["epsilon_this_run"] < 50
    assert "who sees the released models" in summary["promise"]["against"]
    assert "global_accuracy" in summary["experimenter"], "marked: not to be published"


def test_the_same_text_under_another_name_is_the_users_own(tiny: Path, lexfed: Lexfed) -> None:
    same = f"vocabulary.corpus={tiny.parent}/texts.jsonl"
    assert lexfed("run", tiny, "--out", "a", *sets(*PRIVATE, same)).returncode == 0
    assert summary_of(Path("a"))["promise"]["holds"] is False


def test_an_oracle_tokenizer_takes_the_promise_away(
    folder: Path,  # noqa: F811
    lexfed: Lexfed,
    tmp_path: Path,
) -> None:
    """One user's invented word stands in its `tokenizer.json`."""
    users = (folder / "users.jsonl").read_text().replace('"}', ' zyzzyva"}', 1)
    (tmp_path / "users.jsonl").write_text(users)
    base = (f"data.name={tmp_path}/users.jsonl", "tokenizer.kind=word", "tokenizer.size=3000")
    for start, holds in (("oracle", False), ("public", True)):
        setting = sets(*base, f"tokenizer.start={start}", "rounds=3")
        run = lexfed("run", folder / "small.toml", "--out", start, *setting)
        assert run.returncode == 0, run.stderr
        summary = summary_of(Path(start))
        assert ("zyzzyva" in Path(start, "artifacts/tokenizer.json").read_text()) is not holds
        assert summary["promise"]["holds"] is holds
        assert (summary["epsilon_this_run"] is None) is not holds


def test_a_fork_of_rounds_without_noise_promises_nothing(tiny: Path, lexfed: Lexfed) -> None:
    """Twenty bare rounds, then one private one: it printed 0.199."""
    assert lexfed("run", tiny, "--out", "bare", *sets(PUBLIC, STATED, "rounds=2")).returncode == 0
    noisy = sets(*PRIVATE, PUBLIC, "rounds=3")
    fork = lexfed("run", tiny, "--from", "bare", "--out", "fork", *noisy)
    assert fork.returncode == 0, fork.stderr
    summary = summary_of(Path("fork"))
    assert summary["epsilon_this_run"] is None
    assert summary["promise"]["taints"] == ["updates were averaged without noise (2 rounds)"]


def test_a_run_of_an_earlier_lexfed_wrote_no_bare_rounds_down() -> None:
    """So they are added when it is forked or resumed."""
    (bare,) = inherited((), Privacy(), rounds=20, done=20)
    assert isinstance(bare.event, Bare)
    assert bare.count == 20
    assert inherited((), Privacy(), rounds=20, done=0) == ()
    assert inherited((bare,), Privacy(), rounds=20, done=20) == (bare,)


def test_a_verb_that_nobody_pays_for_takes_the_promise_away(
    tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    (tmp_path / "counting.py").write_text(
        """
from dataclasses import replace
import torch, lexfed
from lexfed.methods.fedavg import fedavg
from lexfed.wire import Array, Form
from lexfed.wire.verbs import CLOCK
COUNT = lexfed.Verb("count", Form(meta=CLOCK), Form({"texts": Array()}))
def count(message, client, state):
    return lexfed.Message({"texts": torch.tensor(float(len(client.train)))}), state
def build(parts, options):
    method = fedavg(parts)
    return replace(method, client={**method.client, COUNT: count})
METHOD = lexfed.Entry("counting", lexfed.CLASSIFIER, build)
"""
    )
    setting = sets("method=counting:METHOD", *PRIVATE, PUBLIC)
    run = lexfed("run", tiny, "--out", "a", *setting)
    assert run.returncode == 0, run.stderr
    (taint,) = summary_of(tmp_path / "a")["promise"]["taints"]
    assert "asks users for 'count'" in taint


def test_a_deployment_asks_no_user_for_figures(tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    """Under local noise, "the server included", a reply to `evaluate` told its label counts."""
    local = sets("privacy.placement=local", "privacy.noise=1.0", PUBLIC, STATED)
    for secrets, asked in (("seed", True), ("system", False)):
        setting = [*local, *sets(f"secrets={secrets}")]
        words = ("--out", secrets, "--record-wire", f"wire-{secrets}", *setting)
        run = lexfed("run", tiny, *words)
        assert run.returncode == 0, run.stderr
        verbs = {
            json.loads(path.read_text())["verb"]
            for path in (tmp_path / f"wire-{secrets}").rglob("meta.json")
        }
        assert ("evaluate" in verbs) is asked
        summary = summary_of(tmp_path / secrets)
        assert (summary["global_accuracy"] is not None) is asked
        assert "the server included" in summary["privacy"]
    assert summary["seed"] is None, "the seed of a deployment does not exist"


@pytest.mark.parametrize("secrets", ["seed", "system"])
def test_figures_made_without_noise_are_marked_as_the_experimenters(
    secrets: str, tiny: Path, lexfed: Lexfed
) -> None:
    """Scores, who held back, and what tells how many took part: not for who gets the model."""
    base = (*PRIVATE, PUBLIC, "defences.minimum_words=26", f"secrets={secrets}")
    with no_pictures():
        run = lexfed("run", tiny, "--out", "a", *sets(*base))
    assert run.returncode == 0, run.stderr
    summary = summary_of(Path("a"))
    exact = {"held_back", "bytes_up", "bytes_down", "refused"}
    exact |= {"global_accuracy", "local_accuracy", "macro_f1"} if secrets == "seed" else set()
    assert all(summary[key] is not None for key in exact)
    assert exact <= set(summary["experimenter"])
    assert lexfed("export", "a", "--to", "out").returncode == 0
    card = Path("out/README.md").read_text()
    assert "sent up" not in card, "it tells how many took part, exactly"
    assert "and are not published" in card


# --- 3: what the ledger missed -------------------------------------------------------------------


def killed_after_the_charge(
    mechanism: GaussianMechanism, sampler: Any, clients: int, kills: int
) -> ServerState:
    """The state after a round whose first attempts died between charge and release."""
    rounds = loop(sampler, mechanism, ServerOptimizer(), mechanism)
    state = ServerState(params=MODEL)
    for _ in range(kills):  # each time another process, so another secret
        state = next(rounds(nobody(clients), state, until=1, seed=fresh()))
    *_, state = rounds(nobody(clients), state, until=1, seed=fresh())
    return state


def test_five_kills_are_six_charges_under_local_noise() -> None:
    mechanism = GaussianMechanism(Privacy(placement="local", noise=4.0), 1, fresh=True)
    state = killed_after_the_charge(mechanism, Everyone(), 5, kills=5)
    assert [(r.event, r.count) for r in state.ledger] == [(Gaussian(2.0), 6)]


def test_a_repeated_round_draws_another_cohort_and_pays_again() -> None:
    """The same cohort with new noise, charged as if it were drawn again: ten repeats .59, true
    11.5.
    """
    asked: list[list[int]] = []

    def total(verb: Verb, requests: Requests) -> Sum:
        asked.append(sorted(requests))
        return Sum()

    mechanism = GaussianMechanism(Privacy(placement="central", noise=1.0), 1, fresh=True)
    rounds = loop(Poisson(20, secret=True), mechanism, ServerOptimizer(), mechanism)
    federation = replace(nobody(1000), total=total)
    charged = next(rounds(federation, ServerState(params=MODEL), until=1, seed=fresh()))
    for _ in range(10):
        *_, state = rounds(federation, charged, until=1, seed=fresh())
        charged = replace(state, round=0)
    assert len({tuple(cohort) for cohort in asked}) == len(asked) == 10
    assert state.ledger[0].count == 11


def test_each_process_of_a_deployment_has_a_secret_of_its_own(
    tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    """Two copies of one checkpoint go on with different cohorts; in a simulation with the same."""
    for secrets in ("seed", "system"):
        base = sets(*PRIVATE, PUBLIC, f"secrets={secrets}", "rounds=1", "data.clients=24")
        assert lexfed("run", tiny, "--out", secrets, *base).returncode == 0
        cohorts = []
        for copy in ("one", "two"):
            name = f"{secrets}-{copy}"
            shutil.copytree(tmp_path / secrets, tmp_path / name)
            more = lexfed("run", name, "--resume", "--record-wire", f"w-{name}", *sets("rounds=4"))
            assert more.returncode == 0, more.stderr
            cohorts.append(asked_to_train(tmp_path / f"w-{name}"))
        assert (cohorts[0] == cohorts[1]) is (secrets == "seed")


def asked_to_train(wire: Path) -> set[tuple[int, int]]:
    metas = [json.loads(path.read_text()) for path in wire.rglob("meta.json")]
    return {
        (m["round"], m["client"])
        for m in metas
        if m["verb"] == "train" and m["direction"] == "down"
    }


def test_the_cohort_of_a_deployment_cannot_be_recomputed_from_the_configuration(
    tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    for secrets in ("seed", "system"):
        base = sets(*PRIVATE, PUBLIC, f"secrets={secrets}", "rounds=3", "data.clients=24")
        words = ("--out", secrets, "--record-wire", f"w-{secrets}", *base)
        assert lexfed("run", tiny, *words).returncode == 0
        server = derive(root(0), "server")  # all that config.toml tells
        guess = {
            (number, client)
            for number in range(3)
            for client in Poisson(3).sample(
                range(24), derive(derive(server, "round", number), "cohort")
            )
        }
        assert (asked_to_train(tmp_path / f"w-{secrets}") == guess) is (secrets == "seed")


def test_a_sketch_does_not_pay_for_local_noise() -> None:
    """Every event of a user was counted, so one sketch left the first local release out."""
    mechanism = GaussianMechanism(Privacy(placement="local", noise=4.0), 1)
    ledger: Ledger = (Release("user", Pure(2.0), what="sketch", against="everybody"),)
    ledger, _ = mechanism.charge(ledger, Asked([0, 1], 2.0, 4, MODEL), {})
    assert [r.event for r in ledger] == [Pure(2.0), Gaussian(2.0)]


def test_a_fork_from_central_to_local_noise_pays_for_both_and_holds_against_the_public_only() -> (
    None
):
    central = GaussianMechanism(Privacy(placement="central", noise=4.0), 5)
    ledger, state = central.charge((), Asked([0, 1], 4.0, 4, MODEL), {})
    mechanism, _, promise = build(Privacy(placement="local", noise=4.0), 5, "fixed")
    assert isinstance(mechanism, GaussianMechanism)
    assert promise is not None
    ledger, state = mechanism.charge(ledger, Asked([0, 1], 2.0, 4, MODEL), state)
    assert [r.event for r in ledger] == [Gaussian(4.0), Gaussian(2.0)]
    against = promise.statement(ledger).against
    assert against is not None
    assert "the server is trusted" in against
    alone = promise.statement(ledger[1:]).against
    assert alone is not None
    assert "the server included" in alone


def test_local_noise_that_changes_back_and_forth_is_counted_for_each_strength() -> None:
    weak, strong = (GaussianMechanism(Privacy(placement="local", noise=z), 9) for z in (2.0, 8.0))
    ledger: Ledger = ()
    state: Params = {}
    for mechanism, client in ((strong, 0), (weak, 1), (strong, 0), (weak, 1)):
        ledger, state = mechanism.charge(ledger, Asked([client], 1.0, 4, MODEL), state)
    counts = {z: sum(r.count for r in ledger if r.event == Gaussian(z)) for z in (1.0, 4.0)}
    assert counts == {1.0: 2, 4.0: 2}, "user 1 was asked twice with little noise, and pays for it"


def test_forks_do_not_share_noise(tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    """The difference of two forks' first releases was free of noise, and each said it had paid."""
    base = sets(*PRIVATE, PUBLIC, "privacy.clip=0.01")
    assert lexfed("run", tiny, "--out", "trunk", *base, *sets("rounds=1")).returncode == 0
    start = decode((tmp_path / "trunk/artifacts/model.safetensors").read_bytes()).arrays
    moved = []
    for rate in ("1.0", "2.0"):
        words = (*base, *sets("rounds=2", f"server.lr={rate}"))
        fork = lexfed("run", tiny, "--from", "trunk", "--out", f"fork-{rate}", *words)
        assert fork.returncode == 0, fork.stderr
        end = decode((tmp_path / f"fork-{rate}/artifacts/model.safetensors").read_bytes()).arrays
        flat = torch.cat([(end[name] - start[name]).reshape(-1) for name in sorted(start)])
        moved.append(flat / float(rate))
    difference = (moved[0] - moved[1]).std()
    assert difference > 0.5 * moved[0].std(), "both moved by the same update and other noise"
    assert (
        "nothing is counted but this run"
        in summary_of(tmp_path / "fork-1.0")["promise"]["notes"][-1]
    )


def test_a_deployments_event_is_kept_as_it_was_when_it_was_charged() -> None:
    """Resumed from 100 to 2,000 rounds with noise for the longer run: 2.000 was printed, true is
    more (by PLD, for these numbers, 2.52).
    """
    options = Privacy(
        placement="central", epsilon=2.0, delta=1e-6, accountant="rdp",
        noise_cohort=1000.0, population=100_000,
    )  # fmt: skip
    ask = Asked(range(10), 10.0, 1000, MODEL)
    ledger: Ledger = ()
    for rounds, until in ((100, 100), (2000, 2000)):
        mechanism = GaussianMechanism(replace(options, epsilon=2.0), rounds)
        release = mechanism.planned(ask.expected, ask.population)
        done = sum(r.count for r in ledger)
        ledger = accounting.charge(ledger, replace(release, count=until - done))
    printed = Promise(mechanism, "poisson").statement(ledger).epsilon_deployment
    noises = [r.deployed.noise for r in ledger if isinstance(r.deployed, SampledGaussian)]
    assert noises[0] < noises[1]
    true = epsilon_by_fft([(noises[0], 0.01, 100), (noises[1], 0.01, 1900)], 1e-6)
    assert printed is not None
    assert printed > 2.05, "the first hundred rounds had less noise"
    assert printed >= true, "RDP is never below"
    with pytest.raises(Exception, match="on top of what was spent before"):
        mechanism._check_budget(ledger)


def test_halves_of_the_users_are_drawn_from_half_of_the_population() -> None:
    options = Privacy(
        placement="central", noise=1.0, noise_cohort=1000.0, population=100_000, accountant="rdp"
    )
    _, _, promise = build(options, 10, "poisson", groups=2)
    assert promise is not None
    release = promise.mechanism.planned(10.0, 100)
    assert release.deployed == SampledGaussian(1.0, 0.02), "1,000 of 50,000"
    assert "2 groups" in promise.statement((release,)).sentence


# --- 4: secrets ----------------------------------------------------------------------------------


def test_secret_draws_have_their_laws() -> None:
    normal = secret_normal(root(0), 200_000).double()
    assert abs(float(normal.mean())) < 6 / np.sqrt(200_000)
    assert abs(float(normal.square().mean()) - 1) < 6 * np.sqrt(2 / 200_000)
    assert abs(float((normal**4).mean()) - 3) < 0.15
    assert torch.equal(secret_normal(root(0), 7), secret_normal(root(0), 7))
    assert secret_normal(root(0), 3, 5).shape == (3, 5)
    met = np.zeros(10)
    for number in range(3000):
        chosen = secret_choice(10, 3, derive(root(1), number))
        assert len(set(chosen.tolist())) == 3
        met[chosen] += 1
    assert abs(met - 900).max() < 6 * np.sqrt(3000 * 0.3 * 0.7)
    assert sorted(secret_choice(5, 5, root(2)).tolist()) == [0, 1, 2, 3, 4]
    assert len(secret_choice(10**6, 0, root(2))) == 0
    first = np.array([secret_choice(6, 4, derive(root(3), n))[0] for n in range(3000)])
    assert abs(np.bincount(first, minlength=6) - 500).max() < 6 * np.sqrt(500)
    assert keystream(root(0), 10) == keystream(root(0), 20)[:10]


def test_a_secret_cohort_is_a_cohort_all_the_same() -> None:
    for sampler in (FixedSize(4, secret=True), Poisson(4, secret=True)):
        drawn = [sampler.sample(range(100, 140), derive(root(5), n)) for n in range(2000)]
        assert all(100 <= c < 140 for cohort in drawn for c in cohort)
        assert abs(np.mean([len(cohort) for cohort in drawn]) - 4) < 0.3
        counts = np.bincount([c - 100 for cohort in drawn for c in cohort], minlength=40)
        assert abs(counts - 200).max() < 6 * np.sqrt(200)


def test_clients_of_a_deployment_keep_a_secret_that_no_seed_tells(
    tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        run = lexfed("run", tiny, "--out", name, *sets("secrets=system", "rounds=1"))
        assert run.returncode == 0, run.stderr
    one, two = ((tmp_path / name / "checkpoint/clients/secret") for name in ("a", "b"))
    assert one.read_bytes() != two.read_bytes()
    assert len(one.read_bytes()) == 32
    assert one.stat().st_mode & 0o777 == 0o600
    before = one.read_bytes()
    assert lexfed("run", "a", "--resume", *sets("rounds=2")).returncode == 0
    assert one.read_bytes() == before, "kept"
    fork = lexfed("run", tiny, "--from", "a", "--out", "c", *sets("secrets=system", "rounds=3"))
    assert fork.returncode == 0, fork.stderr
    assert (tmp_path / "c/checkpoint/clients/secret").read_bytes() == before, "the same clients"


KNOWN = derive(root(0), "data")  # all that config.toml tells of clients' secrets
COMMON = derive(KNOWN, "common")


def messages(verb: str, way: str) -> list[tuple[dict[str, Any], Path]]:
    """What the recorded wire holds of these, oldest first."""
    found = [(json.loads(p.read_text()), p.parent) for p in sorted(Path("wire").rglob("meta.json"))]
    return [(meta, at) for meta, at in found if (meta["verb"], meta["direction"]) == (verb, way)]


def arrays(at: Path) -> Params:
    return decode((at / "arrays.safetensors").read_bytes()).arrays


def flips_taken_off() -> bool:
    """Without the flips each report holds its +1 at one column, which is the word's."""
    plan, read = sketch.Sketch(8.0), []
    places = sketch.places(plan, ["the", "cat"])
    for meta, at in messages("sketch", "up"):
        clock = f"{meta['step']:06d}-{meta['ask']:02d}-sketch-{meta['client']:08d}-down"
        asked = blake2b(Path("wire", clock, "blobs/words").read_bytes(), digest_size=16)
        secret = derive(KNOWN, "client", meta["client"])
        seed = derive(secret, "sketch", meta["step"], meta["ask"], asked.hexdigest())
        same = sketch.encode(plan, [sketch.NO_WORD] * 3, derive(seed, "flip"))  # the same draws
        left = np.unpackbits(same.bits ^ arrays(at)["bits"].numpy(), axis=1)
        for report, row in enumerate(same.rows):
            columns = set(np.flatnonzero(left[report]).tolist())
            read.append(len(columns) <= 2 and bool(columns & set(places[row].tolist())))
    return bool(read) and all(read)


def hashes_read() -> bool:
    """With the key, a dictionary tells every word."""
    (nonce,) = {(at / "blobs/nonce").read_bytes() for _, at in messages("propose", "down")}
    key = derive(COMMON, "words", nonce.hex())
    sent = {name for _, at in messages("propose", "up") for name in hashes(arrays(at)["hashes"])}
    return bool(sent) and sent <= {keyed(word, key) for word in hostile.WORDS}


def noise_of_a_list_known() -> bool:
    """From the weights on the wire and the noise: the list, with its noisy counts."""
    told: dict[bytes, float] = {}
    noise = derive(derive(derive(root(0), "server"), "agree"), "noise")
    for number, step in enumerate(set_union.passes(6.0, 0.01, 10)):
        weights: Counter[bytes] = Counter()
        for meta, at in messages("disclose", "up"):
            if meta["ask"] == number:
                names = filter(None, (at / "blobs/words").read_bytes().split(b"\n"))
                weights.update(dict(zip(names, arrays(at)["weights"].tolist(), strict=True)))
        told |= set_union.release(weights, step, derive(noise, number))
    found = from_bytes(checkpoint.load(Path("a/checkpoint")).state.blobs[VOCABULARY])
    guess = {name.decode(): max(1, round(w * np.sqrt(10))) for name, w in told.items()}
    return len(guess) > 10 and guess == dict(zip(found.tokens, found.counts, strict=True))


def rotation_known() -> bool:
    held = Store(Path("a/checkpoint/clients")).load(0, (99, 0))
    return derive(COMMON, "rotation") == held.blobs["rotation"]


SECRETS: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[], bool]]] = {
    "flips of a sketch": (
        lambda: hostile.language("many", 60, tokenizer=hostile.found("heavy_hitters")),
        flips_taken_off,
    ),
    "keys of hashes": (hostile.vectors, hashes_read),
    "noise of a list": (
        lambda: hostile.vectors(
            agreement={
                "rule": "dp", "epsilon": 6.0, "delta": 0.01, "words_per_document": 10,
                "hashed": False,
            }
        ),
        noise_of_a_list_known,
    ),
    "rotation": (
        lambda: hostile.classifier(
            method="fedevocab", vocabulary={"vectors": "hashed:4"}, defences={"rotation": "shared"}
        ),
        rotation_known,
    ),
}  # fmt: skip


@pytest.mark.parametrize("secret", SECRETS)
def test_no_secret_of_a_deployment_can_be_computed_from_the_configuration(
    secret: str, lexfed: Lexfed, tmp_path: Path
) -> None:
    """`randomness = "system"` was the Gaussian noise's alone; all else hung from `seed`."""
    scene, computed = SECRETS[secret]
    (tmp_path / "scene.toml").write_text(tomli_w.dumps(scene()))
    for secrets, known in (("seed", True), ("system", False)):
        setting = sets(f"secrets={secrets}", "rounds=1")
        with no_pictures():
            run = lexfed("run", "scene.toml", "--out", "a", "--record-wire", "wire", *setting)
        assert run.returncode == 0, run.stderr
        assert computed() is known
        shutil.rmtree("a")
        shutil.rmtree("wire")


def test_a_deployment_with_the_noise_of_another_is_refused() -> None:
    options = Privacy(placement="central", noise=1.0, noise_cohort=10.0, population=100)
    with pytest.raises(ConfigError, match="this run is the deployment"):
        build(options, 1, "poisson", "system")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_deployment_runs_with_workers(
    workers: int, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    setting = sets(*PRIVATE, PUBLIC, "secrets=system", "rounds=2")
    run = lexfed("run", tiny, "--out", "a", "--workers", workers, *setting)
    assert run.returncode == 0, run.stderr
    summary = summary_of(tmp_path / "a")
    assert [r["count"] for r in summary["ledger"]] == [2]
    assert summary["promise"]["holds"] is True


# --- 8: on the grid ------------------------------------------------------------------------------


@pytest.mark.parametrize(("clip", "cohort"), [(0.01, 1000.0), (0.5, 50.0), (30.0, 100_000.0)])
def test_adaptive_clipping_works_with_fresh_noise_at_any_clip(clip: float, cohort: float) -> None:
    options = Privacy(placement="central", clip=clip, noise=1.0, quantile=0.5)
    mechanism = GaussianMechanism(options, 1, fresh=True)
    asked = Asked(range(10), cohort, 10**6, MODEL)
    bits = torch.tensor(0.5 * cohort)  # nobody had to clip
    update, state = mechanism.release({"unclipped": bits}, asked, {}, root(0))
    assert float(state["clip"]) == pytest.approx(clip * np.exp(-0.2 * 0.5), rel=0.2)
    for _ in range(60):  # it falls or rises a hundredfold, and its grid with it
        update, state = mechanism.release({"unclipped": bits}, asked, state, root(0))
    value = update["w"]
    assert isinstance(value, torch.Tensor)
    z = mechanism._deviation(asked)
    now = float(state["clip"])
    assert float(value.std()) == pytest.approx(z * now / cohort, rel=0.35)
    assert value.dtype == torch.float32


def test_sums_of_grid_numbers_are_integer_sums() -> None:
    """A thousand clients' sums were off by hundreds of steps in float32, where updates point one
    way.
    """
    options = Privacy(placement="central", clip=0.5, noise=0.0)
    mechanism = GaussianMechanism(options, 1, fresh=True)
    message = Message(meta=dict(mechanism.tell({})))
    grid = float(message.meta["grid"])
    total = torch.zeros(300, dtype=torch.int64)
    exact = [0] * 300
    for client in range(1000):
        delta = {"w": 1 + torch.rand(300, generator=torch.Generator().manual_seed(client))}
        sent = mechanism.bound(delta, 1, 0.0, message, root(0))["delta/w"]
        assert isinstance(sent, torch.Tensor)
        total = total + sent
        exact = [a + b for a, b in zip(exact, sent.tolist(), strict=True)]
    assert max(exact) > 2**24, "more than float32 counts"
    update, _ = mechanism.release(
        {"delta/w": total}, Asked(range(1000), 1.0, 1000, MODEL), {}, root(0)
    )
    value = update["w"]
    assert isinstance(value, torch.Tensor)
    assert torch.equal(value, torch.tensor([n * grid for n in exact], dtype=torch.float64).float())


# --- eight configurations, computed again --------------------------------------------------------


def test_central(tiny: Path, lexfed: Lexfed) -> None:
    printed = run_epsilon(lexfed, tiny, *PRIVATE, PUBLIC, "rounds=5", "privacy.delta=1e-5")
    assert printed == pytest.approx(epsilon_by_fft([(1.0, 3 / 6, 5)], 1e-5), rel=0.01)


def test_local(tiny: Path, lexfed: Lexfed) -> None:
    """Everyone is asked each time; any two updates are two clips apart."""
    local = ("privacy.placement=local", "privacy.noise=3.0", "cohort.sampling=everyone")
    printed = run_epsilon(lexfed, tiny, *local, PUBLIC, STATED, "rounds=4", "privacy.delta=1e-5")
    assert printed == pytest.approx(epsilon_by_fft([(1.5, 1.0, 4)], 1e-5), rel=0.01)


def test_adaptive() -> None:
    """Update and bit together cost what z says: two Gaussians side by side are one of
    (z1^-2 + (2 z2)^-2)^-1/2 where the bit is half a unit.
    """
    options = Privacy(placement="central", noise=1.1, quantile=0.5, delta=1e-5)
    mechanism, asked = GaussianMechanism(options, 30), Asked(range(50), 50.0, 1000, MODEL)
    update, bits = mechanism._deviation(asked), mechanism._bit_noise(asked)
    both = (update**-2 + (0.5 / bits) ** 2) ** -0.5
    ledger: Ledger = ()
    for _ in range(30):
        ledger, _ = mechanism.charge(ledger, asked, {})
    printed = Promise(mechanism, "poisson").statement(ledger).epsilon_this_run
    assert printed == pytest.approx(epsilon_by_fft([(both, 0.05, 30)], 1e-5), rel=0.01)


def test_halves() -> None:
    """Each half pays for its own rounds, drawn from half of the users."""
    _, account, promise = build(
        Privacy(placement="central", noise=1.0, delta=1e-5), 30, "poisson", groups=2
    )
    assert promise is not None
    ledger: Ledger = ()
    for group, rounds in (("half 1", 10), ("half 2", 20)):
        for _ in range(rounds):
            ledger, _ = account.of(group).charge(ledger, Asked(range(5), 5.0, 50, MODEL), {})
    printed = promise.statement(ledger).epsilon_this_run
    assert printed == pytest.approx(epsilon_by_fft([(1.0, 0.1, 20)], 1e-5), rel=0.01)


def test_resumed(tiny: Path, lexfed: Lexfed) -> None:
    base = (*PRIVATE, PUBLIC, "privacy.delta=1e-5")
    assert lexfed("run", tiny, "--out", "r", *sets(*base, "rounds=2")).returncode == 0
    assert lexfed("run", "r", "--resume", *sets("rounds=5")).returncode == 0
    printed = summary_of(Path("r"))["epsilon_this_run"]
    assert printed == pytest.approx(epsilon_by_fft([(1.0, 3 / 6, 5)], 1e-5), rel=0.01)


def test_forked(tiny: Path, lexfed: Lexfed) -> None:
    base = (*PRIVATE, PUBLIC, "privacy.delta=1e-5")
    assert lexfed("run", tiny, "--out", "t", *sets(*base, "rounds=2")).returncode == 0
    other = sets(*base, "rounds=5", "privacy.noise=2.0")
    assert lexfed("run", tiny, "--from", "t", "--out", "f", *other).returncode == 0
    printed = summary_of(Path("f"))["epsilon_this_run"]
    assert printed == pytest.approx(epsilon_by_fft([(1.0, 0.5, 2), (2.0, 0.5, 3)], 1e-5), rel=0.01)


def test_repeated() -> None:
    mechanism = GaussianMechanism(
        Privacy(placement="central", noise=1.0, delta=1e-5), 1, fresh=True
    )
    state = killed_after_the_charge(mechanism, Poisson(10, secret=True), 1000, kills=10)
    printed = Promise(mechanism, "poisson").statement(state.ledger).epsilon_this_run
    assert printed == pytest.approx(epsilon_by_fft([(1.0, 0.01, 11)], 1e-5), rel=0.01)


def test_a_sketch_and_training(
    folder: Path,  # noqa: F811
    lexfed: Lexfed,
) -> None:
    setting = (
        "tokenizer.start=heavy_hitters", "tokenizer.kind=word", "heavy_hitters.epsilon=2.0",
        "heavy_hitters.epsilon_of=user", "privacy.noise=1.5", "privacy.accountant=pld", "rounds=3",
    )  # fmt: skip
    run = lexfed("run", folder / "small.toml", "--out", "s", *sets(*setting))
    assert run.returncode == 0, run.stderr
    summary = summary_of(Path("s"))
    printed = summary["epsilon_this_run"]
    assert printed == pytest.approx(epsilon_by_fft([(1.5, 6 / 32, 3)], 1e-6, pure=2.0), rel=0.01)


def run_epsilon(lexfed: Lexfed, tiny: Path, *settings: str) -> float:
    run = lexfed("run", tiny, "--out", "e", *sets(*settings))
    assert run.returncode == 0, run.stderr
    return float(summary_of(Path("e"))["epsilon_this_run"])


# --- an epsilon in words --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("placement", "sampling", "said"),
    [
        (
            "central", "poisson",
            ("one user added or removed", "the server is trusted", "counts on the cohort staying"),
        ),
        (
            "central", "everyone",
            ("one user added or removed", "the server is trusted", "no secret cohort is needed"),
        ),
        (
            "local", "fixed",
            ("any two users' texts", "the server included", "counts on no secret cohort"),
        ),
    ],
)  # fmt: skip
def test_an_epsilon_is_printed_with_all_that_it_means(
    placement: Any, sampling: Any, said: tuple[str, ...]
) -> None:
    """Its neighbours, its adversary, its secret; its unit and its delta."""
    mechanism, _, promise = build(Privacy(placement=placement, noise=4.0), 3, sampling)
    assert isinstance(mechanism, GaussianMechanism)
    assert promise is not None
    ledger, _ = mechanism.charge((), Asked([0, 1], 2.0, 10, MODEL), {})
    sentence = promise.statement(ledger).sentence
    epsilon = promise.statement(ledger).epsilon_this_run
    for part in (f"epsilon {epsilon:.3g} at delta 1e-06", "unit: a user", *said):
        assert part in sentence


def test_organisations_are_promised_nothing_by_noise_per_user() -> None:
    """Ten of them: the unit must be the person or document inside."""
    with pytest.raises(ConfigError, match="noise per user has no meaning"):
        parse(hostile.vectors(privacy={"placement": "central", "noise": 1.0}))


# --- the account ---------------------------------------------------------------------------------


def test_the_account_of_a_run_and_of_a_configuration(tiny: Path, lexfed: Lexfed) -> None:
    assert lexfed("run", tiny, "--out", "a", *sets(*PRIVATE, CLIENTS)).returncode == 0
    run = lexfed("privacy", "a")
    assert run.returncode == 0, run.stderr
    for part in (
        "after 3 rounds",
        "who gets the model",
        "No promise: the word list",
        "public text",
    ):
        assert part in run.stdout
    plan = lexfed("privacy", tiny, *sets(*PRIVATE, PUBLIC))
    assert plan.returncode == 0, plan.stderr
    for part in ("at its end", "This run: epsilon", "secrets = 'system'", "against: who sees"):
        assert part in plan.stdout
    bare = lexfed("privacy", tiny)
    assert "Nothing is promised to those whose texts" in bare.stdout
    assert lexfed("privacy", "a", "--set", "rounds=4").returncode == 2
    assert lexfed("privacy", "nowhere").returncode == 2


@pytest.mark.slow
def test_a_plan_says_what_noise_a_promise_takes(
    lexfed: Lexfed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lexfed.privacy.planning.FACTORS", (1.0,))  # each takes seconds
    words = ("--epsilon", "2", "--population", "1e4", "--cohort", "100", "--rounds", "20")
    plan = lexfed("privacy", "plan", *words)
    assert plan.returncode == 0, plan.stderr
    row = next(line for line in plan.stdout.splitlines() if "cohorts of 100 " in line)
    z, number, whole = (float(cell) for cell in row.split()[-3:])
    assert epsilon_by_fft([(z, 0.01, 20)], 1e-5) == pytest.approx(2.0, rel=0.01)
    assert number == pytest.approx(z * 0.5 / 100, rel=0.01)
    assert whole == pytest.approx(z * 1000 / 100, rel=0.01)
    assert "every user" in plan.stdout
    assert lexfed("privacy", "plan", "--epsilon", "-1").returncode == 2
    assert lexfed("privacy", "plan", "--cohort", "2e6").returncode == 2


def test_a_plan_warns_of_a_delta_that_would_allow_to_show_somebody(
    lexfed: Lexfed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default was 1e-6 for a million users, and nothing was said."""
    monkeypatch.setattr("lexfed.privacy.planning.table", lambda _: [])  # it takes seconds
    small = ("privacy", "plan", "--population", "1e5")
    said = (
        "note: delta = 1e-05 is not below one in 100,000: it would allow to show one of them to all"
    )
    assert said in lexfed(*small, "--delta", "1e-5").stdout.splitlines()
    for words in (small, (*small, "--delta", "0.9e-5"), ("privacy", "plan")):
        assert "note:" not in lexfed(*words).stdout
    assert "at delta 1e-07 over" in lexfed("privacy", "plan").stdout  # for a million users
    assert "at delta 1e-06 over" in lexfed(*small).stdout


def test_what_is_released_without_noise_stands_in_the_ledger_too(
    tiny: Path, lexfed: Lexfed
) -> None:
    assert lexfed("run", tiny, "--out", "a").returncode == 0
    (bare,) = checkpoint.load(Path("a/checkpoint")).state.ledger
    assert bare == Release("user", Bare("updates were averaged without noise"), 3, what=UNPAID.what)
    assert summary_of(Path("a"))["promise"] is None
    assert summary_of(Path("a"))["experimenter"] is None, "nothing is promised"


def test_a_ledger_comes_back_as_it_was() -> None:
    ledger: Sequence[Release] = (
        Release("user", SampledGaussian(1.0, 0.1), 3, deployed=Gaussian(2.0), what="x"),
        Release("user", Bare("why"), 2, group="half 1", against="everybody"),
    )
    assert accounting.from_json(accounting.to_json(tuple(ledger))) == ledger
    assert accounting.epsilon(tuple(ledger), "user", 1e-5) == float("inf")
