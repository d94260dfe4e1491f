"""Agreeing on a word list, message by message: who learns what."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b, md5, sha256
from pathlib import Path

import dp_accounting
import numpy as np
import pyarrow as pa
import pytest
import torch
from dp_accounting import pld

from lexfed.agreement.evidence import PRIME
from lexfed.agreement.organisation import MEMORY, handlers, key_of
from lexfed.agreement.proposals import DISCLOSE, PROPOSE, SPELL
from lexfed.agreement.protocol import (
    REFUSED,
    VOCABULARY,
    Agreement,
    Refused,
    agree,
    agreed,
    refused_of,
)
from lexfed.agreement.word_list import from_bytes, keyed
from lexfed.core.errors import ConfigError, DataError, LexfedError, PrivacyError
from lexfed.core.params import ALL_SHARED
from lexfed.core.seeds import derive, root
from lexfed.corpus.loading import Columns, from_table
from lexfed.corpus.population import Population
from lexfed.experiment import config as configuration
from lexfed.federation import (
    ClientState,
    Federation,
    Requests,
    ServerState,
    Steps,
    clock,
    plain,
)
from lexfed.privacy.accounting import epsilon
from lexfed.records import checkpoint
from lexfed.records.checkpoint import Checkpoint
from lexfed.runs import agreement_alone as agreeing
from lexfed.vocabulary.word import Vocabulary
from lexfed.wire import ClientId, Message, Verb, check, check_outgoing, decode, echoing, encode
from tests.conftest import Lexfed, needs_data

Change = Mapping[tuple[Verb, ClientId], Message | None]  # what a client says instead; None: nothing


def people_of(texts: Sequence[Sequence[str]]) -> Population:
    """Organisations with these texts, without labels; one may have none."""
    flat = [text for own in texts for text in own]
    corpus = from_table(pa.table({"text": flat or ["-"]}), "hand-made", Columns())
    starts = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    return Population(corpus, starts, corpus, corpus, classes=0, secret=root(7))


@dataclass
class Wire:
    """A federation whose every message is kept, as bytes."""

    population: Population
    options: Agreement
    change: Change = field(default_factory=dict)
    messages: list[tuple[Verb, str, ClientId, Message]] = field(default_factory=list)
    states: dict[ClientId, ClientState] = field(default_factory=dict)

    def ask(self, verb: Verb, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        for client, message in requests.items():
            check(verb, "down", message)
            self.messages.append((verb, "down", client, decode(encode(message))))
            if self.change.get((verb, client), message) is None:
                continue
            state = self.states.get(client, ClientState())
            reply, after = handlers(self.options)[verb](
                message, self.population.client(client), state
            )
            assert after.blobs.keys() <= {MEMORY}, "it keeps what it answered, and nothing else"
            self.states[client] = after
            if reply is None:
                continue
            check_outgoing(verb, reply, ALL_SHARED)
            reply = self.change.get((verb, client)) or reply
            self.messages.append((verb, "up", client, reply))
            yield client, decode(encode(echoing(message, reply)))

    def agree(
        self, old: Vocabulary | None = None, state: ServerState = ServerState(), seed: int = 0
    ) -> ServerState:
        federation = Federation(range(len(self.population)), self.ask, plain(self.ask))
        return agree(federation, state, self.options, root(seed), old)

    def steps(self, state: ServerState, again: bool = False) -> Steps:
        federation = Federation(range(len(self.population)), self.ask, plain(self.ask))
        return agreed(federation, state, self.options, root(0), again=again)

    def vocabulary(self, old: Vocabulary | None = None, seed: int = 0) -> Vocabulary:
        return from_bytes(self.agree(old, seed=seed).blobs[VOCABULARY])

    def words(self) -> tuple[str, ...]:
        return self.vocabulary().tokens

    def sent(self, verb: Verb, way: str, client: ClientId | None = None) -> list[Message]:
        return [m for v, w, c, m in self.messages if (v, w) == (verb, way) and client in (None, c)]

    def bytes(self) -> list[bytes]:
        return [encode(message) for *_, message in self.messages]


def wire(texts: Sequence[Sequence[str]], change: Change | None = None, **options: object) -> Wire:
    return Wire(people_of(texts), Agreement(**options), change or {})  # type: ignore[arg-type]


NAME = "rumpelstiltskin"
TEXTS = [
    ["the bank of the market", f"{NAME} owns the bank"] * 6 + [NAME] * 10,
    ["the bacteria of the sea", "money of the bank"] * 6,
    ["the team of the league", "money for the team"] * 6,
]


# --- the pair ------------------------------------------------------------------------------------


def test_a_name_that_one_organisation_alone_holds_is_told_by_the_union_and_not_by_default() -> None:
    union, default = wire(TEXTS, rule="union"), wire(TEXTS)
    assert NAME in union.words()
    assert sum(NAME.encode() in data for data in union.bytes()) == 1, (
        "the server reads it off the wire"
    )
    words = default.words()
    assert NAME not in words
    assert {"the", "of", "bank", "money"} <= set(words)
    assert "team" not in words, "ten times and more, at one organisation"


def test_no_message_holds_it_in_any_form_but_its_keyed_hash() -> None:
    ran = wire(TEXTS)
    ran.words()
    forms = [
        NAME.encode(),
        NAME.upper().encode(),
        NAME.encode("utf-16-le"),
        NAME[::-1].encode(),
        NAME.encode().hex().encode(),
    ]
    assert not [data for data in ran.bytes() for form in forms if form in data]
    hashed = keyed(NAME, key(ran))
    assert [verb for verb, _, _, message in ran.messages if hashed in encode(message)] == [PROPOSE]
    assert not [state for state in ran.states.values() if NAME.encode() in state.blobs[MEMORY]]
    spoken = ran.sent(SPELL, "up")
    told = {word for message in spoken for word in message.blobs["words"].decode().split("\n")}
    assert told == set(ran.words()), "nothing is spelt that was not chosen"


def key(ran: Wire, client: int = 0) -> bytes:
    """Any organisation's: it is one key, of this agreement."""
    (nonce,) = {m.blobs["nonce"] for m in ran.sent(PROPOSE, "down")}
    return key_of(ran.population.client(client), nonce)


