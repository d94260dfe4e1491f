from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from lexfed.core.seeds import root
from lexfed.federation import Federation, Requests, Rounds, ServerState, Steps, once, plain
from lexfed.federation.sampling import Everyone, FixedSize, Poisson, Sampler
from lexfed.federation.server_optimizer import ServerOptimizer
from lexfed.learning.training_verbs import TRAIN
from lexfed.privacy.mechanism import NoPrivacy
from lexfed.wire import ClientId, Message, Verb, echoing


def echo(verb: Verb, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
    """Client k moves x by k, with weight k."""
    for client, request in requests.items():
        weight = torch.tensor(float(client))
        reply = Message({"delta/x": weight * client, "weight": weight, "loss": weight})
        yield client, echoing(request, reply)


def federation(clients: int) -> Federation:
    return Federation(range(clients), echo, plain(echo))


def rounds(sampler: Sampler = Everyone()) -> Rounds:
    return Rounds(sampler, NoPrivacy(), ServerOptimizer(), TRAIN)


START = ServerState(params={"x": torch.zeros(())})


def test_a_round_moves_by_the_weighted_mean() -> None:
    states = list(rounds()(federation(4), START, until=1, seed=root(0)))
    assert [s.round for s in states] == [1]
    assert states[0].params["x"].item() == pytest.approx((1 * 1 + 2 * 2 + 3 * 3) / (1 + 2 + 3))


def test_an_empty_cohort_is_no_step() -> None:
    nobody = replace(federation(4), total=plain(lambda verb, requests: iter(())))
    (state,) = rounds()(nobody, START, until=1, seed=root(0))
    assert state.round == 1
    assert torch.equal(state.params["x"], START.params["x"])


MALFORMED = {
    "another shape": {"delta/x": torch.zeros(1), "weight": torch.tensor(1.0)},
    "a name that is not allowed": {
        "delta/x": torch.zeros(()),
        "weight": torch.tensor(1.0),
        "words": torch.zeros(()),
    },
    "a parameter the model does not have": {
        "delta/y": torch.zeros(()),
        "weight": torch.tensor(1.0),
    },
    "rows of a table that was sent whole": {
        "delta/x#ids": torch.zeros(1, dtype=torch.int64),
        "delta/x#values": torch.ones(1, 1),
        "weight": torch.tensor(1.0),
    },
    "numbers in steps of another shape": {
        "delta/x#int8": torch.zeros((), dtype=torch.int8),
        "delta/x#scale": torch.ones(3),
        "weight": torch.tensor(1.0),
    },
    "half a row update": {
        "delta/x#ids": torch.zeros(1, dtype=torch.int64),
        "weight": torch.tensor(1.0),
    },
    "a weight that is a table": {"delta/x": torch.zeros(()), "weight": torch.zeros(3)},
    "whole numbers": {"delta/x": torch.ones((), dtype=torch.int64), "weight": torch.tensor(1.0)},
    "a weight that is a whole number": {"delta/x": torch.ones(()), "weight": torch.tensor(1)},
}


@pytest.mark.parametrize("case", MALFORMED)
def test_who_answers_nonsense_has_dropped_out(case: str) -> None:
    def ask(verb: Verb, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        for client, reply in echo(verb, requests):
            yield client, Message(MALFORMED[case], reply.meta) if client == 2 else reply

    (state,) = rounds()(
        replace(federation(4), ask=ask, total=plain(ask)), START, until=1, seed=root(0)
    )
    assert state.params["x"].item() == pytest.approx((1 * 1 + 3 * 3) / (1 + 3))


def test_poisson_rounds_survive_empty_cohorts() -> None:
    assert list(rounds(Poisson(1))(federation(2), START, until=30, seed=root(0)))[-1].round == 30


def switching(federation: Federation, state: ServerState, log: list[str]) -> Steps:
    """Rounds, something in the middle, more rounds."""

    def switch(s: ServerState) -> ServerState:
        log.append("switch")
        return replace(s, params={"x": s.params["x"] * 10})

    state = yield from rounds(FixedSize(2))(federation, state, until=3, seed=root(0))
    state = yield from once(state, "switch@3", switch)
    return (yield from rounds(FixedSize(2))(federation, state, until=6, seed=root(0)))


def test_a_program_goes_on_from_any_state_it_yielded() -> None:
    whole = list(switching(federation(6), START, []))
    assert [s.step for s in whole] == [1, 2, 3, 4, 5, 6, 7]
    assert [s.round for s in whole] == [1, 2, 3, 3, 4, 5, 6]
    for i, state in enumerate(whole):
        log: list[str] = []
        rest = list(switching(federation(6), state, log))
        assert [s.params["x"].item() for s in rest] == [
            s.params["x"].item() for s in whole[i + 1 :]
        ]
        assert log == (["switch"] if state.step < 4 else [])
