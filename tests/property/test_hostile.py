"""Hostile clients: whatever they answer, nobody crashes, nothing is poisoned, and it is written down.

Replies are changed field by field from valid ones; random bytes would be turned away at the door.
"""

import zlib
from typing import Any

import numpy as np
import pytest
import torch

from lexfed.core.errors import WireError
from lexfed.core.params import Rows, add_all
from lexfed.federation import add_replies, sound
from lexfed.runtime.meter import Tally
from lexfed.wire import Message, Verb, decode, encode, flaw, size, unpack
from tests.hostile import (
    CORPUS,
    SCENES,
    Counter,
    Exchange,
    Liars,
    exchange,
    last_state,
    mutated,
    scene,
    truth,
    wrong,
)

CASES = {case["name"]: case for case in CORPUS}


@pytest.mark.parametrize("name", CASES)
def test_who_was_ever_found_out_has_dropped_out(name: str) -> None:
    """The sum, or the list of replies, is what it is without the liar, bit for bit."""
    case = CASES[name]
    one = exchange(case["scene"], case["verb"])
    liar = next(iter(one.replies))
    lie = wrong(case, one.replies[liar])
    if case.get("sound"):
        assert flaw(one.verb, one.requests[liar], lie) is None
        return
    assert flaw(one.verb, one.requests[liar], lie) == case["reason"]
    refused: Counter[str] = Counter()
    replies = {**one.replies, liar: lie}
    heard = dict(sound(one.verb, one.requests, iter(replies.items()), refused))
    assert list(heard) == [client for client in one.replies if client != liar]
    assert refused == {case["reason"]: 1}
    if one.verb.kind == "update":
        same_as_without(one, liar, lie)


def same_as_without(one: Exchange, liar: int, lie: Message) -> None:
    others = {client: reply for client, reply in one.replies.items() if client != liar}
    said, without = (
        add_replies(one.verb, one.requests, iter(replies.items()))
        for replies in ({**one.replies, liar: lie}, others)
    )
    assert said.clients == without.clients == len(others)
    assert said.update.keys() == without.update.keys()
    for name, value in said.update.items():
        for mine, theirs in zip(numbers(value), numbers(without.update[name]), strict=True):
            assert torch.equal(mine, theirs)
            assert mine.dtype == theirs.dtype


def numbers(value: Any) -> list[torch.Tensor]:
    if not isinstance(value, Rows):
        return [value]
    return [
        part for part in (value.ids, value.values, value.counts, value.nodes) if part is not None
    ]


@pytest.mark.parametrize("name", sorted({case["scene"] for case in CORPUS}))
def test_programs_outlive_everything_that_was_ever_found(name: str) -> None:
    """One liar at every ask, the cases in turn."""
    turns: Counter[str] = Counter()

    def lie(verb: Verb, request: Message, reply: Message) -> Message:
        cases = [c for c in CORPUS if c["scene"] == name and c["verb"] == verb.name]
        turns[verb.name] += 1
        return wrong(cases[turns[verb.name] % len(cases)], reply) if cases else reply

    outlived(name, lie, seed=0)


@pytest.mark.parametrize("name", SCENES)
def test_programs_outlive_liars(name: str) -> None:
    fuzz_replies(name, cases=70, seed=0)
    fuzz_program(name, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_programs_outlive_many_liars(name: str) -> None:
    """With the programs' own, more than 100,000 in all."""
    fuzz_replies(name, cases=4000, seed=1)
    for seed in range(1, 16):
        fuzz_program(name, seed)


def generator(name: str, seed: int) -> np.random.Generator:
    return np.random.default_rng([zlib.crc32(name.encode()), seed])


def fuzz_replies(name: str, cases: int, seed: int) -> None:
    """A reply is refused, or it can be used: as it is, and after its bytes."""
    rng, heard = generator(name, seed), [one for one in truth(name)[0] if one.replies]
    verbs = {one.verb for one in heard}
    for number in range(cases):
        verb = sorted(verbs, key=lambda verb: verb.name)[number % len(verbs)]
        some = [one for one in heard if one.verb is verb]
        one = some[int(rng.integers(len(some)))]
        client = list(one.replies)[int(rng.integers(len(one.replies)))]
        honest = one.replies[client]
        lie = mutated(honest, rng)
        if rng.random() < 0.3:
            lie = mutated(lie, rng)
        usable(one, client, lie)
        damaged = bytearray(encode(honest))
        damaged[int(rng.integers(len(damaged)))] ^= 1 << int(rng.integers(8))
        try:
            read = decode(bytes(damaged))
        except WireError:
            continue
        usable(one, client, read)


def usable(one: Exchange, client: int, reply: Message) -> None:
    request = one.requests[client]
    reason = flaw(one.verb, request, reply)
    if reason is not None:
        assert len(reason) < 80, "no word of the reply is repeated"
        return
    assert flaw(one.verb, request, decode(encode(reply))) is None
    assert size(reply) == len(encode(reply))
    if one.verb.kind == "update":
        honest = unpack(one.replies[client].arrays)
        total = add_all([unpack(reply.arrays), honest, unpack(reply.arrays)])
        for name, value in total.items():
            ours = value.values if isinstance(value, Rows) else value
            assert bool(ours.isfinite().all())
            if name in honest:
                theirs = honest[name]
                rounded = isinstance(theirs, Rows) and theirs.scale is not None
                kind = theirs.values.dtype if isinstance(theirs, Rows) else theirs.dtype
                assert ours.dtype == (torch.float32 if rounded else kind)


def fuzz_program(name: str, seed: int) -> None:
    rng = generator(f"program {name}", seed)

    def lie(verb: Verb, request: Message, reply: Message) -> Message:
        return mutated(reply, rng)

    outlived(name, lie, seed)


def outlived(name: str, lie: Any, seed: int) -> None:
    """The program ends, its parameters are the numbers they were, and every lie is accounted for."""
    assembly = scene(name)
    everybody = len(assembly.population) + assembly.population.unseen
    few = {0, everybody - 1, seed % everybody, *range(0, everybody, 40)}
    hostile = Liars(assembly, frozenset(few), lie)
    federation = hostile.federation()
    state = last_state(assembly, federation)
    kinds, honest = ({n: v.dtype for n, v in s.params.items()} for s in (state, truth(name)[1]))
    assert kinds == honest
    assert all(bool(value.isfinite().all()) for value in state.params.values())
    assert hostile.lies > 0
    tally = Tally()
    tally.refuse(hostile.refused + federation.refused)
    assert sum(tally.refused.values()) == hostile.unsound
