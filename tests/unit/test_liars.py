"""Organisations that do not trust each other: what one that lies, and a server that does, can get
from an agreement.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lexfed.agreement import evidence
from lexfed.agreement.organisation import MEMORY, handlers, key_of
from lexfed.agreement.preview import Preview, preview
from lexfed.agreement.proposals import PROPOSE, SPELL, hashes, rows
from lexfed.agreement.protocol import PAID, VOCABULARY, Agreement, Refused, agreed, refused_of
from lexfed.agreement.word_list import from_bytes, keyed
from lexfed.core.params import ALL_SHARED
from lexfed.core.seeds import derive, root
from lexfed.federation import Method, Requests, ServerState, tapped
from lexfed.privacy.accounting import epsilon
from lexfed.runtime.simulation import Site, simulate
from lexfed.runtime.store import Store
from lexfed.wire import ClientId, Message, Verb, echoing, encode
from tests.conftest import Lexfed
from tests.unit.test_agreement import TEXTS, Wire, counts, people_of, wire

Twist = Callable[[Verb, ClientId, Message, Message], Message]  # what a liar makes of its reply


class Twisted(Wire):
    """Some do not say what honest handlers would."""

    twist: Twist

    def ask(self, verb: Verb, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        for client, reply in super().ask(verb, requests):
            lie = self.twist(verb, client, requests[client], reply)
            yield client, echoing(requests[client], lie)


def twisted(texts: list[list[str]], twist: Twist, **options: object) -> Twisted:
    ran = Twisted(people_of(texts), Agreement(**options))  # type: ignore[arg-type]
    ran.twist = twist
    return ran


def words(state: ServerState) -> set[str]:
    return set(from_bytes(state.blobs[VOCABULARY]).tokens)


# --- a dictionary --------------------------------------------------------------------------------

# Two banks that share no more than common words, and a liar that brings a dictionary.
PRIVATE = [f"client{i}" for i in range(40)]
HONEST = [
    ["the bank of the market"] * 12 + PRIVATE * 2,
    ["the bank of the river"] * 12,
]


@pytest.mark.parametrize("times", [1, 100])
@pytest.mark.parametrize("hashed", [True, False])
def test_a_dictionary_does_not_make_one_organisations_words_held_by_two(
    times: int, hashed: bool
) -> None:
    liar = [" ".join(PRIVATE)] * times
    assert words(wire([*HONEST, liar], hashed=hashed).agree()) == {"the", "bank", "of"}
    before = wire([*HONEST, liar], hashed=hashed, rest=0.0)  # the rule as it was
    assert (set(PRIVATE) <= words(before.agree())) == (times == 100)


def test_two_liars_are_withstood_by_three_holders() -> None:
    liar = [" ".join(PRIVATE)] * 100
    assert set(PRIVATE) <= words(wire([*HONEST, liar, liar]).agree())
    third = [*HONEST, HONEST[1], liar, liar]
    assert words(wire(third, holders=3).agree()) == {"the", "bank", "of"}


def test_the_lists_counts_do_not_tell_the_others() -> None:
    """A liar proposes a word once, and takes its one from the count that is told."""
    texts = [[[*HONEST[0], *["deposit"] * n], HONEST[1], ["deposit"]] for n in (9, 10, 11)]
    exact, coarse, none = (
        [wire(own, counts=how, rest=0.1, minimum=1).vocabulary() for own in texts]
        for how in ("exact", "coarse", "none")
    )
    assert [v.counts[v.ids["deposit"]] - 1 for v in exact] == [9, 10, 11]
    assert {v.counts[v.ids["deposit"]] for v in coarse} == {8}
    assert {v.counts[v.ids["deposit"]] for v in none} == {0}


def test_nor_are_the_server_told_exact_counts() -> None:
    ran = wire(TEXTS)
    ran.agree()
    told = {int(n) for m in ran.sent(PROPOSE, "up") for n in m.arrays["counts"]}
    assert told <= {1, 2, 4, 8, 16, 23, 32}
    silent = wire(TEXTS, counts="none", minimum=6)
    state = silent.agree()
    assert not [m for m in silent.sent(PROPOSE, "up") if "counts" in m.arrays]
    own = [counts(texts) for texts in TEXTS]
    assert words(state) == {w for w in own[0] | own[1] if sum(c[w] >= 6 for c in own) >= 2}


def test_who_proposes_many_more_words_than_the_others_is_cut_to_its_frequent_ones() -> None:
    own = [
        [" ".join(f"{name}{i}" for i in range(900))] * 5 + ["common words"] * 50 for name in "ab"
    ]
    dictionary = " ".join(f"a{i}" for i in range(900))
    liar = [dictionary + " " + " ".join(f"guess{i}" for i in range(2000))] * 9
    for stuffing, cut in ((2.0, 2900 - 1804), (9.0, 0)):
        state = wire([*own, liar], stuffing=stuffing, rest=0.0).agree()
        assert refused_of(state) == Refused(organisations=int(cut > 0), words=cut)
    few = wire([["common words"] * 50] * 2 + [[dictionary] * 9], rest=0.0).agree()
    assert refused_of(few) == Refused(), "a few words are no dictionary"
    large = [*(["common words"] * 50, own[0]), [*own[1], *liar, *["common words"] * 99]]
    assert words(wire(large, stuffing=1.0).agree()) >= {"common", "words"}, "what matters stays"


# --- spelling ------------------------------------------------------------------------------------

FOUR = [*TEXTS, ["the money of the bank for the team"] * 6]


def misspelling(*liars: ClientId) -> Twist:
    """Whatever they are asked to spell, they say the same word first, and then make words up."""

    def twist(verb: Verb, client: ClientId, request: Message, reply: Message) -> Message:
        if verb is not SPELL or client not in liars:
            return reply
        asked = hashes(request.arrays["hashes"])
        said = ["viagra", *(f"lie{name.hex()}" for name in asked[1:])]
        return Message(blobs={"words": "\n".join(said).encode()})

    return twist


@pytest.mark.parametrize("liar", range(4))
def test_who_spells_words_wrong_changes_none_that_two_others_hold(liar: ClientId) -> None:
    whole = wire(FOUR).words()
    others = [counts(own) for client, own in enumerate(FOUR) if client != liar]
    left = {word for word in whole if sum(word in own for own in others) >= 2}
    state = twisted(FOUR, misspelling(liar)).agree()
    assert words(state) == left
    assert refused_of(state) == Refused(spellings=len(whole) - len(left))


def test_two_who_spell_wrong_alike_are_withstood_by_three_holders() -> None:
    def twist(verb: Verb, client: ClientId, request: Message, reply: Message) -> Message:
        if verb is not SPELL or client not in (0, 1):
            return reply
        said = [f"lie{name.hex()}" for name in hashes(request.arrays["hashes"])]
        return Message(blobs={"words": "\n".join(said).encode()})

    def planted(state: ServerState) -> list[str]:
        return [word for word in words(state) if word.startswith("lie")]

    texts = [["the bank of the river"] * 12] * 5
    assert planted(twisted(texts, twist).agree()), "two holders: two liars are enough"
    safe = twisted(texts, twist, holders=3).agree()
    assert words(safe) == {"the", "bank", "of", "river"}


def test_one_word_for_two_hashes_is_refused() -> None:
    def twist(verb: Verb, client: ClientId, request: Message, reply: Message) -> Message:
        return (
            Message(blobs={"words": reply.blobs["words"].replace(b"river", b"bank")})
            if (verb is SPELL)
            else reply
        )

    state = twisted([["the bank of the river"] * 12] * 2, twist).agree()
    assert words(state) == {"the", "of"}
    assert refused_of(state).spellings == 2


def test_a_liar_that_sends_wrong_evidence_keeps_nothing_out_that_two_others_hold() -> None:
    def twist(verb: Verb, client: ClientId, request: Message, reply: Message) -> Message:
        if verb is not PROPOSE or client != 3:
            return reply
        wrong = (reply.arrays["shares"] + 1) % evidence.PRIME
        return replace(reply, arrays={**reply.arrays, "shares": wrong})

    whole, others = wire(FOUR).words(), [counts(own) for own in FOUR[:3]]
    state = twisted(FOUR, twist).agree()
    assert words(state) == {word for word in whole if sum(word in own for own in others) >= 2}


# --- a server that does not keep to the protocol -------------------------------------------------


def spelt(ran: Wire, client: ClientId, names: list[bytes], shown: object, nonce: bytes) -> set[str]:
    """What an organisation spells if it is shown this."""
    arrays = {"hashes": rows(names)}
    if shown is not None:
        arrays["evidence"] = torch.as_tensor(shown, dtype=torch.int64)
    meta = {"step": 0, "ask": 9, "round": 0}
    ((_, reply),) = ran.ask(SPELL, {client: Message(arrays, meta, {"nonce": nonce})})
    return set(reply.blobs["words"].decode().split("\n")) - {""}


def test_a_server_can_not_have_spelt_what_one_alone_holds() -> None:
    ran = wire(TEXTS)
    ran.agree()
    nonce = ran.sent(PROPOSE, "down")[0].blobs["nonce"]
    shared = set(wire(TEXTS, minimum=1, rest=0.0).words())
    for client in range(3):
        (own,) = ran.sent(PROPOSE, "up", client)
        names, shares = hashes(own.arrays["hashes"]), own.arrays["shares"]
        guesses = {
            "none": None,
            "nothing": torch.zeros(len(names), 0),
            "its own shares": shares[:, None],
            "its place": own.arrays["place"].expand(len(names), 1),
            "zeros": torch.zeros(len(names), 1),
            "too many guesses": torch.arange(6).expand(len(names), 6),
            "a flat list": shares,
            "of fewer": shares[1:, None],
        }
        for what, guess in guesses.items():
            assert spelt(ran, client, names, guess, nonce) == set(), what
        others = [
            dict(zip(hashes(m.arrays["hashes"]), m.arrays["shares"].tolist(), strict=True))
            | {b"x": int(m.arrays["place"])}
            for m in ran.sent(PROPOSE, "up")
        ]
        proofs = []
        for name in names:
            points = [(own[b"x"], own[name]) for own in others if name in own]
            proofs.append((evidence.candidates(points, 2) or [0])[:1])
        told = spelt(ran, client, names, proofs, nonce)
        assert told == shared & set(counts(TEXTS[client])), "what two hold, whatever the rule says"


def test_with_an_organisation_at_its_side_a_server_can_and_only_the_size_of_a_list_binds_it() -> (
    None
):
    """What is not withstood, so that nobody is told otherwise."""
    for size, most in ((None, 99), (3, 3)):
        ran = wire(TEXTS, size=size)
        ran.agree()
        nonce = ran.sent(PROPOSE, "down")[0].blobs["nonce"]
        key = key_of(ran.population.client(2), nonce)
        forged = [keyed(word, key) for word in counts(TEXTS[0])]
        shown = [[evidence.proof(name, derive(key, "evidence"))] for name in forged]
        asks = list(zip(forged, shown, strict=True))
        told = [spelt(ran, 0, [name], [proof], nonce) for name, proof in asks]
        assert len(set().union(*told)) == min(most, len(forged))
        again = [spelt(ran, 0, [name], [proof], nonce) for name, proof in asks]
        assert again == told, "the same request has the same answer"


def names_of(ran: Wire) -> set[bytes]:
    return {name for m in ran.sent(PROPOSE, "up") for name in hashes(m.arrays["hashes"])}


def test_hashes_of_two_fresh_agreements_have_nothing_in_common() -> None:
    runs = [wire(TEXTS), wire(TEXTS), wire(TEXTS)]
    first = runs[0].vocabulary()
    runs[1].agree(seed=1)
    runs[2].agree(old=first)
    sent = [names_of(ran) for ran in runs]
    assert all(sent)
    assert not sent[0] & sent[1], "another server"
    assert not sent[0] & sent[2], "the same one, that extends the list"
    assert (
        not runs[0]
        .sent(PROPOSE, "up", 0)[0]
        .arrays["place"]
        .equal(runs[1].sent(PROPOSE, "up", 0)[0].arrays["place"])
    )


@pytest.mark.parametrize("options", [{}, {"rule": "dp", "words_per_document": 10}])
def test_a_nonce_that_comes_again_gets_the_same_bytes_or_nothing(
    options: dict[str, object],
) -> None:
    ran, more = wire(TEXTS, **options), wire([[*own, "new words"] for own in TEXTS], **options)
    more.states = ran.states
    for texts, answered in ((ran, True), (ran, True), (more, False)):
        message = Message(
            {"released": rows([])} if "rule" in options else {},
            {"step": 0, "ask": 0, "round": 0},
            {"nonce": bytes(16)},
        )
        replies = [encode(m) for _, m in texts.ask(PROPOSE, dict.fromkeys(range(3), message))]
        assert len(replies) == (3 if answered else 0)
        sent = [encode(echoing(message, m)) for m in ran.sent(PROPOSE, "up")[:3]]
        assert not answered or replies == sent
    fresh = replace(message, blobs={"nonce": bytes(15) + b"1"})
    assert len(list(more.ask(PROPOSE, dict.fromkeys(range(3), fresh)))) == 3
    asked = {0: replace(fresh, meta={"step": 0, "ask": 3, "round": 0})}
    assert not list(more.ask(PROPOSE, asked)), "more passes than there are"
    assert all(set(json.loads(s.blobs[MEMORY])) == {"00" * 16, "00" * 15 + "31"}
               for s in more.states.values())  # fmt: skip


# --- replies of any form -------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_reply_stops_an_agreement(data: st.DataObject) -> None:
    """From valid replies, field by field."""
    odd = data.draw(st.sampled_from([torch.zeros(3), torch.full((2, 16), 255).byte(), torch.tensor(-1),
        torch.empty(0, dtype=torch.int64), torch.tensor([1 << 62] * 8), torch.tensor([float("nan")])]))  # fmt: skip
    text = data.draw(st.sampled_from([b"", b"\n", b"\xff", b"the\nthe", b"a b", b"x" * 999]))
    field = data.draw(
        st.sampled_from(["hashes", "counts", "shares", "place", "words", "extra", "drop", "meta"])
    )
    hashed = data.draw(st.booleans())

    def twist(verb: Verb, client: ClientId, request: Message, reply: Message) -> Message:
        if client != 1:
            return reply
        if field == "words":
            return replace(reply, blobs={"words": text})
        if field == "drop":
            return replace(reply, arrays=dict(list(reply.arrays.items())[1:]))
        if field == "meta":
            return replace(reply, meta={"version": 1})
        return replace(reply, arrays={**reply.arrays, field: odd})

    ran = twisted([*TEXTS, TEXTS[0]], twist, hashed=hashed)
    assert {"the", "of", "bank"} <= words(ran.agree())


# --- evidence ------------------------------------------------------------------------------------


@given(st.integers(1, 6), st.integers(0, 5), st.binary(min_size=16, max_size=16), st.randoms())
def test_k_shares_make_the_proof_and_fewer_do_not(
    k: int, more: int, name: bytes, draw: "st.randoms"
) -> None:
    key = root(1)
    xs = draw.sample(range(1, evidence.PRIME), k + more)  # type: ignore[attr-defined]
    points = [(x, evidence.share(name, key, k, x)) for x in xs]
    assert evidence.candidates(points, k) == [evidence.proof(name, key)]
    assert evidence.candidates(points[: k - 1], k) == []
    if k > 1:
        guess = evidence.candidates(points[: k - 1], k - 1)
        assert evidence.proof(name, key) not in guess
    assert evidence.candidates([points[0]] * k, k) == ([] if k > 1 else [points[0][1]])


@pytest.mark.parametrize("k", [2, 3, 4])
def test_the_right_proof_is_among_those_shown_though_one_lies(k: int) -> None:
    key, name = root(1), b"hash" * 4
    for liar in range(k + 1):
        xs = [evidence.place(root(i), b"nonce") for i in range(k + 1)]
        points = [(x, evidence.share(name, key, k, x) + (i == liar)) for i, x in enumerate(xs)]
        found = evidence.candidates(points, k)
        assert evidence.proof(name, key) in found
        assert len(found) <= evidence.groups(k)


# --- what is paid, and when ----------------------------------------------------------------------

DP: dict[str, object] = {"rule": "dp", "words_per_document": 5, "epsilon": 30.0, "delta": 0.1}


def test_an_agreement_is_paid_for_before_anything_is_asked() -> None:
    ran = wire(TEXTS, **DP)
    steps = ran.steps(ServerState())
    paid = next(steps)
    assert not ran.messages
    assert len(paid.ledger) == 3
    assert paid.done == {PAID}
    done = next(steps)
    assert done.ledger == paid.ledger
    assert ran.messages


def test_an_attempt_that_is_repeated_is_paid_for_again_where_it_draws_anew() -> None:
    first = wire(TEXTS, **DP)
    paid, whole = first.steps(ServerState())
    once = [*wire(TEXTS, **DP).steps(paid)]  # killed after it had paid
    assert once == [whole], "the same draws, the same bytes, nothing more to pay"
    again, twice = wire(TEXTS, **DP).steps(paid, again=True)
    assert epsilon(twice.ledger, "document", 0.3, "rdp") > epsilon(
        whole.ledger, "document", 0.3, "rdp"
    )
    assert again.ledger == twice.ledger
    assert list(wire(TEXTS, **DP).steps(twice, again=True)) == []
    old = ServerState(done=frozenset({"agree"}))  # of a run from before it was paid for ahead
    assert list(wire(TEXTS, **DP).steps(old)) == []


@pytest.mark.parametrize("rule", ["summed", "dp"])
@pytest.mark.parametrize("verb", ["propose", "spell"])
def test_an_agreement_that_is_killed_and_repeated_ends_alike(
    rule: str, verb: str, tmp_path: Path
) -> None:
    """Clients had answered, and kept what they remember of it, when the server died."""
    options = Agreement(**{**DP, "rule": rule, "size": 5})  # type: ignore[arg-type]
    method = Method(
        handlers(options),
        lambda fed, seed, state: agreed(fed, state, options, seed),
        ALL_SHARED,
        rounds=1,
    )

    def run(folder: str, state: ServerState, dies: bool) -> list[ServerState]:
        federation = simulate(Site(method, people_of(TEXTS), Store(tmp_path / folder)))
        asks: list[int] = []

        def tap(now: Verb, client: ClientId, request: Message, reply: Message) -> None:
            asks.append(client)
            if dies and now.name == verb and client == 1:
                raise KeyboardInterrupt

        states = []
        with suppress(KeyboardInterrupt):
            for after in method.server(tapped(federation, up=tap), root(0), state):
                states.append(after)
        assert len(asks) > 1
        return states

    whole = run("whole", ServerState(), dies=False)
    before = run("killed", ServerState(), dies=True)
    assert before == whole[:-1], "it had paid, and no more"
    after = run("killed", [ServerState(), *before][-1], dies=False)
    assert [*before, *after] == whole
    kept = [Store(tmp_path / name).load(1, (99, 0)) for name in ("whole", "killed")]
    assert kept[0] == kept[1]
    assert len(json.loads(kept[0].blobs[MEMORY])) == 1


# --- before anything is sent ---------------------------------------------------------------------

SITE = ["the bank owes anna 42", "the bank the bank", "the bank", "the bank of the bank zyx zyx"]
PUBLIC = ["the", "of", "anna", "bank", "to"]


def foreseen(**options: object) -> Preview:
    return preview(people_of([SITE]).client(0), Agreement(**options), PUBLIC)  # type: ignore[arg-type]


def test_a_site_sees_what_it_would_reveal_from_its_own_text_alone() -> None:
    # the 6, bank 6, zyx 2, anna, owes, 42 and of once
    shown = Preview(4, 7, once=5, digits=1, unknown=3, private=5, reach=2, exposed=0)
    assert foreseen() == shown
    assert foreseen(rest=0.0) == replace(shown, reach=4, exposed=2), "anna, of"
    assert foreseen(counts="exact", rest=0.7) == replace(shown, reach=0), "seven times"
    assert foreseen(rule="union", minimum=1) == replace(shown, reach=7, exposed=5)
    assert foreseen(rule="dp") == replace(shown, reach=0), "a liar sees no more than noise lets it"
    assert foreseen(rest=0.0, top=3) == Preview(4, 3, 1, 0, 1, 1, reach=1, exposed=0)
    told = foreseen(rule="intersection", minimum=6)
    assert told == Preview(4, 2, once=0, digits=0, unknown=0, private=0, reach=2, exposed=0)


def test_the_worst_that_is_foreseen_is_what_a_liar_gets() -> None:
    """In the worst case: it alone holds its words, and the liar shouts."""
    others = ["something else"] * 20
    for options in ({}, {"rest": 0.0}, {"counts": "exact", "rest": 0.6}, {"minimum": 4}):
        liar = [" ".join(PUBLIC)] * 100
        got = words(wire([SITE, others, liar], **options).agree())
        assert len(got & set(counts(SITE))) == foreseen(**options).reach


def test_foreseen_on_the_command_line(lexfed: Lexfed, tmp_path: Path) -> None:
    rows = [{"text": f"{t} {i}", "source": f"s{i % 2}"} for i, t in enumerate(SITE * 5)]
    (tmp_path / "site.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "words.txt").write_text("".join(f"{word} 0.5 0.5\n" for word in PUBLIC))
    (tmp_path / "site.toml").write_text(
        f'[data]\nname = "{tmp_path}/site.jsonl"\nclients = 2\npartition = "source"\n'
        f'[vocabulary]\nvectors = "{tmp_path}/words.txt"\n'
    )
    result = lexfed("vocab", "preview", "site.toml")
    assert result.returncode == 0, result.stderr
    assert "liars: 1, who try out the 5 most frequent of 5 public words" in result.stdout
    assert "anna" not in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "site.jsonl",
        "site.toml",
        "words.txt",
    ]
    union = lexfed("vocab", "preview", "site.toml", "--set", "agreement.rule=union").stdout
    assert "the server would read every word" in union
    assert "whoever holds it" in union
