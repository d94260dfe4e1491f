"""What attackers got from lexfed 79332b5: each promise that was broken there, once more.

    PYTHONPATH=CHECKOUT NUMBA_BOUNDSCHECK=1 python benchmarks/breaks_of_79332b5.py OUT.jsonl

CHECKOUT is that commit; `benchmarks/old_breaks.py` makes it, calls this, and runs the tests that
play the same attacks today. So this file speaks the old names, and imports nothing of today's
lexfed.

A play ends in `kept(promise, what the attacker got)`. It writes a line: the promise was kept, or
what was got instead. A play that fails in another way is no play: it is written down as an error.
"""
# ruff: noqa: I001  (which modules are ours is another question in that commit)

import contextlib
import io
import json
import math
import os
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lexfed import cli, files
from lexfed.audit.attackers import THREATS
from lexfed.checkpoint import load as load_checkpoint
from lexfed.federation import Federation, Requests, ServerState, Sum, add_replies, plain
from lexfed.methods import heavy_hitting, row_rules
from lexfed.methods.evaluation import evaluate
from lexfed.methods.parts import loop
from lexfed.methods.proposals import hashes, rows
from lexfed.optim import ServerOptimizer
from lexfed.params import Params, Rows
from lexfed.privacy import accounting, set_union
from lexfed.privacy.accounting import Gaussian, Ledger, Pure, Release, SampledGaussian
from lexfed.privacy.gaussian import GaussianMechanism, Privacy
from lexfed.privacy.mechanism import Asked, NoPrivacy
from lexfed.privacy.promise import Promise, build
from lexfed.privacy.sampling import Everyone, Poisson
from lexfed.runtime.store import Store
from lexfed.seeds import derive, numpy_generator, root, secret_normal
from lexfed.vocabulary import heavy_hitters
from lexfed.vocabulary.agreed import from_bytes, keyed
from lexfed.wire import ClientId, Message, decode, pack, under
from tests.conftest import BAD, GOOD
from tests.unit.test_agreement import TEXTS, Wire, wire

PROMISES, LIARS = "tests/unit/test_promises.py::test_", "tests/unit/test_liars.py::test_"
SECRET = f"{PROMISES}no_secret_of_a_deployment_can_be_computed_from_the_configuration"
BOUNDS = "tests/unit/test_flaws.py::test_no_compiled_loop_leaves_its_arrays"
HOSTILE = "tests/property/test_hostile.py::test_who_was_ever_found_out_has_dropped_out"


class BrokenPromiseError(AssertionError):
    """A promise was; the words are what the attacker got."""


def kept(promise: bool, otherwise: str) -> None:
    if not promise:
        raise BrokenPromiseError(otherwise)


@dataclass(frozen=True)
class Play:
    point: str  # of the review that found it
    promise: str
    now: tuple[str, ...]  # the tests that play it today
    attack: Callable[[], None]  # in a folder of its own


PLAYS: list[Play] = []


def play(point: str, promise: str, *now: str) -> Callable[[Callable[[], None]], None]:
    def add(attack: Callable[[], None]) -> None:
        PLAYS.append(Play(point, promise, now, attack))

    return add


def main(out: Path) -> None:
    torch.set_num_threads(1)
    with out.open("w") as file:
        for one in PLAYS:
            file.write(json.dumps(played(one)) + "\n")


def played(one: Play) -> dict[str, Any]:
    told = {"point": one.point, "promise": one.promise, "now": one.now}
    with tempfile.TemporaryDirectory(prefix="lexfed-play-") as folder:
        os.chdir(folder)
        try:
            one.attack()
        except BrokenPromiseError as broken:
            return {**told, "kept": False, "got": str(broken)}
        except Exception:
            return {**told, "kept": None, "got": traceback.format_exc()}
        finally:
            os.chdir("/")
    return {**told, "kept": True, "got": ""}


# --- small runs -----------------------------------------------------------------------------------

PRIVATE = ("privacy.placement=central", "privacy.noise=1.0", "cohort.sampling=poisson")
PUBLIC = "vocabulary.corpus=rotten_tomatoes"
SYSTEM = "privacy.randomness=system"
WORDS = "the cat sat on a mat while two dogs ran over hills and far away by river".split()  # noqa: SIM905


def lexfed(*words: object) -> None:
    """The command, in this folder."""
    said = io.StringIO()
    sys.argv = ["lexfed", *map(str, words)]
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            cli.main()
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"lexfed {words}: {said.getvalue()}") from end


def run(config: Path, out: str, *settings: str, options: Sequence[str] = ()) -> dict[str, Any]:
    """A run with these settings; its summary."""
    words = [word for setting in settings for word in ("--set", setting)]
    lexfed("run", config, "--out", out, *options, *words)
    summary: dict[str, Any] = json.loads(Path(out, "summary.json").read_text())
    return summary


def texts(name: str, table: Sequence[Mapping[str, object]]) -> Path:
    path = Path.cwd() / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in table))
    return path


def written(text: str) -> Path:
    path = Path("small.toml")
    path.write_text(text)
    return path