def sent_hashes(ran: Wire) -> set[bytes]:
    ran.agree()
    return {row.numpy().tobytes() for m in ran.sent(PROPOSE, "up") for row in m.arrays["hashes"]}


def test_a_dictionary_attack_fails_without_the_key_and_succeeds_with_it() -> None:
    ran = wire(TEXTS)
    sent, candidates = sent_hashes(ran), [NAME, "the", "bank", "team", "rapunzel"]
    (nonce,) = {m.blobs["nonce"] for m in ran.sent(PROPOSE, "down")}
    guesses = [
        b"",
        nonce,
        b"lexfed",
        root(0),
        root(1),
        derive(root(0), "server"),
        *(derive(root(0), "client", k) for k in range(3)),
    ]
    for word in candidates:
        tries = {blake2b(word.encode(), key=key, digest_size=16).digest() for key in guesses}
        tries |= {keyed(word, derive(guess, "words", nonce.hex())) for guess in guesses[1:]}
        tries |= {
            md5(word.encode()).digest(),
            sha256(word.encode()).digest()[:16],
            ran.population.client(0).secret[:16],
        }
        assert not tries & sent
    assert [word for word in candidates if keyed(word, key(ran, 2)) in sent] == [
        NAME,
        "the",
        "bank",
        "team",
    ]


