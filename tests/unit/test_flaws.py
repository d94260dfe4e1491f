"""What the server takes of a reply: grids, weights, clocks and turns; and that integers add up."""

import math
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lexfed.core.params import Rows
from lexfed.core.seeds import root
from lexfed.experiment.assembly import assemble
from lexfed.experiment.config import parse
from lexfed.federation import (
    Federation,
    Requests,
    ServerState,
    Sum,
    add_replies,
    add_up,
    gated,
    plain,
    sound,
)
from lexfed.learning.training_verbs import TRAIN
from lexfed.privacy.mechanism import Asked, NoPrivacy
from lexfed.runtime.simulation import simulate, site_of
from lexfed.runtime.store import Store
from lexfed.wire import (
    Array,
    ClientId,
    Form,
    Message,
    Verb,
    decode,
    echoing,
    encode,
    flaw,
    pack,
    under,
    unpack,
)
from lexfed.wire.verbs import CLOCK, LARGEST
from lexfed.word2vec.row_rules import RowRule, start
from lexfed.word2vec.vector_verbs import SKIPGRAM
from tests.conftest import ROOT
from tests.hostile import classifier

CLOCKED = {"step": 3, "ask": 1, "round": 2}
MODEL = {"model/w": torch.zeros(2, 3), "model/b": torch.zeros(())}
PLAIN = Message(MODEL, {**CLOCKED, "most_texts": 100})


def judged(verb: Verb, request: Message, reply: Message) -> str | None:
    """What is wrong with a reply that says which request it answers."""
    return flaw(verb, request, echoing(request, reply))


def trained(**more: Tensor) -> dict[str, Tensor]:
    zeros = {"delta/w": torch.zeros(2, 3), "delta/b": torch.zeros(()), "weight": torch.tensor(1.0)}
    return {**zeros, **{name.replace("_", "/"): value for name, value in more.items()}}


# --- whole steps of a grid -----------------------------------------------------------------------

GRID = 2.0**-19
GRIDDED = Message(MODEL, {**CLOCKED, "clip": 0.5, "limit": 0.5 * (1 + 1e-4), "grid": GRID})
STEPS = int(0.5 / GRID)  # as long as the clip


def steps(first: int, kind: torch.dtype = torch.int64, **more: Tensor) -> Message:
    w = torch.zeros(2, 3, dtype=kind)
    w[0, 0] = first
    return Message({"delta/w": w, "delta/b": torch.zeros((), dtype=kind), **more})


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (steps(STEPS), None),
        (steps(-STEPS, unclipped=torch.tensor(-0.5)), None),
        (steps(STEPS + 100), "longer than the clip"),
        (steps(2**47), "longer than the clip"),
        (steps(2**62), "'delta/' is out of its range"),
        (steps(1, unclipped=torch.tensor(0.25)), "'unclipped' is out of its range"),
        (steps(1, weight=torch.tensor(1.0)), "a name that was not asked for"),
        (steps(1, torch.int32), "'delta/' has another dtype"),
        (steps(0, torch.float32), "'delta/' has another dtype"),
        (steps(0, torch.float64), "'delta/' has another dtype"),
        (Message({"delta/w": torch.zeros(2, 3, dtype=torch.int64)}), "something is missing"),
        (Message(), "something is missing"),
        (
            Message({**steps(1).arrays, "delta/b": torch.zeros(1, dtype=torch.int64)}),
            "'delta/' has another shape",
        ),
    ],
)
def test_with_a_grid_updates_are_whole_steps_no_longer_than_the_clip(
    reply: Message, reason: str | None
) -> None:
    assert judged(TRAIN, GRIDDED, reply) == reason


CLIPPED = Message(MODEL, {**CLOCKED, "clip": 0.5, "limit": 0.5 * (1 + 1e-4)})