def tiny(name: str = "fine") -> Path:
    """Six clients of a classifier; one of them writes a word that nobody else has."""
    said = [(GOOD if i % 2 else BAD)[i % 5] + f" {i}" for i in range(80)]
    said[5] = f"{name} film 5"
    table = [{"text": text, "label": i % 2} for i, text in enumerate(said)]
    return written(
        f'name = "tiny"\nrounds = 3\n[data]\nname = "{texts("texts", table)}"\nclients = 6\n'
        "[model]\nembedding = 4\nhidden = 3\n[cohort]\nsize = 3\n[train]\nbatch = 8\n"
    )


def language(name: str = "the") -> Path:
    """Users of a language model, with private training; one of them writes a word of its own."""
    rng = np.random.default_rng(0)
    often = [0.7, *[0.3 / (len(WORDS) - 1)] * (len(WORDS) - 1)]  # what a sketch of few users finds
    said = [" ".join(rng.choice(WORDS, 12, p=often)) for _ in range(80)]
    table = [{"user": f"u{i % 40}", "text": text} for i, text in enumerate(said)]
    table[0]["text"] += f" {name}"
    return written(
        f'rounds = 2\nmethod = "tokenizer_for_free"\n[data]\nname = "{texts("users", table)}"\n'
        'partition = "user"\nclients = 32\nunseen = 8\ntest = 0.0\nvalidation = 0.0\n[tokenizer]\n'
        f'kind = "word"\nsize = 60\npublic = "{texts("public", table[1:])}"\n[language_model]\n'
        'layers = 1\nwidth = 8\ncontext = 8\n[cohort]\nsize = 6\nsampling = "poisson"\n[train]\n'
        'optimizer = "sgd"\n[privacy]\nplacement = "central"\nnoise = 1.0\n'
    )


def organisations() -> Path:
    rng = np.random.default_rng(0)
    table = [{"text": " ".join(rng.choice(WORDS, 30)), "source": f"s{i % 6}"} for i in range(60)]
    return written(
        f'method = "federated_word2vec"\nrounds = 1\n[data]\nname = "{texts("sources", table)}"\n'
        'partition = "source"\nclients = 6\ntest = 0.2\ntest_of = "each"\n[cohort]\nsize = 6\n'
        "[agreement]\nminimum = 2\n"
        '[word2vec]\ndimension = 8\nheldout_pairs = 50\nqueries = ["cat"]\n'
    )


def sent(folder: str, verb: str, way: str) -> list[tuple[dict[str, Any], Path]]:
    """What a recorded wire holds of these messages."""
    metas = [
        (json.loads(path.read_text()), path.parent) for path in Path(folder).rglob("meta.json")
    ]
    return [(meta, at) for meta, at in metas if (meta["verb"], meta["direction"]) == (verb, way)]


def arrays(folder: Path) -> Params:
    return decode((folder / "arrays.safetensors").read_bytes()).arrays


# --- 1: local noise from the operating system -----------------------------------------------------

MODEL = {"w": torch.zeros(300)}


def candidates_told(noise: float) -> tuple[int, float]:
    """Of 40, by asking of which candidate the reply is whole steps of the grid away; epsilon."""
    mechanism = GaussianMechanism(Privacy("local", 0.5, noise, randomness="system"), 1)
    grid, right = 2.0**-20, 0
    for game in range(40):
        pair = [
            {"w": 0.01 * torch.randn(300, generator=torch.Generator().manual_seed(2 * game + i))}
            for i in range(2)
        ]
        message = Message(meta=dict(mechanism.tell({})))
        reply = mechanism.bound(pair[game % 2], 1, 0.0, message, root(game))["delta/w"]
        steps = [(reply.double() - one["w"].double()) / grid for one in pair]
        right += int(np.argmin([float((s - s.round()).abs().mean()) for s in steps])) == game % 2
    ledger = mechanism.charge((), Asked([0], 1.0, 1, MODEL), {})
    return right, accounting.epsilon(ledger, "user", 1e-6)


@play(
    "1",
    "of two candidate updates the right one is not told through fresh local noise",
    f"{PROMISES}of_two_candidates_the_right_one_is_not_told_through_fresh_local_noise",
)
def two_candidates() -> None:
    games = [candidates_told(noise) for noise in (4.0, 20.0, 80.0)]
    told = ", ".join(f"{right} of 40 at epsilon {epsilon:.2f}" for right, epsilon in games)
    kept(all(8 <= right <= 32 for right, _ in games), told)


# --- 2: released without paying -------------------------------------------------------------------


@play(
    "2",
    "a word of one user is not released under a printed epsilon (`vocabulary.txt`)",
    f"{PROMISES}a_word_list_of_the_users_own_words_takes_the_promise_away",
)
def a_word_in_the_list() -> None:
    epsilon = run(tiny("zyzzyva"), "a", *PRIVATE)["epsilon_this_run"]
    told = "zyzzyva" in Path("a/artifacts/vocabulary.txt").read_text()
    kept(not told or epsilon is None, f"the word stands there; epsilon {epsilon:.2f} is printed")