def test_without_a_common_secret_nothing_is_sent() -> None:
    ran = wire(TEXTS)
    client = replace(ran.population.client(0), common_secret=b"")
    with pytest.raises(PrivacyError, match="without a secret"):
        handlers(ran.options)[PROPOSE](asked(), client, ClientState())
    client = ran.population.client(0)
    for nonce in (b"", b"short"):
        with pytest.raises(PrivacyError, match="nonce of 16 bytes; nothing was sent"):
            handlers(ran.options)[PROPOSE](asked(nonce), client, ClientState())


def asked(nonce: bytes = bytes(16)) -> Message:
    return replace(clock(ServerState(), 0), blobs={"nonce": nonce})


def test_order_says_nothing() -> None:
    """Proposals come in the order of their hashes, not of the text or of frequency."""
    ran = wire(TEXTS)
    ran.agree()
    for hashes in (m.arrays["hashes"] for m in ran.sent(PROPOSE, "up")):
        keys = [row.numpy().tobytes() for row in hashes]
        assert keys == sorted(keys)


# --- rules ---------------------------------------------------------------------------------------


def counts(texts: Sequence[str]) -> Counter[str]:
    return Counter(word for text in texts for word in text.split())


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("minimum", [1, 6, 12, 18])
def test_rules_end_to_end_equal_their_definitions(hashed: bool, minimum: int) -> None:
    own = [counts(texts) for texts in TEXTS]
    total = sum(own, Counter())
    tops = [{w for w, n in c.items() if n >= minimum} for c in own]
    ranked = sorted(total, key=lambda word: (-total[word], word))
    shared = [w for w in ranked if total[w] >= minimum and sum(w in c for c in own) >= 2]
    exact = {"minimum": minimum, "hashed": hashed, "counts": "exact"}
    assert list(wire(TEXTS, **exact, rest=0.0).words()) == shared
    for rest in (0.5, 1.0):
        left = {w: total[w] - max(c[w] for c in own) for w in shared}
        supported = [w for w in shared if left[w] >= rest * minimum]
        assert list(wire(TEXTS, **exact, rest=rest).words()) == supported
    assert list(wire(TEXTS, minimum=minimum, hashed=hashed, rule="union").words()) == sorted(
        set().union(*tops)
    )
    assert list(wire(TEXTS, minimum=minimum, hashed=hashed, rule="intersection").words()) == sorted(
        set.intersection(*tops)
    )


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
def test_hashes_and_words_are_cut_alike_but_for_ties(size: int) -> None:
    runs = [
        wire(TEXTS, minimum=1, holders=1, size=size, hashed=hashed, counts="exact")
        for hashed in (False, True)
    ]
    open_, veiled = (ran.vocabulary() for ran in runs)
    assert open_.counts == veiled.counts
    assert len(open_) == size
    above = open_.counts.index(open_.counts[-1])
    assert open_.tokens[:above] == veiled.tokens[:above]
    asked = {bytes(row) for m in runs[1].sent(SPELL, "down") for row in m.arrays["hashes"].numpy()}
    assert len(asked) == size, "no more is spelt than the list holds"


def test_counts_are_summed_and_not_shared_by_the_papers_rules() -> None:
    vocabulary = wire(TEXTS, counts="exact").vocabulary()
    assert vocabulary.counts[vocabulary.ids["the"]] == sum(counts(texts)["the"] for texts in TEXTS)
    for rule in ("union", "intersection"):
        ran = wire(TEXTS, rule=rule, minimum=1)
        assert not any(ran.vocabulary().counts)
        assert not [message for *_, message in ran.messages if "counts" in message.arrays]


def test_the_union_is_always_in_the_clear_and_says_so() -> None:
    assert not Agreement(rule="union", hashed=True).veiled
    assert handlers(Agreement(rule="union")).keys() == {DISCLOSE}
    veiled = handlers(Agreement()).keys()
    assert veiled == {PROPOSE, SPELL}, "there is no verb that could carry a proposal in the clear"


def test_an_organisation_proposes_its_top_words_alone() -> None:
    ran = wire(TEXTS, top=2, holders=1, minimum=1)
    assert set(ran.words()) == {"the", NAME, "of", "team"}


