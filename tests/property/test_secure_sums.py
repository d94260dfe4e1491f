"""Secure sums against the plain one: exact whatever drops out, closed below the threshold, and
deaf to whoever meddles.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lexfed.core.errors import ConfigError
from lexfed.core.seeds import derive, root
from lexfed.corpus.population import Client
from lexfed.corpus.text import Corpus
from lexfed.federation import Answer, ClientState, Replies, Requests, Sum, gated
from lexfed.federation.sums import Federation
from lexfed.learning.training_verbs import TRAIN
from lexfed.secure import keys, ring, shamir
from lexfed.secure.member import Member, securing
from lexfed.secure.secure_options import Secure, survivors
from lexfed.secure.secure_sum import NOT_OPENED, UNREADABLE, WRONG_SHARE, secured
from lexfed.secure.secure_verbs import REFUSALS, exchanges
from lexfed.secure.sessions import Sessions
from lexfed.wire import Array, ClientId, Form, Message, Verb, echoing, unpack
from lexfed.wire.verbs import CLOCK

PHASES = (KEYS, SHARES, MASKED, OPEN) = exchanges(TRAIN)
SIZE = 7
Meddle = Callable[[Verb, ClientId, Message], Message | None]


@lru_cache(maxsize=256)
def client(number: int) -> Client:
    nothing = Corpus(np.arange(0), pa.array([], pa.large_string()))
    return Client(number, nothing, nothing, nothing, derive(root(0), "client", number))


@lru_cache(maxsize=256)
def pinned(number: ClientId) -> bytes:
    return keys.public_identity(derive(client(number).secret, "identity"))


@dataclass
class Cohort:
    """Clients that send what they are told to, drop out when they are told to, and a wire on which
    somebody may meddle.
    """

    folder: Path
    replies: dict[ClientId, Message]
    options: Secure = field(default_factory=lambda: Secure(sums=True))
    leaves: dict[ClientId, Verb] = field(default_factory=dict)  # at which exchange
    down: Meddle = lambda verb, client, message: message
    up: Meddle = lambda verb, client, message: message
    seen: list[tuple[Verb, ClientId, Message, Message]] = field(default_factory=list)

    def total(self, request: Message | None = None, verb: Verb = TRAIN) -> Sum:
        request = request or asked()
        requests = dict.fromkeys(self.replies, request)
        return secured(self.federation, self.options, pinned).total(verb, requests)

    @property
    def federation(self) -> Federation:
        def train(message: Message, one: Client, state: ClientState) -> Answer:
            return self.replies[one.id], state

        member = Member(
            self.options,
            Sessions(self.folder),
            lambda one: derive(one.secret, "identity"),
            pinned,
        )
        handlers = securing({TRAIN: train, COUNT: train}, member)

        def ask(verb: Verb, requests: Requests) -> Replies:
            for number, request in requests.items():
                changed = self.down(verb, number, request)
                if self.leaves.get(number) is verb or changed is None:
                    continue
                reply, _ = handlers[verb](changed, client(number), ClientState())
                if reply is None:
                    continue
                reply = echoing(changed, reply)
                self.seen.append((verb, number, changed, reply))
                answer = self.up(verb, number, reply)
                if answer is not None:
                    yield number, answer

        def never(verb: Verb, requests: Requests) -> Sum:
            raise AssertionError("a plain sum")

        return gated(Federation(list(self.replies), ask, never))


COUNT = Verb(
    "count",
    Form(meta=(*CLOCK, "width")),
    Form({"counts": Array((torch.int64,), ("width",), low=0, high=10)}),
    charged=True,
)


def asked(step: int = 1) -> Message:
    clock = {"step": step, "ask": 0, "round": 0}
    return Message({"model/w": torch.zeros(SIZE)}, {**clock, "most_texts": 100})


def update(rng: np.random.Generator, scale: float = 1.0) -> Message:
    weight = torch.tensor(float(rng.integers(1, 100)))
    delta = torch.from_numpy(rng.normal(0, scale, SIZE).astype(np.float32))
    return Message({"delta/w": delta * weight, "weight": weight, "loss": weight * 0.7})


def of(clients: int, seed: int = 0, scale: float = 1.0) -> dict[ClientId, Message]:
    rng = np.random.default_rng(seed)
    return {3 * number + 1: update(rng, scale) for number in range(clients)}


def whole_steps(replies: list[Message], clients: int, options: Secure) -> dict[str, torch.Tensor]:
    """The reference: every reply in whole steps, added up with Python's own integers."""
    slots = ring.layout(TRAIN, asked(), clients, options.bits, options.range)
    names = [slot.name for slot in slots.slots]
    sums: dict[str, torch.Tensor] = {}
    for slot in slots.slots:
        column = [r.arrays.get(slot.name, torch.zeros(slot.shape)).reshape(-1) for r in replies]
        steps = [[round(float(x) / slot.step) for x in value] for value in column]
        numbers = [sum(values) for values in zip(*steps, strict=True)]
        value = torch.tensor([n * slot.step for n in numbers], dtype=torch.float64)
        sums[slot.name] = value.reshape(slot.shape).to(torch.float32)
    assert names
    return sums