@play(
    "2",
    'the same of `tokenizer.json` (`tokenizer.start = "oracle"`)',
    f"{PROMISES}an_oracle_tokenizer_takes_the_promise_away",
)
def a_word_in_the_tokenizer() -> None:
    epsilon = run(language("zyzzyva"), "a", "tokenizer.start=oracle")["epsilon_this_run"]
    told = "zyzzyva" in Path("a/artifacts/tokenizer.json").read_text()
    kept(not told or epsilon is None, f"the word stands there; epsilon {epsilon:.2f} is printed")


@play(
    "2",
    "a fork of rounds without noise prints no epsilon",
    f"{PROMISES}a_fork_of_rounds_without_noise_promises_nothing",
    f"{PROMISES}a_run_of_an_earlier_lexfed_wrote_no_bare_rounds_down",
)
def a_fork_of_bare_rounds() -> None:
    config = tiny()
    run(config, "bare", PUBLIC, "rounds=20")
    noisy = (PUBLIC, "rounds=21", *PRIVATE, "privacy.noise=10.4")
    summary = run(config, "fork", *noisy, options=("--from", "bare"))
    epsilon = summary["epsilon_this_run"]
    kept(epsilon is None, f"20 rounds without noise and one with: epsilon {epsilon:.3f}")


@play(
    "2",
    'under local noise, "the server included", no reply tells label counts (`evaluate`)',
    f"{PROMISES}a_deployment_asks_no_user_for_figures",
)
def label_counts() -> None:
    local = ("privacy.placement=local", "privacy.noise=1.0", SYSTEM, PUBLIC)
    summary = run(tiny(), "a", *local, options=("--record-wire", "wire"))
    replies = [arrays(at) for _, at in sent("wire", "evaluate", "up")]
    shares = [float(reply["majority_accuracy"]) for reply in replies]
    said = "the server included" in summary["privacy"]
    exact = ", ".join(f"{share:.3f}" for share in shares)
    kept(not (said and shares), f"the largest label share of {len(shares)} of 6 clients: {exact}")


@play(
    "2",
    "exact figures beside a private model are marked as not to be published",
    f"{PROMISES}figures_made_without_noise_are_marked_as_the_experimenters",
)
def exact_figures() -> None:
    held = ("method=fedevocab", "defences.minimum_words=100", "vocabulary.vectors=hashed:4")
    summary = run(tiny(), "a", *PRIVATE, *held)
    exact = [key for key in ("global_accuracy", "held_back") if summary.get(key) is not None]
    marked = summary.get("experimenter", [])
    found = ", ".join(exact)
    kept(bool(exact) and set(exact) <= set(marked), f"{found} beside an epsilon, unmarked")


# --- 3: what the ledger missed --------------------------------------------------------------------


def nobody(clients: int) -> Federation:
    return Federation(range(clients), lambda verb, requests: iter(()), lambda verb, requests: Sum())


def mechanism_of(placement: str, noise: float, **more: Any) -> GaussianMechanism:
    return GaussianMechanism(Privacy(placement=placement, noise=noise, **more), 1)


@play(
    "3",
    "five kills between charge and release are six charges under local noise",
    f"{PROMISES}five_kills_are_six_charges_under_local_noise",
)
def five_kills() -> None:
    mechanism = mechanism_of("local", 4.0, randomness="system")
    rounds = loop(Everyone(), mechanism, ServerOptimizer(), mechanism)
    state = ServerState(params=MODEL)
    for _ in range(5):
        state = next(rounds(nobody(5), state, until=1, seed=root(0)))
    *_, state = rounds(nobody(5), state, until=1, seed=root(0))
    paid = sum(release.count for release in state.ledger)
    kept(paid == 6, f"6 uploads with fresh noise, {paid} charge")


@play(
    "3",
    "a repeated round draws another cohort, as it is charged",
    f"{PROMISES}a_repeated_round_draws_another_cohort_and_pays_again",
    f"{PROMISES}repeated",
    f"{PROMISES}each_process_of_a_deployment_has_a_secret_of_its_own",
)
def repeats() -> None:
    cohorts: set[tuple[ClientId, ...]] = set()

    def total(verb: str, requests: Requests) -> Sum:
        cohorts.add(tuple(requests))
        return Sum()

    mechanism = mechanism_of("central", 1.0, randomness="system")
    rounds = loop(Poisson(20), mechanism, ServerOptimizer(), mechanism)
    state = ServerState(params=MODEL)
    for _ in range(10):
        *_, state = rounds(replace(nobody(2000), total=total), state, until=1, seed=root(0))
        state = replace(state, round=0)
    printed = accounting.epsilon(state.ledger, "user", 1e-6)
    same = Release("user", SampledGaussian(1 / math.sqrt(10), 0.01))  # one coin, then ten releases
    true = accounting.epsilon((same,), "user", 1e-6)
    kept(len(cohorts) == 10, f"10 releases of {len(cohorts)} cohort: {printed:.2f} for {true:.1f}")