def test_a_joining_organisation_extends_the_list() -> None:
    first = wire(TEXTS, counts="exact").vocabulary()
    joined = wire([*TEXTS, ["the team owns money"] * 9], counts="exact").vocabulary(old=first)
    assert joined.tokens[: len(first)] == first.tokens
    assert set(joined.tokens) - set(first.tokens) == {"team", "owns"}
    assert joined.version == first.version + 1 == 2
    assert joined.counts[joined.ids["the"]] == first.counts[first.ids["the"]] + 9, (
        "nobody counts twice"
    )
    nothing_new = wire([["x"], ["y"]]).vocabulary(old=first)
    assert nothing_new == replace(first, version=2)


def test_agreeing_is_done_once_and_survives_a_checkpoint(tmp_path: Path) -> None:
    ran = wire(TEXTS, rule="dp", words_per_document=5, epsilon=30.0, delta=0.1)
    paid, state = ran.steps(ServerState(params={"x": torch.ones(2)}))
    assert paid.ledger == state.ledger
    assert not paid.blobs
    assert not any("model" in name for *_, message in ran.messages for name in message.arrays), (
        "the model has no part in it"
    )
    checkpoint.save(tmp_path, Checkpoint(state))
    back = checkpoint.load(tmp_path).state
    assert (back.blobs, back.ledger, back.step) == (state.blobs, state.ledger, 2)
    assert back.blobs.keys() == {VOCABULARY, REFUSED}
    assert len(back.ledger) == 3
    asked = len(ran.messages)
    assert list(ran.steps(back)) == []
    assert len(ran.messages) == asked


# --- who does not play by the rules --------------------------------------------------------------


def hashes(*words: bytes) -> torch.Tensor:
    return torch.tensor([list(word.ljust(16)) for word in words], dtype=torch.uint8)


ONE = torch.ones(1, dtype=torch.int64)
GOOD = {"hashes": hashes(b"a"), "counts": ONE, "shares": ONE, "place": ONE[0]}


def but(*without: str, blobs: Mapping[str, bytes] | None = None, **arrays: torch.Tensor) -> Message:
    """A good proposal, but for this."""
    kept = {name: value for name, value in GOOD.items() if name not in without}
    return Message({**kept, **arrays}, blobs=blobs or {})


MALFORMED = {
    "nothing": Message(),
    "hashes without counts": but("counts"),
    "columns of different length": but(hashes=hashes(b"a", b"b")),
    "hashes of another width": but(hashes=hashes(b"a")[:, :8]),
    "hashes that are numbers": but(hashes=hashes(b"a").long()),
    "a flat list": but(hashes=hashes(b"a")[0]),
    "the same twice": but(hashes=hashes(b"a", b"a"), counts=ONE.expand(2), shares=ONE.expand(2)),
    "a negative count": but(counts=-ONE),
    "more than there is text": but(counts=ONE << 62),
    "no number": but(counts=torch.tensor([math.nan])),
    "weights instead of counts": but("counts", weights=ONE.double()),
    "counts of another dtype": but(counts=ONE.int()),
    "words in the clear": but(blobs={"words": b"a"}),
    "no evidence": but("shares", "place"),
    "a share of nothing": but("place"),
    "a share too few": but(shares=ONE[:0]),
    "a share beyond the field": but(shares=torch.tensor([PRIME])),
    "no share": but(shares=-ONE),
    "the place of the secret": but(place=0 * ONE[0]),
    "a place beyond the field": but(place=torch.tensor(PRIME)),
    "several places": but(place=ONE),
    "more than the top": but(
        hashes=hashes(*map(bytes, [[i] for i in range(99)])),
        counts=ONE.expand(99),
        shares=ONE.expand(99),
    ),
}


def test_a_good_proposal_is_heard() -> None:
    """What the cases below are taken from."""
    odd = wire(TEXTS, {(PROPOSE, 1): but()}, top=50)
    assert refused_of(odd.agree()).replies == 0