@given(data=st.data())
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_sum_is_exact_whoever_drops_out_at_whatever_exchange(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    clients = data.draw(st.integers(3, 50) if data.draw(st.booleans()) else st.integers(3, 8))
    options = Secure(
        sums=True,
        threshold=data.draw(st.sampled_from([0.51, 0.67, 0.9])),
        bits=data.draw(st.sampled_from([32, 64])),
        range=200.0,
    )
    replies = of(clients, data.draw(st.integers(0, 100)), scale=0.3)
    spare = clients - survivors(options, clients)
    leavers = data.draw(st.lists(st.sampled_from(sorted(replies)), unique=True, max_size=spare))
    leaves = {one: data.draw(st.sampled_from(PHASES)) for one in leavers}
    cohort = Cohort(tmp_path_factory.mktemp("clients"), replies, options, leaves)
    total = cohort.total()
    # who leaves before its reply was there is not in the sum; who leaves after it is
    inside = [r for one, r in replies.items() if leaves.get(one) in (None, OPEN)]
    assert total.clients == len(inside)
    assert not total.refused
    expected = whole_steps(inside, clients, options)
    slots = ring.layout(TRAIN, asked(), clients, options.bits, options.range)
    for slot in slots.slots:
        if slot.name in (ring.CUT, "unclipped"):
            continue
        assert torch.equal(total.update[slot.name], expected[slot.name]), "exactly"
        plain = sum(r.arrays[slot.name].double() for r in inside)
        off = (total.update[slot.name].double() - plain).abs().max()
        largest = float(plain.abs().max()) * 2**-23  # what float32 itself can't tell apart
        assert off <= len(inside) / 2 * slot.step + largest
    assert total.cut == 0


@pytest.mark.parametrize("clients", [3, 10, 50])
@pytest.mark.parametrize("phase", PHASES, ids=lambda verb: verb.name)
def test_below_the_threshold_nothing_is_opened_and_the_next_round_goes_well(
    clients: int, phase: Verb, tmp_path: Path
) -> None:
    options, replies = Secure(sums=True), of(clients)
    too_many = clients - survivors(options, clients) + 1
    leaves = dict.fromkeys(list(replies)[:too_many], phase)
    total = Cohort(tmp_path, replies, options, leaves).total()
    assert total.update == {}
    assert total.clients == 0
    assert total.refused == {NOT_OPENED: 1}
    assert Cohort(tmp_path, replies, options).total(asked(step=2)).clients == clients


# --- meddling -------------------------------------------------------------------------------------


def changed(message: Message, name: str, place: int = 0) -> Message:
    """One bit is another."""
    value = message.arrays[name].clone()
    value.view(-1)[place] ^= 1
    return replace(message, arrays={**message.arrays, name: value})


def meddled(
    tmp_path: Path, up: Meddle | None = None, down: Meddle | None = None, clients: int = 10
) -> Sum:
    cohort = Cohort(tmp_path, of(clients))
    return replace_wire(cohort, up, down).total()


def replace_wire(cohort: Cohort, up: Meddle | None, down: Meddle | None) -> Cohort:
    if up is not None:
        cohort.up = up
    if down is not None:
        cohort.down = down
    return cohort


def test_a_wrong_share_is_found_and_left_out(tmp_path: Path) -> None:
    def up(verb: Verb, number: ClientId, reply: Message) -> Message:
        liar = verb is OPEN and number in (1, 4)
        return changed(reply, "shares", 40) if liar else reply

    total = meddled(tmp_path, up)
    assert total.refused == {WRONG_SHARE: 2}
    plain = sum(r.arrays["delta/w"] for r in of(10).values())
    assert torch.allclose(total.update["delta/w"], plain, atol=1e-4), "and the sum is right"


def test_shares_of_no_secret_close_the_sum(tmp_path: Path) -> None:
    """A dealer that promised another mask than it used."""

    def up(verb: Verb, number: ClientId, reply: Message) -> Message:
        return changed(reply, "promise") if verb is SHARES and number == 1 else reply

    assert meddled(tmp_path, up).update == {}


def test_a_changed_key_is_found_by_everybody(tmp_path: Path) -> None:
    def down(verb: Verb, number: ClientId, request: Message) -> Message:
        return changed(request, "keys", 70) if verb is SHARES else request

    total = meddled(tmp_path, down=down)
    assert total.update == {}
    assert total.refused == {REFUSALS[3]: 10, NOT_OPENED: 1}


def test_a_key_in_the_place_of_another_is_found(tmp_path: Path) -> None:
    """The server would sit between two clients."""
    mine = bytes(range(32))

    def down(verb: Verb, number: ClientId, request: Message) -> Message:
        if verb is not SHARES:
            return request
        swapped = request.arrays["keys"].clone()
        swapped[2] = torch.frombuffer(bytearray(keys.public(mine) * 2), dtype=torch.uint8)
        return replace(request, arrays={**request.arrays, "keys": swapped})

    assert meddled(tmp_path, down=down).refused[REFUSALS[3]] == 10


def test_swapped_shares_are_found(tmp_path: Path) -> None:
    """What was sealed for one is given to another: it can't read it."""

    def down(verb: Verb, number: ClientId, request: Message) -> Message:
        if verb is not MASKED or number != 1:
            return request
        swapped = request.arrays["sealed"].flip(0)
        return replace(request, arrays={**request.arrays, "sealed": swapped})

    total = meddled(tmp_path, down=down)
    assert total.refused == {UNREADABLE: 10}
    plain = sum(r.arrays["delta/w"] for r in of(10).values())
    assert torch.allclose(total.update["delta/w"], plain, atol=1e-4), "others hold enough"


def test_another_model_than_the_one_announced_is_refused(tmp_path: Path) -> None:
    """To one client alone, in the hope to tell its update from the sum."""

    def down(verb: Verb, number: ClientId, request: Message) -> Message:
        if verb is MASKED and number == 4:
            return replace(request, arrays={**request.arrays, "of/model/w": torch.ones(SIZE)})
        return request

    total = meddled(tmp_path, down=down)
    assert total.refused == {REFUSALS[4]: 1}
    assert total.clients == 9


def test_who_is_announced_another_model_than_the_others_is_left_out(tmp_path: Path) -> None:
    """What it signs is about another sum."""

    def down(verb: Verb, number: ClientId, request: Message) -> Message:
        other = (verb, number) == (KEYS, 4)
        return replace(request, blobs={"request": bytes(32)}) if other else request

    total = meddled(tmp_path, down=down)
    assert total.clients == 9
    assert total.refused == {REFUSALS[3]: 1}


def test_a_doubled_exchange_is_refused(tmp_path: Path) -> None:
    """Each exchange has one answer: asked again to open, with another list, a client is silent."""
    cohort = Cohort(tmp_path, of(5))
    federation = cohort.federation
    assert secured(federation, cohort.options, pinned).total(
        TRAIN, dict.fromkeys(cohort.replies, asked())
    )
    for verb, number, request, _ in list(cohort.seen):
        ((_, reply),) = federation.ask(verb, {number: request})
        assert reply.meta["refused"] in (0, 1), f"{verb.name} was answered again"


def test_of_one_client_never_both_kinds_of_share(tmp_path: Path) -> None:
    """Half of the clients are told that 1 stayed, half that it left: nobody tells both, and neither
    half is enough.
    """
    stayed: list[set[int]] = []

    def down(verb: Verb, number: ClientId, request: Message) -> Message:
        if verb is OPEN and number > 13:
            rest = request.arrays["stayed"]
            request = replace(request, arrays={"stayed": rest[rest != 1]})
        if verb is OPEN:
            stayed.append(set(request.arrays["stayed"].tolist()))
        return request

    total = meddled(tmp_path, down=down)
    assert len({frozenset(one) for one in stayed}) == 2
    assert total.update == {}, "too few shares of either"


def test_a_sum_is_never_opened_twice(tmp_path: Path) -> None:
    """The second time without somebody: the difference would be that client's update."""
    replies = of(6)
    assert Cohort(tmp_path, replies).total().clients == 6
    fewer = {number: reply for number, reply in replies.items() if number != 1}
    again = Cohort(tmp_path, fewer).total()
    assert again.update == {}
    assert again.refused == {REFUSALS[1]: 5, NOT_OPENED: 1}
    assert Cohort(tmp_path, fewer).total(asked(step=0)).update == {}, "nor an older one"
    assert Cohort(tmp_path, fewer).total(asked(step=2)).clients == 5


def test_a_sum_that_was_not_opened_may_be_asked_for_again_with_other_masks(tmp_path: Path) -> None:
    """A server that was killed comes again with the same clock."""
    first = Cohort(tmp_path, of(6), leaves=dict.fromkeys(of(6), OPEN))
    assert first.total().update == {}
    second = Cohort(tmp_path, of(6))
    assert second.total().clients == 6
    sent = [
        {n: reply.arrays["masked"] for verb, n, _, reply in cohort.seen if verb is MASKED}
        for cohort in (first, second)
    ]
    assert all(not torch.equal(sent[0][n], sent[1][n]) for n in sent[0])


def test_a_plain_request_is_not_answered(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path, of(4))
    assert list(cohort.federation.ask(TRAIN, dict.fromkeys(cohort.replies, asked()))) == []


def test_nobody_takes_part_in_a_sum_of_too_few(tmp_path: Path) -> None:
    total = Cohort(tmp_path, of(2)).total()
    assert total.refused == {REFUSALS[2]: 2, NOT_OPENED: 1}


# --- masks ----------------------------------------------------------------------------------------


def test_masked_uploads_are_uniform(tmp_path: Path) -> None:
    """Bytes of a thousand numbers that are all nearly zero, by chi-squared; and no two alike."""
    wide = Message({"model/w": torch.zeros(4000)}, asked().meta)
    honest = Message({"delta/w": torch.full((4000,), 1e-3), "weight": torch.tensor(1.0)})
    cohort = Cohort(tmp_path, dict.fromkeys(range(5), honest))
    assert cohort.total(wide).clients == 5
    sent = [reply.arrays["masked"] for verb, _, _, reply in cohort.seen if verb is MASKED]
    counts = np.bincount(np.concatenate([s.numpy().view(np.uint8) for s in sent]), minlength=256)
    expected = counts.sum() / 256
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert 170 < statistic < 350, "255 degrees of freedom: mean 255, deviation 22.6"
    plain = ring.encode(ring.layout(TRAIN, wide, 5, 64, 2.0**24), unpack_dense(honest))
    flat = np.bincount(plain.view(np.uint8), minlength=256)
    assert ((flat - flat.sum() / 256) ** 2).sum() / (flat.sum() / 256) > 1e4, "the pair: unmasked"


def unpack_dense(message: Message) -> dict[str, torch.Tensor]:
    return {n: v for n, v in unpack(message.arrays).items() if isinstance(v, torch.Tensor)}


def test_what_does_not_fit_is_cut_and_counted(tmp_path: Path) -> None:
    replies = of(5)
    for number, worst in ((1, 1e9), (4, float("nan")), (7, float("inf"))):
        arrays = {**replies[number].arrays, "delta/w": torch.full((SIZE,), worst)}
        replies[number] = Message(arrays)
    total = Cohort(tmp_path, replies, Secure(sums=True, range=2.0**20)).total()
    assert total.cut == 3
    assert bool(torch.isfinite(total.update["delta/w"]).all())
    rest = sum(replies[number].arrays["delta/w"] for number in (10, 13))
    assert torch.allclose(total.update["delta/w"] - 2.0**20, rest, atol=0.2)


def test_who_holds_back_adds_nothing(tmp_path: Path) -> None:
    replies = {**of(5), 1: Message()}
    total = Cohort(tmp_path, replies).total()
    assert total.clients == 5, "the server can't tell who"
    plain = sum(r.arrays["weight"] for r in replies.values() if r.arrays)
    assert total.update["weight"] == plain
    assert Cohort(tmp_path, dict.fromkeys(range(5), Message())).total(asked(9)).update == {}


def test_counts_add_up_as_whole_numbers(tmp_path: Path) -> None:
    request = Message(meta={"step": 1, "ask": 0, "round": 0, "width": 3})
    replies = {n: Message({"counts": torch.tensor([n, 0, 1])}) for n in range(6)}
    total = Cohort(tmp_path, replies).total(request, COUNT)
    assert torch.equal(total.update["counts"], torch.tensor([15, 0, 6]))


# --- shares ---------------------------------------------------------------------------------------


@given(st.binary(min_size=32, max_size=32), st.integers(1, 12), st.data())
def test_any_t_shares_are_the_secret_and_fewer_are_not(
    secret: bytes, threshold: int, data: st.DataObject
) -> None:
    places = data.draw(
        st.lists(st.integers(1, 10_000), unique=True, min_size=threshold, max_size=threshold + 5)
    )
    shares = dict(zip(places, shamir.split(secret, threshold, places), strict=True))
    some = data.draw(st.permutations(places))
    assert shamir.join({place: shares[place] for place in some[:threshold]}) == secret
    if threshold > 1:
        assert shamir.join({place: shares[place] for place in some[: threshold - 1]}) != secret


def test_the_field_is_a_field() -> None:
    """Miller and Rabin, forty times."""
    rng, odd, twos = np.random.default_rng(0), shamir.PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for _ in range(40):
        x = pow(int.from_bytes(rng.bytes(32), "big") + 2, odd, shamir.PRIME)
        witness = x not in (1, shamir.PRIME - 1)
        for _ in range(twos - 1):
            x = x * x % shamir.PRIME
            witness = witness and x != shamir.PRIME - 1
        assert not witness


def test_four_exchanges_and_no_more(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path, of(3))
    cohort.total()
    assert list(dict.fromkeys(verb for verb, *_ in cohort.seen)) == list(PHASES)


# --- what a reviewer tried ------------------------------------------------------------------------


def test_clients_that_were_shown_different_lists_share_no_secret(tmp_path: Path) -> None:
    """A server that shows the victim few peers, and its peers others, once had both kinds of share
    of it from clients that gave one kind each.
    """

    def down(verb: Verb, number: ClientId, request: Message) -> Message:
        if verb is not SHARES or number != 1:
            return request
        fewer = {name: value[:8] for name, value in request.arrays.items()}
        return replace(request, arrays=fewer, meta={**request.meta, "n": 8})

    def up(verb: Verb, number: ClientId, reply: Message) -> Message | None:
        # as if the list had been whole, so that the server goes on
        if verb is not SHARES or number != 1 or "sealed" not in reply.arrays:
            return reply
        padded = {
            name: torch.cat([value, value[:2]]) if value.ndim == 2 else value
            for name, value in reply.arrays.items()
        }
        return replace(reply, arrays=padded)

    total = meddled(tmp_path, up, down)
    assert total.update == {}
    assert total.refused[UNREADABLE] > 0, "what was sealed under one list is not read under another"


def test_more_holders_than_clients_are_refused(tmp_path: Path) -> None:
    """All are told of a sum of eight, and shown ten: two groups of t could have nobody in common,
    and open both kinds of share. Eight of the ten are what was said.
    """
    cohort = Cohort(tmp_path, of(10))
    clock, stay = {"step": 1, "ask": 0, "round": 0}, survivors(cohort.options, 8)
    terms = {"verb": "train", "clients": 8, "survivors": stay, "threshold": stay, "length": 9}
    told = {**clock, **terms, "bits": 64, "range": cohort.options.range}
    hello = Message(meta=told, blobs={"request": bytes(32)})
    said = dict(cohort.federation.ask(KEYS, dict.fromkeys(cohort.replies, hello)))
    assert len(said) == 10
    for shown in (10, 8):
        some = sorted(said)[:shown]
        columns = {
            name: torch.stack(
                [torch.frombuffer(bytearray(said[v].blobs[blob]), dtype=torch.uint8) for v in some]
            )
            for name, blob in (("keys", "keys"), ("signatures", "signature"))
        }
        request = Message({"holders": torch.tensor(some), **columns}, {**clock, "n": shown})
        replies = dict(cohort.federation.ask(SHARES, dict.fromkeys(some, request)))
        assert {"refused" in reply.meta for reply in replies.values()} == {shown == 10}


def test_requests_that_differ_are_refused_unless_the_verb_says_so(tmp_path: Path) -> None:
    """A model of no numbers for all but one would leave that one's update alone in the sum."""
    cohort = Cohort(tmp_path, of(10))
    requests = {number: asked() for number in cohort.replies}
    with pytest.raises(ConfigError, match="differ from client to client"):
        secured(cohort.federation, cohort.options, pinned).total(TRAIN, requests)


def test_one_that_signs_wrong_is_left_out_and_nobody_else(tmp_path: Path) -> None:
    def up(verb: Verb, number: ClientId, reply: Message) -> Message:
        if verb is KEYS and number == 4:
            return replace(reply, blobs={**reply.blobs, "signature": bytes(64)})
        return reply

    total = meddled(tmp_path, up)
    assert total.clients == 9
    assert total.refused == {REFUSALS[3]: 1}


def test_a_session_that_comes_back_from_a_copy_opens_nothing(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path, of(5), leaves=dict.fromkeys(of(5), OPEN))
    cohort.total()
    copies = {path: path.read_bytes() for path in tmp_path.glob("*/secure-session.safetensors")}
    assert len(copies) == 5
    sessions = Sessions(tmp_path)
    for number in cohort.replies:
        session = sessions.load(number)
        assert session is not None
        sessions.spend(number, session)
    for path, data in copies.items():
        path.write_bytes(data)
    stayed = torch.tensor(sorted(cohort.replies)[:4])
    cohort.leaves = {}
    for number in cohort.replies:
        request = Message({"stayed": stayed}, {"step": 1, "ask": 0, "round": 0, "n": 5})
        for _, reply in cohort.federation.ask(OPEN, {number: request}):
            assert "refused" in reply.meta


@pytest.mark.parametrize(
    ("verb", "change"),
    [
        (KEYS, {"clients": "ten"}),
        (KEYS, {"clients": 10**7}),
        (SHARES, {"holders": torch.tensor([-1] * 10)}),
        (MASKED, {"of/step": None}),
        (MASKED, {"of/most_texts": 0}),
    ],
    ids=str,
)
def test_what_is_no_request_is_refused_and_stops_no_client(
    verb: Verb, change: dict[str, object], tmp_path: Path
) -> None:
    def down(asked_for: Verb, number: ClientId, request: Message) -> Message:
        if asked_for is not verb:
            return request
        arrays, meta = dict(request.arrays), dict(request.meta)
        for name, value in change.items():
            if isinstance(value, torch.Tensor):
                arrays[name] = value
            elif value is None:
                del meta[name]
            else:
                meta[name] = value  # type: ignore[assignment]
        return Message(arrays, meta, request.blobs)

    total = meddled(tmp_path, down=down)
    assert total.update == {}
    assert total.refused[NOT_OPENED] == 1