@play(
    "3",
    "a sketch does not pay for local noise",
    f"{PROMISES}a_sketch_does_not_pay_for_local_noise",
)
def sketch_and_local() -> None:
    ledger: Ledger = (Release("user", Pure(2.0)),)
    ledger = mechanism_of("local", 4.0).charge(ledger, Asked([0, 1], 2.0, 4, MODEL), {})
    found = [release.event for release in ledger]
    kept(found == [Pure(2.0), Gaussian(2.0)], "the first local release is left out of the ledger")


@play(
    "3",
    "nor do rounds with central noise (a fork)",
    f"{PROMISES}a_fork_from_central_to_local_noise_pays_for_both_and_holds_against_the_public_only",
)
def central_and_local() -> None:
    asked = Asked([0, 1], 4.0, 4, MODEL)
    ledger = mechanism_of("central", 4.0).charge((), asked, {})
    ledger = mechanism_of("local", 4.0).charge(ledger, asked, {})
    kept(len(ledger) == 2, "the first local release is left out of the ledger")


def composed(*events: tuple[float, float, int]) -> float:
    ledger = tuple(Release("user", SampledGaussian(z, q), count) for z, q, count in events)
    return accounting.epsilon(ledger, "user", 1e-6)


@play(
    "3",
    "a run that is resumed for more rounds keeps what it paid (100, then 2,000)",
    f"{PROMISES}a_deployments_event_is_kept_as_it_was_when_it_was_charged",
)
def relabelled() -> None:
    options = Privacy("central", epsilon=2.0, noise_cohort=1000.0, population=100_000)
    ledger: Ledger = ()
    for rounds in (100, 2000):
        mechanism = GaussianMechanism(options, rounds)
        while sum(release.count for release in ledger) < rounds:
            event = mechanism._event(Asked(range(10), 10.0, 1000, MODEL))
            ledger = accounting.charge(ledger, "user", event)
    _, printed = Promise(mechanism, "poisson").epsilons(ledger)
    noises = [GaussianMechanism(options, rounds)._multiplier(0.01) for rounds in (100, 2000)]
    true = composed((noises[0], 0.01, 100), (noises[1], 0.01, 1900))
    kept(printed > 2.05, f"{printed:.3f} is printed, {true:.3f} is true")


@play(
    "3",
    "halves of the users are drawn from half of the population",
    f"{PROMISES}halves_of_the_users_are_drawn_from_half_of_the_population",
    f"{PROMISES}halves",
)
def halves() -> None:
    options = Privacy("central", epsilon=2.0, noise_cohort=1000.0, population=100_000)
    mechanism, *_ = build(options, 1000, "poisson")
    (release,) = mechanism.deployment((Release("user", Gaussian(1.0), 1000, group="half 1"),))
    z, q = release.event.noise, release.event.probability
    printed, true = (composed((z, rate, 1000)) for rate in (q, 0.02))
    kept(q == 0.02, f"1,000 rounds at q = {q}: {printed:.2f} is printed, {true:.2f} is true")


@play("3", "two forks have noise of their own", f"{PROMISES}forks_do_not_share_noise")
def forks() -> None:
    config, base = tiny(), (*PRIVATE, PUBLIC, "privacy.clip=0.01")
    run(config, "trunk", *base, "rounds=1")
    start, moved = load_checkpoint(Path("trunk/checkpoint")).state.params, []
    for rate in (1.0, 2.0):
        name = f"fork-{rate}"
        run(config, name, *base, "rounds=2", f"server.lr={rate}", options=("--from", "trunk"))
        end = load_checkpoint(Path(name, "checkpoint")).state.params
        moved.append(torch.cat([(end[n] - start[n]).reshape(-1) for n in sorted(start)]) / rate)
    left = float((moved[0] - moved[1]).std() / moved[0].std())
    kept(left > 0.5, f"of the noise {left:.1e} is left in the difference of two releases")


# --- 4: secrets that hang from the seed -----------------------------------------------------------

SERVER = derive(root(0), "server")  # all that config.toml tells
DATA = derive(root(0), "data")
COMMON = derive(DATA, "common")


@play(
    "4",
    'a secret cohort cannot be computed from the configuration (`randomness = "system"`)',
    f"{PROMISES}the_cohort_of_a_deployment_cannot_be_recomputed_from_the_configuration",
)
def cohort() -> None:
    base = (*PRIVATE, PUBLIC, SYSTEM, "data.clients=24")
    run(tiny(), "a", *base, options=("--record-wire", "wire"))
    truth = {(meta["round"], meta["client"]) for meta, _ in sent("wire", "train", "down")}
    seeds = [derive(derive(SERVER, "round", number), "cohort") for number in range(3)]
    guess = {(n, c) for n, seed in enumerate(seeds) for c in Poisson(3).sample(range(24), seed)}
    kept(guess != truth, f"all {len(truth)} that were asked in 3 rounds, and nobody else")