@pytest.mark.parametrize("case", MALFORMED)
def test_who_proposes_nonsense_has_dropped_out(case: str) -> None:
    odd = wire(TEXTS, {(PROPOSE, 1): MALFORMED[case]}, top=50)
    without = wire([TEXTS[0], TEXTS[2]], top=50)
    state = odd.agree()
    assert from_bytes(state.blobs[VOCABULARY]).tokens == without.words()
    assert refused_of(state) == Refused(replies=1)
    assert not odd.sent(SPELL, "down", 1)
    assert odd.sent(SPELL, "down", 0)


OPENLY = {
    "two words on a line": Message({"counts": ONE}, blobs={"words": b"a b"}),
    "an empty line": Message({"counts": ONE.expand(2)}, blobs={"words": b"a\n"}),
    "no text": Message({"counts": ONE}, blobs={"words": b"\xff\xfe"}),
    "a word too long": Message({"counts": ONE}, blobs={"words": b"x" * 101}),
    "a word too many": Message({"counts": ONE}, blobs={"words": b"a\nb"}),
}


@pytest.mark.parametrize("case", OPENLY)
def test_who_discloses_nonsense_has_dropped_out(case: str) -> None:
    odd = wire(TEXTS, {(DISCLOSE, 1): OPENLY[case]}, hashed=False)
    assert odd.words() == wire([TEXTS[0], TEXTS[2]], hashed=False).words()


SPELLINGS = (b"", b"a b", b"\xff" * 9, b"a b\n" * 40, b"\n" * 40)
SPELT = [None, Message(), *(Message(blobs={"words": blob}) for blob in SPELLINGS)]


@pytest.mark.parametrize("answer", SPELT)
def test_who_does_not_spell_is_replaced_by_the_next_holder(answer: Message | None) -> None:
    texts = [*TEXTS, TEXTS[0]]
    whole = wire(texts).words()
    for silent in range(4):
        odd = wire(texts, {(SPELL, silent): answer})
        state = odd.agree()
        rest = [counts(own) for client, own in enumerate(texts) if client != silent]
        left = [word for word in whole if sum(word in own for own in rest) >= 2]
        assert set(from_bytes(state.blobs[VOCABULARY]).tokens) == set(left)
        assert refused_of(state).spellings == len(whole) - len(left)
    alone = wire(texts, {(SPELL, client): answer for client in range(4)})
    with pytest.raises(DataError, match="spelt alike by those"):
        alone.agree()


@pytest.mark.parametrize("weight", [math.nan, math.inf, -1.0, 0.0])
def test_who_weighs_with_no_number_has_dropped_out(weight: float) -> None:
    odd_one = Message({"hashes": hashes(b"a"), "weights": torch.tensor([weight]).double()})
    odd, silent = (
        wire(MANY, {(PROPOSE, 1): answer}, rule="dp", words_per_document=10)
        for answer in (odd_one, None)
    )
    assert odd.vocabulary() == silent.vocabulary()


# --- differential privacy ------------------------------------------------------------------------

MANY = [[f"{NAME} met the {i % 3} of a bank" if (k, i) == (0, 0) else f"met the {i % 3} of a bank" for i in range(400)]
        for k in range(3)]  # fmt: skip


def test_dp_tells_what_many_documents_hold_and_charges_documents() -> None:
    ran = wire(MANY, rule="dp", words_per_document=10)
    *_, state = ran.steps(ServerState())
    vocabulary = from_bytes(state.blobs[VOCABULARY])
    assert {"met", "the", "of", "a", "bank"} <= set(vocabulary.tokens)
    assert NAME not in vocabulary.tokens
    assert [release.unit for release in state.ledger] == ["document"] * 3
    scratch = pld.PLDAccountant()
    for release in state.ledger:
        scratch.compose(dp_accounting.GaussianDpEvent(release.event.noise), release.count)
    spent = epsilon(state.ledger, "document", 1e-6)
    assert spent == pytest.approx(
        scratch.get_epsilon(1e-6 - sum(r.delta for r in state.ledger)), rel=1e-9
    )
    assert 2.99 < spent <= 3.0
    assert epsilon(state.ledger, "user", 1e-6) == 0.0


