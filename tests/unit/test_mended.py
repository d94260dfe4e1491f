"""What a server could take that nobody had granted: words by votes, tables by a warm start, updates
by a clip of its own.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lexfed.core.errors import NotAgreedError
from lexfed.core.params import Params
from lexfed.core.seeds import root
from lexfed.federation import ServerState
from lexfed.language.heavy_hitters import SKETCH, SKETCHED, VOTE, VOTED, HeavyHitters, handlers
from lexfed.methods.lg_fedavg import LGFedAvg, lg_fedavg
from lexfed.privacy import accounting
from lexfed.privacy.accounting import Bare
from lexfed.privacy.gaussian import GaussianMechanism, Privacy, norm
from lexfed.runtime.simulation import Site, simulate
from lexfed.runtime.store import Store
from lexfed.site.policy import Policy, RefusedError
from lexfed.site.site_book import Spent, charged
from lexfed.vocabulary.learned import TokenizerOptions
from lexfed.wire import Message, below, decode, encode, unpack
from tests import hostile
from tests.hostile_server import FEDERATION, NOISE, Hostile, desk, organisation, written
from tests.unit.test_fedevocab import LATER, PEOPLE, parts
from tests.unit.test_site import refused

# --- words ----------------------------------------------------------------------------------------

LANGUAGE = {
    "method": "tokenizer_for_free", "fedevocab": None, "model": None, "data": {"clients": 3},
    "tokenizer": {
        "kind": "bpe", "size": 300, "public": "rotten_tomatoes", "start": "heavy_hitters"
    },
    "privacy": {"placement": "local", "noise": 100.0}, "language_model": {"width": 4},
    "heavy_hitters": {"by": "cms", "epsilon": 1e-3, "epsilon_of": "user"},
}  # fmt: skip
OWN = Policy(methods=("tokenizer_for_free",), epsilon=100.0, noise="own")


def careful(folder: Path) -> Hostile:
    """A site that counts only its own noise, in a federation that sketches words."""
    return Hostile.joined(
        folder, written(**LANGUAGE), methods=("tokenizer_for_free",), epsilon=1.0, noise="own"
    )


def test_no_vote_is_had_for_the_price_of_a_sketch(tmp_path: Path) -> None:
    server = careful(tmp_path)
    vote = Message(meta={"step": 1, "ask": 0, "round": 0, "level": 1}, blobs={"words": b""})
    refused(server, server.send(server.letter("ask", encode(vote), "vote")), "vote")
    assert server.ledger["exchanges"] == 0


def test_the_sketch_that_was_agreed_is_answered(tmp_path: Path) -> None:
    server = careful(tmp_path)
    shape = {"words": 3, "last_row": 63, "bytes": 128}
    sketch = Message(
        meta={"step": 1, "ask": 0, "round": 0, **shape}, blobs={"words": b"film\nfine\npoor"}
    )
    answer = server.send(server.letter("ask", encode(sketch), "sketch"))
    assert answer is not None
    assert answer.kind == "reply", answer.reason
    (release,) = accounting.from_json(server.ledger["ledger"])
    assert release.what == SKETCHED


@pytest.mark.parametrize(
    ("start", "by", "verbs"),
    [
        ("public", "cms", set()),
        ("public", "triehh", set()),
        ("heavy_hitters", "cms", {"sketch", "sketch-sum"}),
        ("heavy_hitters", "triehh", {"vote"}),
    ],
)
def test_a_client_answers_what_its_configuration_uses(start: str, by: Any, verbs: set[str]) -> None:
    texts = TokenizerOptions(kind="bpe", size=300, start=start)
    assert {verb.name for verb in handlers(HeavyHitters(by=by), texts)} == verbs


def test_a_release_pays_for_its_own_verb_alone() -> None:
    """Whatever handlers there are: a sketch is not a vote, nor a vote a sketch."""
    for scene, verb in (("sketch", VOTE), ("votes", SKETCH)):
        assembly = hostile.scene(scene)
        free = replace(OWN, epsilon=None, noise="any")
        (release,) = charged(Spent(), free, assembly, verb, f"{FEDERATION} 1").ledger
        assert isinstance(release.event, Bare), scene
        with pytest.raises(RefusedError, match="without noise"):
            charged(Spent(), replace(free, epsilon=100.0), assembly, verb, f"{FEDERATION} 1")


@pytest.mark.parametrize("epsilon", [1.0, 100.0])
def test_a_vote_is_refused_where_only_own_noise_counts(epsilon: float) -> None:
    votes, clock = hostile.scene("votes"), f"{FEDERATION} 1"
    with pytest.raises(RefusedError, match=r"policy\.noise"):
        charged(Spent(), replace(OWN, epsilon=epsilon), votes, VOTE, clock)
    trusting = charged(Spent(), replace(OWN, noise="any"), votes, VOTE, clock)
    assert [release.what for release in trusting.ledger] == [VOTED]
    sketched = charged(Spent(), OWN, hostile.scene("sketch"), SKETCH, clock)
    assert [release.what for release in sketched.ledger] == [SKETCHED]


# --- LG-FedAvg ------------------------------------------------------------------------------------

TABLE = "embedding.weight"


def local_and_global(folder: Path, warm: int) -> Hostile:
    terms = written(
        method="lg_fedavg", fedevocab=None, lg_fedavg={"warm": warm},
        vocabulary={"corpus": "rotten_tomatoes", "size": 300},
    )  # fmt: skip
    server = Hostile(desk(organisation(folder, methods=("lg_fedavg",))), terms)
    server.enters()
    return server


def at(message: Message, step: int, number: int) -> Message:
    return replace(message, meta={**message.meta, "step": step, "round": number})


def upper(message: Message) -> Message:
    return replace(message, arrays={k: v for k, v in message.arrays.items() if TABLE not in k})


def handed_out(message: Message, value: float) -> Message:
    table = torch.full_like(message.arrays[f"model/{TABLE}"], value)
    clock = {name: message.meta[name] for name in ("step", "ask", "round")}
    return Message({f"start/{TABLE}": table}, clock)


def kept(server: Hostile, step: int) -> torch.Tensor:
    """The private table, after this step."""
    store = server.desk.federations[FEDERATION].site.store
    return store.load(0, (step + 1, 0)).params[TABLE]


def test_without_a_warm_start_nothing_is_warmed(tmp_path: Path) -> None:
    server = local_and_global(tmp_path, 0)
    refused(server, server.ask("warm"), "'warm' is no verb of lg_fedavg")
    assert server.ask("train", upper(server.request())).kind == "reply"


def test_the_whole_table_leaves_in_the_warm_start_alone(tmp_path: Path) -> None:
    server = local_and_global(tmp_path, 1)
    asked = server.request()
    assert f"delta/{TABLE}" in unpack(decode(server.ask("warm", asked).body).arrays)
    late = server.ask("warm", at(asked, 2, 1))
    assert late.kind == "refusal"
    assert "warm start is over" in server.log
    assert server.ask("install", handed_out(at(asked, 2, 1), 0.5)).kind == "reply"
    # a server that turns its rounds back, and not its steps
    assert server.ask("warm", at(asked, 3, 0)).kind == "refusal"
    assert server.ask("train", upper(at(asked, 3, 1))).kind == "reply"
    assert server.ask("warm", at(asked, 4, 0)).kind == "refusal"


def test_the_private_table_is_handed_out_once(tmp_path: Path) -> None:
    server = local_and_global(tmp_path, 0)
    asked = server.request()
    assert server.ask("install", handed_out(at(asked, 1, 0), 0.5)).kind == "reply"
    # the server was killed, and asks again at the same clock
    assert server.ask("install", handed_out(at(asked, 1, 0), 0.25)).kind == "reply"
    assert torch.equal(kept(server, 1), torch.full_like(kept(server, 1), 0.25))
    assert server.ask("train", upper(at(asked, 2, 0))).kind == "reply"
    trained = kept(server, 2)
    assert server.ask("install", handed_out(at(asked, 3, 1), 0.0)).kind == "refusal"
    assert "handed out once" in server.log
    assert torch.equal(kept(server, 3), trained)


def test_more_rounds_do_not_warm_what_was_cut(tmp_path: Path) -> None:
    """A run of fewer rounds than its warm start, which is granted more later."""
    options, store = LGFedAvg(warm=3), Store(tmp_path)
    last = ServerState()
    for rounds in (2, 4):
        method = lg_fedavg(parts(rounds=rounds), options)
        last = list(method.server(simulate(Site(method, PEOPLE, store)), root(0), last))[-1]
        tables = [store.load(client, LATER).params[TABLE] for client in range(2)]
        assert torch.equal(*tables) == (rounds == 2), "handed out, then each one's own"
    assert last.round == 4


# --- the clip -------------------------------------------------------------------------------------

LONG: Params = {"w": torch.full((3, 4), 2.0)}
TIGHT = Privacy(placement="central", clip=0.001, noise=4.0)


def left(options: Privacy, clip: float, rounds: int = 1) -> float:
    """How long an update is that leaves, where the server asks for this clip."""
    told = Message(meta={"clip": clip})
    reply = GaussianMechanism(options, rounds).bound(LONG, 1, 0.0, told, root(1))
    return norm(below("delta", reply))  # type: ignore[arg-type]


@pytest.mark.parametrize("clip", [1e6, 0.002, math.inf, math.nan])
def test_no_update_is_longer_than_the_clients_own_clip(clip: float) -> None:
    assert left(TIGHT, clip) == pytest.approx(0.001, rel=1e-5)


def test_a_shorter_clip_is_the_servers_to_ask_for() -> None:
    assert left(TIGHT, 0.0005) == pytest.approx(0.0005, rel=1e-5)


@pytest.mark.parametrize("clip", [-1e6, -0.001, 0.0])
def test_a_clip_is_above_zero(clip: float) -> None:
    """A negative one would make updates longer."""
    for placement in ("central", "local"):
        with pytest.raises(NotAgreedError, match="above 0"):
            left(replace(TIGHT, placement=placement), clip)  # type: ignore[arg-type]


def test_local_noise_is_of_the_clip_that_was_used() -> None:
    local = GaussianMechanism(replace(TIGHT, placement="local"), 1)
    replies = [
        local.bound(LONG, 1, 0.0, Message(meta={"clip": clip}), root(1)) for clip in (0.001, 1e6)
    ]
    assert torch.equal(replies[0]["delta/w"], replies[1]["delta/w"])  # type: ignore[arg-type]


def test_an_adaptive_clip_grows_no_faster_than_its_rule() -> None:
    adaptive = replace(TIGHT, quantile=0.5, clip_lr=0.2)
    most = 0.001 * math.exp(0.2 * 0.5 * 11)
    assert left(adaptive, 1e6, rounds=10) == pytest.approx(most, rel=1e-5)
    assert math.isfinite(left(adaptive, 1e6, rounds=10**6))
    # the honest server's, had everybody clipped in each of ten rounds
    honest = 0.001 * math.e
    assert left(adaptive, honest, rounds=10) == pytest.approx(honest, rel=1e-5)


def test_a_site_keeps_the_clip_of_its_terms(tmp_path: Path) -> None:
    terms = written(privacy={**NOISE["central"], "clip": 0.001})
    server = Hostile.joined(tmp_path, terms, epsilon=5.0)
    grid = 2.0**-20
    answer = server.ask("train", clip=1e6, limit=1e6, grid=grid)
    assert answer.kind == "reply", answer.reason
    steps = unpack(decode(answer.body).arrays)
    moved = {name: dense.double() * grid for name, dense in below("delta", steps).items()}
    assert 0 < norm(moved) <= 0.001