@play(
    "4",
    "nor the flips of a sketch",
    f"{SECRET}[flips of a sketch]",
)
def flips() -> None:
    """Taken off again, each report holds its +1 at one column, which is the word's."""
    config = language()
    found = ("tokenizer.start=heavy_hitters", "heavy_hitters.epsilon=2.0", SYSTEM)
    run(config, "a", *found, options=("--record-wire", "wire"))
    sketch, read, total = heavy_hitters.Sketch(2.0), 0, 0
    place = heavy_hitters.places(sketch, WORDS)
    for meta, at in sent("wire", "sketch", "up"):
        secret = derive(DATA, "client", meta["client"])
        seed = derive(derive(secret, "sketch", meta["step"], meta["ask"]), "flip")
        bare = heavy_hitters.encode(sketch, [heavy_hitters.NO_WORD] * 3, seed)  # the same draws
        anew = np.argwhere(np.unpackbits(bare.bits ^ arrays(at)["bits"].numpy(), axis=1))
        for report in range(3):
            columns = {int(c) for r, c in anew if r == report}
            total += 1
            # where the draws were the same, one column is the word's, and one that of no word
            read += len(columns) <= 2 and bool(columns & set(place[bare.rows[report]].tolist()))
    kept(read == 0, f"the words of {read} of {total} reports, each at epsilon 2")


@play(
    "4",
    "nor the key of hashed words",
    f"{SECRET}[keys of hashes]",
)
def keys() -> None:
    run(organisations(), "a", SYSTEM, options=("--record-wire", "wire"))
    proposed = [arrays(at)["hashes"] for _, at in sent("wire", "propose", "up")]
    names = {name for some in proposed for name in hashes(some)}
    guesses = {keyed(word, derive(COMMON, "words", 0)) for word in WORDS}
    read = len(names & guesses)
    kept(read == 0, f"{read} of {len(names)} hashes are read with a dictionary")


@play(
    "4",
    "nor the noise of a private word list (DP-SIPS)",
    f"{SECRET}[noise of a list]",
)
def sips() -> None:
    """The list again, with its noisy counts, from the weights on the wire and the seed."""
    dp = ("agreement.rule=dp", "agreement.words_per_document=10", "agreement.epsilon=6.0",
          "agreement.delta=0.01", "agreement.hashed=false")  # fmt: skip
    run(organisations(), "a", SYSTEM, *dp, options=("--record-wire", "wire"))
    told: dict[bytes, float] = {}
    for number, step in enumerate(set_union.passes(6.0, 0.01, 10)):
        weights: Counter[bytes] = Counter()
        for meta, at in sent("wire", "disclose", "up"):
            if meta["ask"] == number:
                names = filter(None, (at / "blobs/words").read_bytes().split(b"\n"))
                weights.update(dict(zip(names, arrays(at)["weights"].tolist(), strict=True)))
        told |= set_union.release(weights, step, derive(derive(SERVER, "agree"), "noise", number))
    guess = {name.decode(): max(1, round(w * math.sqrt(10))) for name, w in told.items()}
    found = from_bytes(load_checkpoint(Path("a/checkpoint")).state.vocabulary)
    right = guess == dict(zip(found.tokens, found.counts, strict=True))
    kept(not right, f"the noise on all {len(guess)} counts, exactly")


@play(
    "4",
    "nor the rotation that clients share",
    f"{SECRET}[rotation]",
)
def rotation() -> None:
    turned = ("method=fedevocab", "vocabulary.vectors=hashed:4", "defences.rotation=shared")
    run(tiny(), "a", SYSTEM, *turned, "cohort.size=6")
    truth = Store(Path("a/checkpoint/clients")).load(0, (99, 0)).blobs["rotation"]
    kept(derive(COMMON, "rotation") != truth, "its key, bit for bit")


# --- 5: agreement ---------------------------------------------------------------------------------

OWN = [f"client{i}" for i in range(40)]
HONEST = [["the bank of the market"] * 12 + OWN * 2, ["the bank of the river"] * 12]
FOUR = [*TEXTS, ["the money of the bank for the team"] * 6]


def words_of(ran: Wire) -> set[str]:
    return set(ran.words())


@play(
    "5",
    "a dictionary does not make one organisation's words \"held by two\"",
    *(f"{LIARS}a_dictionary_does_not_make_one_organisations_words_held_by_two[{hashed}-100]"
      for hashed in (True, False)),
)  # fmt: skip
def dictionary() -> None:
    got = [words_of(wire([*HONEST, [" ".join(OWN)] * 100], hashed=h)) for h in (True, False)]
    kept(all(found == {"the", "bank", "of"} for found in got),
         f"{len(got[0] & set(OWN))} of {len(OWN)} words that one alone holds")  # fmt: skip


@play(
    "5",
    "the list's counts do not tell another's",
    f"{LIARS}the_lists_counts_do_not_tell_the_others",
)
def told_counts() -> None:
    told = []
    for n in (9, 10, 11):
        ran = wire([[*HONEST[0], *["deposit"] * n], HONEST[1], ["deposit"]], minimum=1)
        found = from_bytes(ran.agree().vocabulary)
        told.append(found.counts[found.ids["deposit"]] - 1)
    kept(len(set(told)) == 1, f"9, 10 and 11 occurrences are told as {told}")