def test_dp_counts_are_noisy_and_near_the_number_of_documents() -> None:
    ran = wire(MANY, rule="dp", words_per_document=7)
    one, two = (ran.vocabulary(seed=seed) for seed in (0, 1))
    assert one.counts != two.counts, "noise is the server's"
    assert one.counts[one.ids["the"]] == pytest.approx(1200, rel=0.1)


def test_released_words_leave_their_weight_to_the_others() -> None:
    ran = wire(MANY, rule="dp", words_per_document=10)
    ran.agree()
    asked = [m.arrays["released"] for m in ran.sent(PROPOSE, "down", 1)]
    assert len(asked) == 3
    assert [len(released) for released in asked] == sorted(len(released) for released in asked)
    assert len(asked[0]) == 0 < len(asked[1])
    replies = ran.sent(PROPOSE, "up", 1)
    for released, reply in zip(asked, replies, strict=True):
        assert not {bytes(row) for row in released.numpy()} & {
            bytes(row) for row in reply.arrays["hashes"].numpy()
        }


def test_dp_in_the_clear_gives_the_same_words() -> None:
    """Other noise meets other words, but words that all documents hold come through either way."""
    texts = [["a fine day"] * 2000] * 2
    assert (
        set(wire(texts, rule="dp").words())
        == set(wire(texts, rule="dp", hashed=False).words())
        == {"a", "fine", "day"}
    )


# --- edges ---------------------------------------------------------------------------------------


def line(ran: Wire) -> str:
    with pytest.raises(LexfedError) as error:
        ran.agree()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_vocabularies_that_do_not_overlap() -> None:
    texts = [["eins zwei"] * 20, ["one two"] * 20]
    assert line(wire(texts)).startswith(
        "no word is held by 2 organisations and occurs 10 times in all (5 without the one that "
        "says most); lower agreement.minimum"
    )
    assert "at every organisation" in line(wire(texts, rule="intersection"))
    assert (
        set(wire(texts, rule="union").words())
        == set(wire(texts, holders=1).words())
        == {"eins", "zwei", "one", "two"}
    )


def test_an_organisation_with_no_word_above_the_threshold_takes_part() -> None:
    texts = [["money and bacteria"] * 9, ["money"]]
    assert wire(texts, rest=0.1, counts="exact").words() == ("money",), "its one is the tenth"
    assert wire([*texts, ["sea"] * 10], rule="union").words() == ("sea",)
    assert "lower agreement.minimum" in line(wire(texts, rule="union"))


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("rule", ["summed", "union", "dp"])
def test_an_organisation_without_text_takes_part(rule: str, hashed: bool) -> None:
    texts = [["money and bacteria"] * 400, [], ["money"] * 400]
    ran = wire(texts, rule=rule, hashed=hashed, words_per_document=3)
    assert "money" in ran.words()
    assert [client for verb, way, client, _ in ran.messages if way == "up" and client == 1]


@pytest.mark.parametrize("rule", ["summed", "union", "intersection", "dp"])
def test_no_text_at_all_is_one_line(rule: str) -> None:
    assert "no word" in line(wire([[], []], rule=rule))


def test_a_one_organisation_federation() -> None:
    assert line(wire([["a fine day"] * 20])).endswith(
        "but 1 organisation takes part: set agreement.holders = 1"
    )
    assert wire([["a fine day"] * 20], holders=1).words() == ("a", "day", "fine")
    assert line(wire(TEXTS, holders=4)).endswith(
        "but 3 organisations take part: set agreement.holders = 3"
    )
    silent = wire(TEXTS, {(PROPOSE, 0): None, (PROPOSE, 1): None})
    assert "set agreement.holders = 1" in line(silent)