@pytest.mark.parametrize(
    ("first", "bit", "reason"),
    [
        (0.5, torch.tensor(0.5), None),
        (0.51, torch.tensor(0.5), "longer than the clip"),
        (1e30, torch.tensor(0.5), "'delta/' is out of its range"),
        (math.nan, torch.tensor(0.5), "'delta/' is no number"),
        (math.inf, torch.tensor(0.5), "'delta/' is no number"),
        (0.5, torch.full((2,), 0.5), "'unclipped' has another shape"),
        (0.5, torch.tensor(0.5j), "'unclipped' has another dtype"),
        (0.5j, torch.tensor(0.5), "'delta/' has another dtype"),
    ],
)
def test_an_update_is_measured_once_and_every_lie_in_it_is_seen(
    first: complex, bit: Tensor, reason: str | None
) -> None:
    """The length of the whole bounds each number: who is within it is not looked at again."""
    w = torch.zeros(2, 3, dtype=torch.complex64 if isinstance(first, complex) else torch.float32)
    w[1, 2] = first
    reply = Message({"delta/w": w, "delta/b": torch.zeros(()), "unclipped": bit})
    assert judged(TRAIN, CLIPPED, reply) == reason


def test_without_a_limit_steps_of_a_grid_are_bounded_all_the_same() -> None:
    """Local noise may be of any length, but sums must stay exact."""
    local = Message(MODEL, {**CLOCKED, "clip": 0.5, "grid": GRID})
    assert judged(TRAIN, local, steps(int(LARGEST))) is None
    assert judged(TRAIN, local, steps(int(LARGEST) + 1)) == "'delta/' is out of its range"


def test_without_a_grid_whole_numbers_are_refused() -> None:
    for request in (PLAIN, Message(MODEL, {**CLOCKED, "clip": 0.5, "limit": 0.50005})):
        assert judged(TRAIN, request, Message({**steps(0).arrays, **unclipped(request)})) == (
            "'delta/' has another dtype"
        )


def unclipped(request: Message) -> dict[str, Tensor]:
    """What else a reply to this request holds."""
    return {} if "clip" in request.meta else {"weight": torch.tensor(1.0)}