class Misspelt(Wire):
    liar: ClientId = 0

    def ask(self, verb: str, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        for client, reply in super().ask(verb, requests):
            if verb == "spell" and client == self.liar:
                asked = hashes(requests[client].arrays["hashes"])
                said = ["viagra", *(f"lie{name.hex()}" for name in asked[1:])]
                reply = Message(blobs={"words": "\n".join(said).encode()})
            yield client, reply


@play(
    "5",
    "who spells words wrong changes none that two others hold",
    *(f"{LIARS}who_spells_words_wrong_changes_none_that_two_others_hold[{i}]" for i in range(4)),
)
def speller() -> None:
    honest = wire(FOUR)
    whole, lost, planted = words_of(honest), 0, 0
    for liar in range(4):
        ran = Misspelt(honest.population, honest.options)
        ran.liar = liar
        now = words_of(ran)
        others = [" ".join(own).split() for c, own in enumerate(FOUR) if c != liar]
        safe = {word for word in whole if sum(word in own for own in others) >= 2}
        lost += len(safe - now)
        planted += len(now - whole)
    found = f"{lost} words of two others lost, {planted} planted, in four lists of {len(whole)}"
    kept(not lost and not planted, found)


@play(
    "5",
    "hashes of two agreements have nothing in common",
    f"{LIARS}hashes_of_two_fresh_agreements_have_nothing_in_common",
)
def equal_hashes() -> None:
    names = []
    for seed in (0, 1):
        ran = wire(TEXTS)
        ran.agree(seed=seed)
        ups = [m for verb, way, _, m in ran.messages if (verb, way) == ("propose", "up")]
        names.append({name for message in ups for name in hashes(message.arrays["hashes"])})
    same = len(names[0] & names[1])
    kept(not same, f"{same} of {len(names[0])} are the same")


@play(
    "5",
    "a server can not have spelt what one alone holds",
    f"{LIARS}a_server_can_not_have_spelt_what_one_alone_holds",
)
def spelt() -> None:
    ran = wire(TEXTS)
    chosen, told = words_of(ran), set[str]()
    for _, way, client, message in list(ran.messages):
        if way == "up" and "hashes" in message.arrays:
            ask = Message({"hashes": rows(hashes(message.arrays["hashes"]))}, {"step": 0, "ask": 9})
            ((_, reply),) = ran.ask("spell", {client: ask})
            told |= set(reply.blobs["words"].decode().split("\n")) - {""}
    kept(told <= chosen, f"all {len(told - chosen)} words that the rule did not choose")


# --- 6 and 7: one client that lies ----------------------------------------------------------------

CLOCK = {"step": 0, "ask": 0, "round": 0}


def survives(work: Callable[[], Any]) -> Any:
    """Whatever a liar says, the server goes on."""
    try:
        return work()
    except Exception as error:
        line = (str(error).strip().splitlines() or [""])[0][:80]
        raise BrokenPromiseError(f"the server stops: {type(error).__name__}: {line}") from error


DENSE = {"w": torch.zeros(2, 3), "b": torch.zeros(())}
UPDATE = {
    "delta/w": torch.full((2, 3), 2.0), "delta/b": torch.tensor(2.0),
    "weight": torch.tensor(2.0), "loss": torch.tensor(1.0),
}  # fmt: skip


def averaged(*replies: Params) -> Params:
    """The model after a round of these replies, without noise."""
    request, said = Message(under("model", DENSE), CLOCK), dict(enumerate(map(Message, replies)))
    total = add_replies("train", dict.fromkeys(said, request), iter(said.items()))
    update, _ = NoPrivacy().release(total.update, Asked(range(3), 3, 3, DENSE), {}, b"")
    return ServerOptimizer().step(DENSE, update, {})[0]


def as_without(lie: Params, gone: Sequence[str] = ()) -> None:
    """The model is what it is without the liar, bit for bit."""
    without = averaged(UPDATE, UPDATE)
    reply = {name: value for name, value in {**UPDATE, **lie}.items() if name not in gone}
    after = survives(lambda: averaged(UPDATE, reply, UPDATE))
    got = f"{float(after['w'][0, 0]):.3g} ({str(after['w'].dtype).removeprefix('torch.')})"
    same = after["w"].dtype == torch.float32 and torch.equal(after["w"], without["w"])
    kept(same, f"the model moves by {got} instead of 1 (float32)")


TABLES = dict.fromkeys(("input", "output"), (16, 8))


def vectors() -> Params:
    some = Rows(torch.tensor([0, 3, 15]), torch.ones(3, 8), counts=torch.tensor([1, 2, 3]))
    figures = {name: torch.tensor(1.0) for name in ("weight", "loss", "nodes")}
    update = {**{f"delta/{name}": some for name in TABLES}, **figures}
    return pack(update, "int8", torch.Generator().manual_seed(0))


def moved(*replies: Params) -> Params:
    """The tables after a round of these rows."""
    tables = {name: torch.ones(shape) for name, shape in TABLES.items()}
    said = dict(enumerate(map(Message, replies)))
    request = Message({}, {**CLOCK, "rows": 16, "width": 8})
    total = add_replies("skipgram", dict.fromkeys(said, request), iter(said.items()))
    rule, asked = row_rules.RowRule("add_rare", 200.0), Asked(range(3), 3, 3, tables)
    update, _ = rule.release(total.update, asked, row_rules.start(tables, False), b"")
    return row_rules.RowStep().step(tables, update, {})[0]


def rows_as_without(lie: Callable[[Params], Params]) -> None:
    honest = vectors()
    without = moved(honest, honest)
    after = survives(lambda: moved(honest, {**honest, **lie(honest)}, honest))
    kept(torch.equal(after["input"], without["input"]), "rows move as the liar says")


def one_row(height: int, kind: torch.dtype, width: int) -> Params:
    return {
        "delta/nowhere#ids": torch.zeros(height, dtype=kind),
        "delta/nowhere#values": torch.ones(height, width),
    }


def scale(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Params], Params]:
    return lambda honest: {"delta/input#scale": change(honest["delta/input#scale"])}