def test_text_without_spaces() -> None:
    texts = [["我喜欢北京。他也喜欢", "今天天气很好"] * 6, ["我不喜欢北京。她来了", "明天见"] * 6]
    assert wire(texts).words() == ("。",), "clauses are words, and hardly two are alike"
    bare = [[text.replace("。", "") for text in own] for own in texts]
    assert "text written without spaces must be cut into words first" in line(wire(bare))
    cut = [["我 喜欢 北京 。 他 也 喜欢"] * 6, ["我 不 喜欢 北京 。 她 来 了"] * 6]
    assert wire(cut).words() == ("喜欢", "。", "北京", "我")


def test_a_word_of_5000_characters_is_not_proposed() -> None:
    texts = [["fine " + "x" * 5000] * 10] * 2
    for options in ({}, {"hashed": False}, {"rule": "dp", "delta": 0.1, "epsilon": 100.0}):
        ran = wire(texts, **options)
        assert ran.words() == ("fine",)
        assert not [data for data in ran.bytes() if b"x" * 101 in data]


@pytest.mark.parametrize("hashed", [True, False])
def test_other_scripts(hashed: bool) -> None:
    texts = [["हिन्दी में москва ΑΘΗΝΑ عربي"] * 6] * 2
    assert set(wire(texts, hashed=hashed).words()) == {"हिन्दी", "में", "москва", "αθηνα", "عربي"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top": 0}, "agreement.top must be at least 1"),
        ({"holders": 0}, "agreement.holders must be at least 1"),
        ({"size": 0}, "agreement.size must be at least 1"),
        ({"rule": "union", "size": 5}, "agreement.size needs counts"),
        ({"epsilon": 0.0}, "agreement.epsilon must be above 0"),
        ({"delta": 1.0}, "agreement.delta between 0 and 1"),
        ({"rule": "onion"}, "did you mean 'union'?"),
    ],
)
def test_what_can_not_be_meant_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        configuration.parse({"method": "federated_word2vec", "agreement": options})


# --- alone, on real text -------------------------------------------------------------------------


def text8(limit: int | None) -> agreeing.Outcome:
    data = {"name": "text8", "clients": 10, "partition": "source"} | (
        {"limit": limit} if limit else {}
    )
    return agreeing.run(configuration.parse({"data": data}))