def test_integers_add_up_exactly_in_any_order_and_in_any_blocks() -> None:
    """1,000 clients; in float32 the same sum is off by thousands of steps."""
    draw = random.Random(0)
    said = {k: [draw.randint(-(2**40), 2**40) for _ in range(6)] for k in range(1000)}
    request = Message(MODEL, {**CLOCKED, "clip": 1.0, "grid": GRID})
    truth = [sum(column) for column in zip(*said.values(), strict=True)]

    def ask(verb: Verb, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        for client in requests:
            w = torch.tensor(said[client]).reshape(2, 3)
            reply = Message({"delta/w": w, "delta/b": torch.tensor(client)})
            yield client, echoing(request, reply)

    cohort = list(said)
    for _ in range(3):
        requests = dict.fromkeys(cohort, request)
        of_blocks, at_once = (
            plain(ask)(TRAIN, requests),
            add_replies(TRAIN, requests, ask(TRAIN, requests)),
        )
        halves = [dict.fromkeys(half, request) for half in (cohort[:317], cohort[317:])]
        sent = [crossed(add_replies(TRAIN, half, ask(TRAIN, half))) for half in halves]
        for total in (of_blocks, at_once, add_up(sent)):
            assert total.clients == 1000
            assert whole(total.update["delta/w"]) == truth
            assert whole(total.update["delta/b"]) == [sum(cohort)]
        draw.shuffle(cohort)
    floats = sum(torch.tensor(row, dtype=torch.float32) for row in said.values())
    assert [int(x) for x in floats.tolist()] != truth  # type: ignore[union-attr]


def crossed(total: Sum) -> Sum:
    """As a worker's sum comes to the server."""
    return Sum(unpack(decode(encode(Message(pack(total.update)))).arrays), total.clients)


def whole(value: object) -> list[int]:
    assert isinstance(value, Tensor)
    assert value.dtype == torch.int64
    return value.reshape(-1).tolist()


# --- weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [1.0, 100.0])
def test_a_weight_is_at_most_what_was_agreed(weight: float) -> None:
    assert judged(TRAIN, PLAIN, Message(trained(weight=torch.tensor(weight)))) is None
    for bad in (weight + 100, 0.5, 0.0, -weight, 1e38):
        reply = Message(trained(weight=torch.tensor(bad)))
        assert judged(TRAIN, PLAIN, reply) == "'weight' is out of its range"


def test_who_has_more_texts_says_the_most_that_count() -> None:
    update = NoPrivacy(most=10).bound({"w": torch.ones(2)}, 25, 0.5, Message(), b"")
    assert update["weight"] == torch.tensor(10.0)
    assert torch.equal(update["delta/w"], torch.full((2,), 10.0))  # type: ignore[arg-type]
    assert NoPrivacy(most=10).tell({}) == {"most_texts": 10}


def test_the_most_texts_of_a_configuration_reach_clients_and_server(tmp_path: Path) -> None:
    """All texts of a client count for two, and an honest client is heard."""
    assembly = assemble(parse(classifier(aggregation={"most_texts": 2}, rounds=1)))
    assert min(assembly.population.size(client) for client in range(6)) > 2
    seen: list[tuple[Message, Message]] = []
    federation = simulate(site_of(assembly, Store(tmp_path)))

    def ask(verb: Verb, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        for client, reply in federation.ask(verb, requests):
            seen.append((requests[client], reply))
            yield client, reply

    tapped = Federation(federation.clients, ask, plain(ask))
    *_, last = assembly.method.server(tapped, root(0), ServerState())
    assert last.round == 1
    assert [request.meta["most_texts"] for request, _ in seen] == [2] * 6
    assert [float(reply.arrays["weight"]) for _, reply in seen] == [2.0] * 6
    assert not federation.refused


# --- how far a liar can move things ---------------------------------------------------------------


def test_a_plain_mean_can_be_moved_by_ten_million_a_number_and_no_further() -> None:
    for move, reason in ((1e7, None), (1.001e7, "'delta/' is out of its range")):
        for sign in (1, -1):
            lie = trained(delta_w=torch.full((2, 3), sign * move))
            assert flaw(TRAIN, PLAIN, echoing(PLAIN, Message(lie))) == reason


TABLE = Message(
    {"rows/input#ids": torch.empty(0, dtype=torch.int32), "rows/input#values": torch.empty(0, 4)},
    {**CLOCKED, "since": 0, "version": 1, "rows": 9, "width": 4, "most_pairs": 1000},
)


def moved_row(value: float, pairs: int) -> Message:
    row = Rows(torch.tensor([2]), torch.full((1, 4), value), counts=torch.tensor([pairs]))
    figures = {name: torch.tensor(1.0) for name in ("weight", "loss", "nodes")}
    return echoing(TABLE, Message(pack({"delta/input": row, **figures})))


def test_a_row_of_word_vectors_can_be_moved_by_forty_a_number_and_no_further() -> None:
    for value, pairs, reason in (
        (40.0, 1000, None),
        (-40.0, 1, None),
        (40.1, 1, "'delta/' is out of its range"),
        (1.0, 1001, "'delta/' is out of its range"),
    ):
        assert flaw(SKIPGRAM, TABLE, moved_row(value, pairs)) == reason


def test_with_row_cap_a_row_can_be_held_still_by_claiming_the_most_pairs() -> None:
    """What is not withstood, so that nobody is told otherwise."""
    tables = {"input": torch.zeros(9, 4)}
    asked = Asked(range(2), 2, 2, tables)
    moves = []
    for claimed in (1, 1000):
        said = enumerate((moved_row(1.0, 10), moved_row(0.0, claimed)))
        total = add_replies(SKIPGRAM, dict.fromkeys(range(2), TABLE), said)
        rule = RowRule("row_cap", 32.0)
        update, _ = rule.release(total.update, asked, start(tables, False), b"")
        moved = update["input"]
        assert isinstance(moved, Rows)
        moves.append(float(moved.values[0, 0]))
    assert moves == [1.0, pytest.approx(32 / 1010)]


# --- whose turn it is ----------------------------------------------------------------------------


def test_a_reply_says_which_request_it_answers(tmp_path: Path) -> None:
    """The client's runtime says it, whatever a handler does; an answer to another one is stale."""
    assembly = assemble(parse(classifier()))
    site = site_of(assembly, Store(tmp_path))
    first = next(assembly.method.server(simulate(site), root(0), ServerState()))
    request = Message(under("model", first.params), {**CLOCKED, "most_texts": 9})
    reply = site.answer(TRAIN, 0, request)
    assert reply is not None
    assert reply.meta == {"step": 3, "ask": 1}
    assert flaw(TRAIN, request, reply) is None
    for other in ({"step": 2}, {"ask": 0}, {"step": "3"}, {"step": math.nan}):
        late = Message(request.arrays, {**request.meta, **other})
        assert flaw(TRAIN, late, reply) == "stale"
    for silent in ({}, {"step": 3}, {"ask": 1}):
        unsaid = Message(reply.arrays, silent)
        assert flaw(TRAIN, request, unsaid) == "stale", "who leaves it out may answer any request"
        assert not list(sound(TRAIN, {0: request}, iter([(0, unsaid)]), Counter()))


def test_of_each_client_that_was_asked_the_first_reply_counts_in_its_turn() -> None:
    good, bad = (
        echoing(PLAIN, Message(arrays))
        for arrays in (trained(), trained(weight=torch.tensor(-1.0)))
    )
    said = [(5, good), (9, good), (5, good), (3, bad), (3, good), (5, bad), (8, good), (4, good)]
    requests = dict.fromkeys((5, 3, 4, 8), PLAIN)
    refused: Counter[str] = Counter()
    heard = [client for client, _ in sound(TRAIN, requests, iter(said), refused)]
    assert heard == [5, 8]
    assert refused == {
        "not asked": 1,
        "doubled": 3,  # twice 5, and 3 with a better one
        "'weight' is out of its range": 1,
        "out of turn": 1,  # 4 comes after 8
    }
    federation = gated(
        Federation((3, 4, 5, 8), lambda *_: iter(said), plain(lambda *_: iter(said)))
    )
    assert [client for client, _ in federation.ask(TRAIN, requests)] == [5, 8]
    assert federation.refused == refused
    assert add_replies(TRAIN, requests, iter(said)).refused == refused


def test_who_holds_back_is_silent_where_nothing_is_promised_and_nowhere_else() -> None:
    assert judged(TRAIN, PLAIN, Message()) is None
    assert judged(TRAIN, PLAIN, Message(meta={"step": 3, "ask": 1})) is None
    assert judged(TRAIN, PLAIN, Message({"loss": torch.tensor(1.0)})) == "something is missing"
    assert judged(TRAIN, GRIDDED, Message()) == "something is missing"


# --- forms of one's own --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Message({"a": torch.tensor([1, 2])}, {"n": 4}), None),
        (Message({"a": torch.tensor([1, 2, 3])}, {"n": 4}), "'a' has another shape"),
        (Message({"a": torch.tensor([1, 9])}, {"n": 4}), "'a' is out of its range"),
        (Message({"a": torch.tensor([1, 2])}, {"n": 6}), "'n' is out of its range"),
        (Message({"a": torch.tensor([1, 2])}, {"n": 4.0}), "'n' is out of its range"),
        (Message({"a": torch.tensor([1, 2])}, {"n": True}), "'n' is out of its range"),
        (Message({"a": torch.tensor([1, 2])}), "something is missing"),
        (Message({"any": torch.zeros(2, dtype=torch.complex64)}, {"n": 1}), "something is missing"),
        (
            Message({"a": torch.tensor([1, 2]), "any": torch.zeros(2, dtype=torch.complex64)}, {"n": 1}),
            "'any' has another dtype",
        ),
    ],
)  # fmt: skip
def test_a_form_states_lengths_and_ranges_that_a_request_tells(
    reply: Message, reason: str | None
) -> None:
    verb = Verb(
        "mine",
        down=Form(meta=(*CLOCK, "length", "top")),
        up=Form(
            {"a": Array((torch.int64,), ("length",), low=0, most="top"), "any": Array((), None)},
            {"n": Array(low=0, high=5)},
            needs=(("a", "n"),),
        ),
        kind="list",
    )
    assert judged(verb, Message(meta={**CLOCKED, "length": 2, "top": 8}), reply) == reason


# --- compiled loops ------------------------------------------------------------------------------


def test_no_compiled_loop_leaves_its_arrays(tmp_path: Path) -> None:
    """All hostile rows once more, with numba's bounds checks on, in a process of its own."""
    environment = {
        **os.environ,
        "NUMBA_BOUNDSCHECK": "1",
        "NUMBA_CACHE_DIR": str(tmp_path),  # what was compiled without the checks is not used
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.bounds"], cwd=ROOT, env=environment, capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "the checks are on" in done.stdout
    assert int(done.stdout.split()[-1]) > 380