def sketched(change: Callable[[Params], Params]) -> None:
    """The words that a sketch finds, one of five users being a liar."""
    sketch, options, liars = heavy_hitters.Sketch(8.0), heavy_hitting.HeavyHitters(), set[int]()

    def ask(verb: str, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        for client in requests:
            one = heavy_hitters.encode(sketch, ["cat", "mat", "dogs"], root(client))
            said = {"rows": torch.from_numpy(one.rows), "bits": torch.from_numpy(one.bits)}
            yield client, Message(change(said) if client in liars else said)

    federation = Federation(range(5), ask, plain(ask))
    find = partial(heavy_hitting._by_sketch, WORDS, federation, ServerState(), options, "", root(0))
    honest, _ = find()
    liars.add(1)
    counts, _ = survives(find)
    kept(counts.keys() == honest.keys(), "other words are found")


def voted() -> None:
    options, liars = heavy_hitting.HeavyHitters(by="triehh", epsilon=40.0, length=4), set[int]()

    def ask(verb: str, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        for place, client in enumerate(requests):
            level = int(requests[client].meta["level"])
            yield client, Message(blobs={"vote": b"\xff" if place in liars else b"the "[:level]})

    federation = Federation(range(400), ask, plain(ask))
    find = partial(heavy_hitting._by_votes, federation, ServerState(), options, "", root(0))
    honest, _ = find()
    liars.add(0)
    counts, _ = survives(find)
    kept(counts == honest, "other words are found")


SCORES = ("accuracy", "local_accuracy", "error", "local_error", "majority_accuracy", "macro_f1")
SCORED = {
    **{name: torch.tensor(0.5, dtype=torch.float64) for name in SCORES},
    **{n: torch.tensor(9.0, dtype=torch.float64) for n in ("texts", "parameters_private")},
}


def scored(lie: Params, gone: Sequence[str] = ()) -> None:
    """What the server makes of three clients' figures."""
    wrong = {name: value for name, value in {**SCORED, **lie}.items() if name not in gone}

    def figures_of(*said: Params) -> dict[str, float]:
        replies = list(enumerate(map(Message, said)))
        return evaluate(lambda verb, requests: iter(replies), ServerState(), range(3), "test")

    figures_of(SCORED, SCORED)
    figures = survives(lambda: figures_of(wrong, SCORED, SCORED))
    mean = figures["global_accuracy_mean"]
    kept(math.isfinite(mean), f"the mean accuracy is {mean}")


NAN = math.nan
FILLED = {
    "no number": {"delta/w": torch.full((2, 3), NAN)},
    "a negative weight": {"weight": torch.tensor(-5.0)},
    "a weight that is no number": {"weight": torch.tensor(NAN)},
    "a weight of 1e38": {"weight": torch.tensor(1e38)},
    "a delta twice as wide": {"delta/w": torch.full((2, 3), 2.0, dtype=torch.float64)},
}
# the names are those of the cases in tests/data/hostile.json
LIES: Mapping[str, Mapping[str, Callable[[], None]]] = {
    "6": {
        "a scale of no columns": partial(rows_as_without, scale(lambda s: s[:, :0])),
    },
    "7": {
        "rows under an unknown name": partial(as_without, one_row(1, torch.int64, 1)),
        "counts that are one number": partial(
            rows_as_without, lambda _: {"delta/input#counts": torch.tensor(1)}
        ),
        "a scale without its second dimension": partial(rows_as_without, scale(lambda s: s[:, 0])),
        "a scale of half precision": partial(rows_as_without, scale(lambda s: s.half())),
        "an unknown table": partial(rows_as_without, lambda _: one_row(1, torch.int32, 8)),
        "a sketch without rows": partial(sketched, lambda said: {"bits": said["bits"]}),
        "a negative row of a sketch": partial(
            sketched, lambda said: {**said, "rows": torch.full_like(said["rows"], -1)}
        ),
        "a vote that is no UTF-8": voted,
        "a score that is missing": partial(scored, {}, ["accuracy"]),
        "no score at all": partial(scored, {}, list(SCORED)),
        "a score that is a table": partial(scored, {"accuracy": torch.zeros(2).double()}),
        "a score that is no number": partial(scored, {"accuracy": torch.tensor(NAN).double()}),
        **{name: partial(as_without, lie) for name, lie in FILLED.items()},
        "no weight": partial(as_without, {}, ["weight"]),
    },
}
PLAYS.extend(
    Play(
        point,
        f"a client that sends *{case}* has dropped out",
        (f"{HOSTILE}[{case}]", *([BOUNDS] if point == "6" else [])),
        attack,
    )
    for point, cases in LIES.items()
    for case, attack in cases.items()
)  # fmt: skip


# --- 8: smaller -----------------------------------------------------------------------------------


@play(
    "8",
    "sums of grid values are exact",
    f"{PROMISES}sums_of_grid_numbers_are_integer_sums",
    "tests/unit/test_flaws.py::test_integers_add_up_exactly_in_any_order_and_in_any_blocks",
)
def float_sums() -> None:
    mechanism = mechanism_of("central", 0.0, randomness="system")
    message, said = Message(under("model", MODEL), {**CLOCK, **mechanism.tell({})}), {}
    for client in range(1000):
        # users whose updates point one way, as they do early in training
        delta = {"w": 1 + torch.rand(300, generator=torch.Generator().manual_seed(client))}
        said[client] = Message(pack(mechanism.bound(delta, 1, 0.0, message, b"")))
    total = plain(lambda verb, requests: ((client, said[client]) for client in requests))(
        "train", dict.fromkeys(said, message)
    )
    exact = sum(one.arrays["delta/w"].double() for one in said.values())
    off = float((total.update["delta/w"].double() - exact).abs().sum() / 2.0**-20)
    kept(off == 0, f"1,000 clients' sums are off by {off:,.0f} steps in 300 numbers")


@play(
    "8",
    "adaptive clipping works with fresh noise at clip 0.01 and a cohort of 1,000",
    f"{PROMISES}adaptive_clipping_works_with_fresh_noise_at_any_clip[0.01-1000.0]",
)
def adaptive() -> None:
    def release(clip: float, cohort: float) -> None:
        mechanism = mechanism_of("central", 1.0, clip=clip, quantile=0.5, randomness="system")
        total = {"unclipped": torch.tensor(cohort / 2)}
        mechanism.release(total, Asked(range(10), cohort, 10**6, MODEL), {}, root(0))

    release(0.5, 50.0)
    survives(partial(release, 0.01, 1000.0))


@play(
    "8",
    "the recorded wire is readable by its owner alone",
    *(f"tests/unit/test_recording.py::test_its_owner_alone_may_read_it[{n}]" for n in (0, 2)),
)
def open_wire() -> None:
    run(tiny(), "a", options=("--record-wire", "wire"))
    everything = [Path("wire"), *Path("wire").rglob("*")]
    others = [path for path in everything if path.stat().st_mode & 0o077]
    kept(not others, f"{len(others)} of {len(everything)} files and folders are readable by all")


@play(
    "8",
    "the folder is on disk after a rename",
    "tests/unit/test_files.py::test_the_folder_is_on_disk_after_the_rename",
)
def synced() -> None:
    done: list[str] = []
    fsync, rename = os.fsync, os.replace

    def sync(descriptor: int) -> None:
        done.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        fsync(descriptor)

    try:
        os.fsync = sync
        os.replace = lambda one, other: (done.append("rename"), rename(one, other))  # type: ignore[assignment]
        files.write_atomically(Path("a").resolve(), b"x")
    finally:
        os.fsync, os.replace = fsync, rename
    kept(done == ["file", "rename", "folder"], f"only: {', '.join(done)}")


@play(
    "8",
    "secret numbers come from a cipher",
    "tests/unit/test_seeds.py::test_secret_numbers_are_a_ciphers_and_no_usual_generators",
)
def generator() -> None:
    usual = numpy_generator(root(0)).standard_normal((5,), dtype=np.float32)
    same = bool(np.array_equal(usual, secret_normal(root(0), 5).numpy()))
    kept(not same, "they are PCG64's, whose state can be computed from enough of them")


@play(
    "8",
    "the audit lays the uploads of all clients beside each other to find a shared rotation",
    "tests/unit/test_alignment.py::test_a_few_short_uploads_give_a_shared_rotation_away",
    "tests/unit/test_alignment.py::test_axes_laid_on_axes_are_the_rotation_unless_there_are_none",
)
def attackers() -> None:
    who = [name for name, words in THREATS.items() if "uploads" in words and "rotation" in words]
    kept(bool(who), f"none of its {len(THREATS)} attackers does")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