@needs_data
@pytest.mark.parametrize("limit", [6000, pytest.param(None, marks=pytest.mark.slow)])
def test_the_default_covers_no_less_than_the_union_and_shows_no_word_of_one_alone(
    limit: int | None,
) -> None:
    revealed = text8(limit).revealed
    assert (
        revealed.single_source_words
        == 0
        < revealed.union_single_source_words
        < revealed.union_single_proposals
    )
    assert revealed.coverage("agreed") > revealed.coverage("union") > 0.5
    for organisation in revealed.organisations:
        assert organisation.coverage(organisation.agreed) >= organisation.coverage(
            organisation.union
        )
        assert (organisation.agreed.to_others, organisation.agreed.to_server) == (0, 0)


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A configuration of three organisations in a file."""
    rows = [
        {"text": f"{text} {i}", "source": f"s{k}"}
        for k, own in enumerate(TEXTS)
        for i, text in enumerate(own)
    ]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "three.toml"
    path.write_text(
        f'[data]\nname = "{tmp_path}/texts.jsonl"\nclients = 3\npartition = "source"\n[agreement]\nminimum = 4\n'
    )
    return path


def test_agreeing_on_the_command_line(three: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    result = lexfed("vocab", "agree", three, "--out", "list.json")
    assert result.returncode == 0, result.stderr
    assert "rule 'summed' (keyed hashes)" in result.stdout
    assert "version 1, single_source_words 0" in result.stdout
    assert "beside it, the paper's union" in result.stdout
    assert NAME not in result.stdout
    assert NAME not in (tmp_path / "list.json").read_text()
    shown = lexfed("vocab", "inspect", "list.json")
    assert shown.returncode == 0
    assert "version" in shown.stdout
    assert "the (" in shown.stdout
    again = lexfed("vocab", "agree", three, "--out", "list.json")
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "exists already" in again.stderr
    longer = lexfed(
        "vocab",
        "agree",
        three,
        "--extend",
        "list.json",
        "--set",
        "agreement.minimum=1",
        "--out",
        "two.json",
    )
    assert "version 2" in longer.stdout
    old, new = (agreeing.read(tmp_path / name) for name in ("list.json", "two.json"))
    assert new.tokens[: len(old)] == old.tokens
    assert len(new) > len(old)


def test_the_report_says_what_the_server_is_told(three: Path, lexfed: Lexfed) -> None:
    open_ = lexfed("vocab", "agree", three, "--set", "agreement.hashed=false").stdout
    veiled = lexfed("vocab", "agree", three).stdout
    last = [
        next(row for row in text.splitlines() if row.startswith("all")).split()
        for text in (open_, veiled)
    ]
    assert int(last[0][-1]) > 0
    assert int(last[1][-1]) == 0
    union = lexfed("vocab", "agree", three, "--set", "agreement.rule=union").stdout
    assert "beside it" not in union
    assert "(in the clear)" in union


def test_the_price_is_never_printed_alone(three: Path, lexfed: Lexfed) -> None:
    settings = ["agreement.rule=dp", "agreement.epsilon=20", "agreement.delta=0.1"]
    result = lexfed(
        "vocab", "agree", three, *(word for setting in settings for word in ("--set", setting))
    )
    assert result.returncode == 0, result.stderr
    (price,) = (text for text in result.stdout.splitlines() if "epsilon" in text)
    for part in (
        "at delta 0.1",
        "per document",
        "against readers of the list",
        "trusted",
        "covers the vocabulary only",
    ):
        assert part in price


def test_errors_of_use_are_one_line(three: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "empty").mkdir()
    for arguments, said in (
        (("agree", three, "--set", "agreement.holders=9"), "set agreement.holders = 3"),
        (("agree", three, "--extend", "bad.json"), "bad.json can't be read"),
        (("inspect", "missing.json"), "there is no file missing.json"),
        (("inspect", "empty"), "empty holds no common vocabulary"),
    ):
        result = lexfed("vocab", *arguments)
        assert (result.returncode, result.stderr.count("\n")) == (2, 1)
        assert said in result.stderr


def test_a_runs_vocabulary_can_be_inspected(lexfed: Lexfed, tmp_path: Path) -> None:
    state = wire(TEXTS).agree()
    checkpoint.save(tmp_path / "run/checkpoint", Checkpoint(state))
    assert "the (" in lexfed("vocab", "inspect", "run").stdout
    (tmp_path / "given/artifacts").mkdir(parents=True)
    (tmp_path / "given/artifacts/vocabulary.txt").write_text("<unk>\n[b]\nmoney\n")
    shown = lexfed("vocab", "inspect", "given").stdout
    assert "not shared" in shown
    assert "[b]" in shown, "a word that looks like markup"


def test_what_is_left_out_or_badly_covered_is_said(tmp_path: Path, lexfed: Lexfed) -> None:
    rows = [
        {"text": f"{'x' * 5000} {'我喜欢' * (i % 3 + 1)}{i} fine", "source": f"s{i % 2}"}
        for i in range(40)
    ]
    (tmp_path / "odd.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "odd.toml").write_text(
        f'[data]\nname = "{tmp_path}/odd.jsonl"\nclients = 2\npartition = "source"\n'
    )
    result = lexfed("vocab", "agree", "odd.toml")
    assert "running words longer than 100 characters are left out" in result.stdout
    assert "text written without spaces must be cut into words first" in result.stdout
