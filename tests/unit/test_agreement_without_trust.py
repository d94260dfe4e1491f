"""An agreement in which nobody is trusted: what comes out, what the server learns alone and with one
organisation at its side, and what one that lies can do.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from lexfed.agreement import group_key, offers, word_secrets
from lexfed.agreement.group_key import ACCEPT, DEAL, INTRODUCE, least_complained_of, read_deals
from lexfed.agreement.offers import OFFER, read_offers
from lexfed.agreement.organisation import handlers
from lexfed.agreement.preview import preview
from lexfed.agreement.proposals import hashes
from lexfed.agreement.protocol import VOCABULARY, Agreement, Refused, agreed, refused_of
from lexfed.agreement.word_list import from_bytes, keyed
from lexfed.agreement.word_secrets import SPELLING, Row, secret_of, tag_of
from lexfed.core.errors import ConfigError, LexfedError, PrivacyError
from lexfed.core.params import ALL_SHARED
from lexfed.core.seeds import Seed, derive, root
from lexfed.corpus.population import Data, Population, build
from lexfed.experiment import config as configuration
from lexfed.experiment.assembly import assemble
from lexfed.federation import ClientState, Federation, Method, ServerState, Steps, tapped
from lexfed.runtime.simulation import Site, simulate, site_of
from lexfed.runtime.store import Store
from lexfed.runtime.threads import threads
from lexfed.secure import keys, shamir
from lexfed.vocabulary import splitting
from lexfed.vocabulary.tables import vectors
from lexfed.wire import ClientId, Message, Verb, encode
from tests.conftest import ROOT, Lexfed, needs_data
from tests.hostile import vectors as word_vectors
from tests.unit.test_agreement import NAME, TEXTS, Wire, counts, line, people_of, wire
from tests.unit.test_liars import FOUR, Twisted, words

QUICK = {"trust": "nobody", "memory": 2}  # a guess costs next to nothing here
EXACT = {**QUICK, "minimum": 1, "rest": 0.0, "counts": "exact"}


def nobody(texts: Sequence[Sequence[str]], **options: object) -> Wire:
    return wire(texts, **{**QUICK, **options})


def terms(ran: Wire) -> offers.Terms:
    return ran.options.terms


def sent_offers(ran: Wire) -> dict[ClientId, Message]:
    return {c: m for verb, way, c, m in ran.messages if verb is OFFER and way == "up"}


def tags(ran: Wire) -> set[bytes]:
    return {tag for m in sent_offers(ran).values() for tag in hashes(m.arrays["tags"])}


def key_with(ran: Wire, client: ClientId) -> Seed:
    """What an organisation that works with the server brings."""
    (request,) = ran.sent(OFFER, "down", client)
    (group,) = read_deals(request, ran.population.client(client), request.blobs["nonce"])
    assert group is not None
    return terms(ran).key(group, request.blobs["nonce"])


# --- exactly the words that k hold ----------------------------------------------------------------


@cache
def newsgroups() -> Population:
    data = Data("20news", clients=5, partition="iid", limit=150, validation=0.0)
    return build(data, derive(root(3), "data"))


def reference(people: Population, gone: Sequence[ClientId] = ()) -> list[Counter[str]]:
    """The words of everybody who stayed, counted one by one."""
    return [
        Counter(
            word
            for text in people.client(client).train
            for word in splitting.words(text)
            if len(word) <= 100 and len(word.encode()) <= SPELLING
        )
        for client in range(len(people))
        if client not in gone
    ]


@needs_data
@pytest.mark.parametrize(("holders", "gone"), [(2, []), (3, []), (5, []), (2, [3]), (4, [0])])
def test_exactly_the_words_that_k_organisations_hold_come_out(
    holders: int, gone: list[ClientId]
) -> None:
    """No word passes wrongly, none fails wrongly, no count is off."""
    people = newsgroups()
    silent = {(OFFER, client): None for client in gone}
    ran = Wire(people, Agreement(**EXACT, holders=holders), silent)  # type: ignore[arg-type]
    vocabulary = ran.vocabulary()
    own = reference(people, gone)
    total = sum(own, Counter[str]())
    held = {word for word in total if sum(word in one for one in own) >= holders}
    assert len(total) > 4000
    assert refused_of(ran.agree()) == Refused()
    assert set(vocabulary.tokens) - held == set(), "passed wrongly"
    assert held - set(vocabulary.tokens) == set(), "failed wrongly"
    assert dict(zip(vocabulary.tokens, vocabulary.counts, strict=True)) == {
        word: total[word] for word in held
    }
    assert len(held) < 0.7 * len(total), "and most words are held by one"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"minimum": 1},
        {"counts": "exact", "minimum": 1, "rest": 0.0},
        {"counts": "none", "minimum": 6},
        {"size": 2},
        {"holders": 3, "minimum": 1},
        {"rule": "intersection", "minimum": 6},
        {"top": 3, "minimum": 1},
    ],
)
def test_the_list_is_the_one_that_a_trusted_server_would_make(options: dict[str, object]) -> None:
    assert nobody(FOUR, **options).vocabulary() == wire(FOUR, **options).vocabulary()


@pytest.mark.parametrize("silent", range(4))
@pytest.mark.parametrize("verb", [INTRODUCE, DEAL, ACCEPT, OFFER])
def test_who_drops_out_at_any_exchange_is_missed_and_no_more(verb: Verb, silent: ClientId) -> None:
    ran = wire(FOUR, {(verb, silent): None}, **EXACT)
    # who deals no key can still read another's
    own = [counts(texts) for c, texts in enumerate(FOUR) if c != silent or verb is DEAL]
    assert set(ran.words()) == {w for one in own for w in one if sum(w in o for o in own) >= 2}


def test_too_few_are_one_line() -> None:
    silent = {(OFFER, client): None for client in (0, 1)}
    assert "set agreement.holders = 1" in line(wire(TEXTS, silent, **QUICK))
    for verb in (INTRODUCE, DEAL, ACCEPT):
        nobody_answers = {(verb, client): None for client in range(3)}
        assert "0 organisations take part" in line(wire(TEXTS, nobody_answers, **QUICK))
    assert line(nobody([["eins"] * 20, ["one"] * 20])).startswith("no word is held by 2")
    assert nobody([["money and bacteria"] * 20, [], ["money"] * 20]).words() == ("money",)


def test_a_joining_organisation_extends_the_list() -> None:
    first = nobody(TEXTS, counts="exact").vocabulary()
    joined = nobody([*TEXTS, ["the team owns money"] * 9], counts="exact").vocabulary(old=first)
    assert joined.tokens[: len(first)] == first.tokens
    assert set(joined.tokens) - set(first.tokens) == {"team", "owns"}


def test_a_word_longer_than_its_slot_is_not_proposed() -> None:
    fits, long = "я" * (SPELLING // 2), "я" * (SPELLING // 2 + 1)
    assert set(nobody([[f"fine {fits} {long}"] * 10] * 2).words()) == {"fine", fits}


# --- the server alone -----------------------------------------------------------------------------


def pieces(ran: Wire) -> set[bytes]:
    """All that it saw which might be a key."""
    found = {bytes(32)}
    for *_, message in ran.messages:
        found |= {derive(b"lexfed", data.hex()) for data in message.blobs.values()}
        for array in message.arrays.values():
            if array.dtype == torch.uint8 and len(array) < 20:
                row = array.numpy().tobytes()
                found |= {row[i : i + 32] for i in range(0, len(row) - 31, 16)}
    return found


def test_the_server_alone_learns_no_word_that_fewer_than_k_hold() -> None:
    """It has every message, and a dictionary that holds the truth."""
    ran = nobody(TEXTS)
    ran.agree()
    sent, dictionary = tags(ran), sorted({*counts([t for own in TEXTS for t in own]), "zebra"})
    (nonce,) = {m.blobs["nonce"] for m in ran.sent(OFFER, "down")}
    seen = pieces(ran)
    tried = [key for piece in seen for key in (piece, terms(ran).key(piece, nonce))]
    assert len(tried) > 50
    for key in tried:
        assert not {tag_of(secret_of(word, key, 2)) for word in dictionary} & sent
    with_key = key_with(ran, 2)
    assert with_key not in tried
    assert len({tag_of(secret_of(word, with_key, 2)) for word in dictionary} & sent) == (
        len(dictionary) - 1
    ), "with the key it would have found all but the zebra"
    opened = read_offers(sent_offers(ran), terms(ran))
    held = Counter(word for own in TEXTS for word in counts(own))
    assert set(opened.words.values()) == {word for word, n in held.items() if n >= 2}


@needs_data
def test_a_dictionary_of_english_finds_nothing_without_the_key() -> None:
    ran = Wire(newsgroups(), Agreement(**EXACT))  # type: ignore[arg-type]
    ran.agree()
    english = vectors.load("glove_6b_100d_top100k.npz").words[:20_000]
    nonce, sent = ran.sent(OFFER, "down")[0].blobs["nonce"], tags(ran)
    for key in (terms(ran).key(nonce * 2, nonce), nonce * 2):
        assert not [w for w in english if tag_of(secret_of.__wrapped__(w, key, 2)) in sent]


def test_no_message_holds_a_word_below_k_in_any_form_and_no_count_of_it() -> None:
    ran = nobody(TEXTS)
    ran.agree()
    forms = [
        NAME.encode(), NAME.encode("utf-16-le"), NAME[::-1].encode(), NAME.encode().hex().encode(),
        b"bank",  # and what is held by two travels sealed, too
    ]  # fmt: skip
    assert not [data for data in ran.bytes() for form in forms if form in data]
    assert not [s for s in ran.states.values() if NAME.encode() in b"".join(s.blobs.values())]
    louder = nobody([[*TEXTS[0], *[NAME] * 99], *TEXTS[1:]])
    louder.agree()
    assert tags(louder) == tags(ran), "said once or a hundred times more, it looks alike"


def test_k_less_one_shares_are_nothing() -> None:
    secret = derive(root(1), "s")
    for k in (2, 3, 5):
        made = {place: word_secrets.row("word", 3, secret, k, place) for place in range(1, 9)}
        for few in combinations(made, k - 1):
            shown = {place: made[place] for place in few}
            assert word_secrets.opened(shown, k, Counter()) == {}
            assert shamir.join({place: one.share for place, one in shown.items()}) != secret
        for enough in combinations(made, k):
            found = word_secrets.opened({p: made[p] for p in enough}, k, Counter())
            assert found == dict.fromkeys(enough, (b"word", 3))


def test_two_holders_seal_one_word_under_keys_of_their_own() -> None:
    """Under one key stream the server would read how their counts differ, below k."""
    secret = derive(root(1), "s")
    one, other = (word_secrets.row("word", 3, secret, 3, place).sealed for place in (1, 2))
    alike = sum(a == b for a, b in zip(one, other, strict=True))
    assert alike < 6, "by chance, of 87 bytes"


def test_tags_of_two_agreements_have_nothing_in_common() -> None:
    runs = [nobody(TEXTS), nobody(TEXTS), nobody(TEXTS), nobody(TEXTS, holders=3, minimum=1)]
    first = runs[0].vocabulary()
    runs[1].agree(seed=1)
    runs[2].agree(old=first)
    runs[3].agree()
    for one, other in combinations(map(tags, runs), 2):
        assert one
        assert not one & other


def test_a_nonce_that_comes_again_gets_the_same_bytes_or_nothing() -> None:
    ran, more = nobody(TEXTS), nobody([[*own, "new words"] for own in TEXTS])
    ran.agree()
    (request,) = ran.sent(OFFER, "down", 1)
    (first,) = ran.sent(OFFER, "up", 1)
    ((_, again),) = ran.ask(OFFER, {1: request})
    assert encode(Message(again.arrays)) == encode(Message(first.arrays))
    more.states = ran.states
    assert not list(more.ask(OFFER, {1: request})), "its text has changed since"
    lower = replace(request, meta={**request.meta, "most": 3})
    assert not list(ran.ask(OFFER, {1: lower})), "its rarest words would stand out"
    for nonce in (b"", b"short"):
        with pytest.raises(PrivacyError, match="nonce of 16 bytes; nothing was sent"):
            list(ran.ask(OFFER, {1: replace(request, blobs={"nonce": nonce})}))


def test_a_server_can_not_slip_in_a_key_of_its_own() -> None:
    """It has an identity that nobody knows, or none."""
    ran = nobody(TEXTS)
    ran.agree()
    (request,) = ran.sent(OFFER, "down", 1)
    client, nonce = ran.population.client(1), request.blobs["nonce"]
    forger = replace(people_of(TEXTS).client(0), secret=root(99), identity=root(98))
    mine = group_key.introduction(forger, nonce, 1)
    theirs = ran.sent(INTRODUCE, "up", 1)[0]
    members = {
        "members": torch.tensor([1]),
        "keys": theirs.arrays["key"][None],
        "signatures": theirs.arrays["signature"][None],
    }
    deal = group_key.dealt(Message(members), replace(forger, pinned=client.pinned), nonce)
    forged = {
        "dealers": torch.tensor([0]),
        "keys": mine.arrays["key"][None],
        "signatures": mine.arrays["signature"][None],
        "sealed": deal.arrays["sealed"],
        "proofs": deal.arrays["proof"][None],
    }
    attempt = replace(request, arrays=forged)
    assert read_deals(attempt, client, nonce) == [None]
    assert handlers(ran.options)[OFFER](attempt, client, ran.states[1])[0] is None
    known = replace(client, pinned=lambda _: keys.public_identity(forger.identity))
    assert read_deals(attempt, known, nonce) != [None], "but for its identity it would have worked"


# --- the server with one organisation, and the naive sum ------------------------------------------


def naive_sums(texts: Sequence[Sequence[str]], key: Seed) -> Counter[bytes]:
    """What a secure sum of hashed indicators would tell, exactly: a number for each hash."""
    return Counter(keyed(word, key) for own in texts for word in counts(own))


DICTIONARY = ["zebra", "team", "bacteria", "league", "market", "sea", "the", "owns"]


def test_whoever_has_the_key_of_a_naive_sum_reads_a_one_off_it() -> None:
    """And the server must have it: it could put no word to a sum without."""
    sums = naive_sums(TEXTS, root(5))
    assert {word for word in DICTIONARY if sums[keyed(word, root(5))] == 1} == {
        "team", "bacteria", "league", "market", "sea", "owns",
    }  # fmt: skip


def test_the_server_with_one_organisation_finds_what_it_guesses_and_nothing_else() -> None:
    """What is left. A guess costs what hashing a word costs an organisation."""
    ran = nobody(TEXTS)
    ran.agree()
    key, alone = key_with(ran, 1), Counter(t for t in _all_tags(ran))
    found = {w for w in DICTIONARY if alone[tag_of(secret_of(w, key, 2))] == 1}
    assert found == {"team", "bacteria", "league", "market", "sea", "owns"}
    opened = read_offers(sent_offers(ran), terms(ran))
    assert NAME not in {*found, *opened.words.values()}, "nobody guessed it, and nobody spells it"


def _all_tags(ran: Wire) -> Iterator[bytes]:
    return (tag for m in sent_offers(ran).values() for tag in hashes(m.arrays["tags"]))


def test_what_a_guess_costs_is_written_down_and_is_not_little() -> None:
    """Beside a keyed hash; the committed figures are those of `benchmarks/guessing.py`."""
    committed = json.loads((ROOT / "benchmarks/guessing.json").read_text())
    (default,) = (row for row in committed["slow"] if row["memory"] == Agreement().memory)
    assert default["dictionary_cpu_seconds"] == pytest.approx(
        100_000 / default["guesses_per_cpu_second"], rel=0.01
    )

    def seconds(guess: object, number: int) -> float:
        start = time.process_time()
        for i in range(number):
            guess(f"word{i}")  # type: ignore[operator]
        return (time.process_time() - start) / number

    slow = seconds(lambda w: secret_of.__wrapped__(w, root(0), Agreement().memory), 200)
    quick = seconds(lambda w: keyed(w, root(0)), 20_000)
    assert slow > 50 * quick


# --- one that lies --------------------------------------------------------------------------------


def lying(texts: Sequence[Sequence[str]], twist: object, **options: object) -> Twisted:
    ran = Twisted(people_of(texts), Agreement(**{**EXACT, **options}))  # type: ignore[arg-type]
    ran.twist = twist  # type: ignore[assignment]
    return ran


def instead(liars: Sequence[ClientId], name: str, change: object) -> object:
    """These change one array of their offers."""

    def twist(verb: Verb, client: ClientId, request: Message, reply: Message) -> Message:
        if verb is not OFFER or client not in liars:
            return reply
        return replace(reply, arrays={**reply.arrays, name: change(reply.arrays[name])})  # type: ignore[operator]

    return twist


def left_by(liars: Sequence[ClientId], texts: Sequence[Sequence[str]], holders: int) -> set[str]:
    own = [counts(one) for client, one in enumerate(texts) if client not in liars]
    return {word for one in own for word in one if sum(word in o for o in own) >= holders}


FIVE = [*FOUR, TEXTS[1]]


@pytest.mark.parametrize("liar", range(5))
@pytest.mark.parametrize("holders", [2, 3])
@pytest.mark.parametrize("name", ["shares", "sealed"])
def test_wrong_shares_and_seals_keep_nothing_back_that_k_others_hold(
    name: str, holders: int, liar: ClientId
) -> None:
    whole = lying(FIVE, instead([], "tags", None), holders=holders).agree()
    state = lying(FIVE, instead([liar], name, lambda a: a ^ 1), holders=holders).agree()
    assert left_by([liar], FIVE, holders) <= words(state) <= words(whole)
    if name == "shares":
        assert words(state) == left_by([liar], FIVE, holders)
    assert refused_of(state).shares > 0
    assert refused_of(whole) == Refused()


def test_a_wrong_share_for_one_word_alone_is_found_out() -> None:
    def change(array: torch.Tensor) -> torch.Tensor:
        changed = array.clone()
        changed[::7, 5] ^= 255
        return changed

    state = lying(FIVE, instead([0], "shares", change)).agree()
    assert left_by([0], FIVE, 2) <= words(state)


@pytest.mark.parametrize("k", [2, 10, 19])
def test_among_twenty_holders_a_wrong_share_is_found_wherever_it_is(k: int) -> None:
    secret = derive(root(1), "s")
    made = {place: word_secrets.row("word", 3, secret, k, place) for place in range(1, 21)}
    for liar in made:
        wrong = Counter[int]()
        lie = made[liar]._replace(share=bytes(shamir.BYTES))
        found = word_secrets.opened({**made, liar: lie}, k, wrong)
        assert found.keys() == made.keys() - {liar}
        assert wrong == {liar: 1}


def test_two_that_lie_are_withstood_by_three_holders() -> None:
    texts = [["the bank of the river"] * 12] * 5
    state = lying(texts, instead([0, 3], "shares", lambda a: a ^ 1), holders=3).agree()
    assert words(state) == {"the", "bank", "of", "river"}
    assert refused_of(state).shares == 8


def misspelling(ran: Twisted, liars: Sequence[ClientId], said: dict[str, str]) -> object:
    """They have the key, so they can make rows of a word that say another."""

    def twist(verb: Verb, client: ClientId, request: Message, reply: Message) -> Message:
        if verb is not OFFER or client not in liars:
            return reply
        own, nonce = ran.population.client(client), request.blobs["nonce"]
        (group,) = read_deals(request, own, nonce)
        assert group is not None
        key, k, place = ran.options.terms.key(group, nonce), ran.options.holders, client + 1
        made = zip(*(hashes(reply.arrays[n]) for n in ("tags", "shares", "sealed")), strict=True)
        kept = {one[0]: Row(*one) for one in made}
        real = {tag_of(secret_of(word, key, 2)) for word in counts(own.train)}
        for word, lie in said.items():
            secret = secret_of(word, key, 2)
            if tag_of(secret) not in real:  # in the place of a row of none
                kept.pop(next(tag for tag in kept if tag not in real))
            kept[tag_of(secret)] = word_secrets.row(lie, 99, secret, k, place)
        return Message(offers.columns(sorted(kept.values())))

    return twist


def test_a_liar_can_not_change_a_word_nor_plant_one() -> None:
    texts = [["the bank of the river"] * 12] * 3
    for holders, liars in ((2, [1]), (3, [1]), (3, [0, 1])):
        ran = lying([*texts, *texts][: holders + len(liars)], None, holders=holders)
        ran.twist = misspelling(ran, liars, {"bank": "viagra", "pills": "pills"})  # type: ignore[assignment]
        state = ran.agree()
        assert words(state) == {"the", "bank", "of", "river"}
        assert refused_of(state).shares == len(liars)
    pair = lying(texts, None)
    pair.twist = misspelling(pair, [0, 1], {"pills": "pills"})  # type: ignore[assignment]
    assert "pills" in words(pair.agree()), "two can, where two are enough: what is left"


def test_a_liar_is_one_holder_of_any_word_it_names() -> None:
    """What is left: the server reads it then, and the list takes it if others say it often."""
    secret = [[*TEXTS[0], NAME], *TEXTS[1:], [NAME] * 50]
    ran = nobody(secret)
    assert NAME in ran.words(), "sixteen times at the first"
    once = [["the bank", NAME] + ["the bank"] * 20, ["the bank"] * 20, [NAME] * 50]
    withheld = nobody(once)
    assert NAME not in withheld.words(), "not in the list, though two hold it"
    assert NAME in read_offers(sent_offers(withheld), terms(withheld)).words.values()


def test_a_dealer_that_parts_the_others_is_passed_over() -> None:
    """It seals another key for one of them, or for all, or says another proof."""
    for victim in (1, 2):
        for liar in (0, 3):

            def twist(
                verb: Verb, client: ClientId, request: Message, reply: Message, liar: int = liar,
                victim: int = victim,
            ) -> Message:  # fmt: skip
                if client != liar or verb not in (DEAL, ACCEPT):
                    return reply
                if verb is ACCEPT:  # and it complains of everybody
                    return Message({"read": torch.zeros_like(reply.arrays["read"])})
                sealed = reply.arrays["sealed"].clone()
                sealed[victim] ^= 1
                return replace(reply, arrays={**reply.arrays, "sealed": sealed})

            ran = lying(FOUR, twist)
            assert left_by([liar], FOUR, 2) <= words(ran.agree())
            assert ran.sent(OFFER, "up", victim), "nobody is shut out but the liar"


@pytest.mark.parametrize("n", [3, 4, 6])
def test_no_single_liar_has_an_honest_one_shut_out(n: int) -> None:
    """Whomever it cheats as a dealer, and whomever it complains of."""
    for liar in range(n):
        others = [i for i in range(n) if i != liar]
        for size in range(n):
            for cheated in combinations(others, min(size, n - 1)):
                for accused in ([], others, others[:1], others[1:]):
                    read = {
                        m: {d: not (d == liar and m in cheated) for d in range(n)} for m in others
                    }
                    read[liar] = {d: d not in accused for d in range(n)}
                    dealer = least_complained_of(read, range(n))
                    assert all(read[m][dealer] for m in others)


def test_who_brings_more_than_it_was_told_is_not_heard() -> None:
    own = [" ".join(f"{name}{i}" for i in range(600)) + " common words" for name in "ab"]
    dictionary = " ".join(f"a{i}" for i in range(600)) + " ".join(f" guess{i}" for i in range(5000))
    texts = [[own[0]] * 12, [own[1]] * 12, [dictionary] * 99]
    honest = nobody(texts)
    state = honest.agree()
    assert [len(m.arrays["tags"]) for m in sent_offers(honest).values()] == [1024, 1024, 2048]
    assert refused_of(state) == Refused(organisations=1, words=8192 - 2048), "its rarest ones"

    def twist(verb: Verb, client: ClientId, request: Message, reply: Message) -> Message:
        if verb is not OFFER or client != 2:
            return reply
        more = replace(request, meta={**request.meta, "most": 8192})
        liar = honest.population.client(2)
        whole, _ = handlers(honest.options)[OFFER](more, liar, ClientState())
        assert whole is not None
        return whole

    stuffed = lying(texts, twist).agree()
    assert words(stuffed) == {"common", "words"}
    assert refused_of(stuffed).replies == 1


@pytest.mark.parametrize("said", [1, 1 << 31])
def test_who_lies_about_its_size_has_nobody_elses_words_cut(said: int) -> None:
    text = [" ".join(f"w{i}" for i in range(5000))]

    def twist(verb: Verb, client: ClientId, request: Message, reply: Message) -> Message:
        lies = verb is INTRODUCE and client == 0
        return replace(reply, meta={"words": said}) if lies else reply

    state = lying([["w1 w2"], text, text], twist).agree()
    assert len(words(state)) == 5000


HOSTILE = {
    "no tags": lambda a: {n: v for n, v in a.items() if n != "tags"},
    "narrow tags": lambda a: {**a, "tags": a["tags"][:, :8]},
    "a share too few": lambda a: {**a, "shares": a["shares"][1:]},
    "a tag twice": lambda a: {**a, "tags": a["tags"][:1].expand(len(a["tags"]), -1).clone()},
    "numbers": lambda a: {**a, "sealed": a["sealed"].long()},
    "hashes": lambda a: {**a, "hashes": a["tags"]},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_who_offers_nonsense_has_dropped_out(case: str) -> None:
    def twist(verb: Verb, client: ClientId, request: Message, reply: Message) -> Message:
        if verb is not OFFER or client != 1:
            return reply
        return replace(reply, arrays=HOSTILE[case](reply.arrays))

    state = lying(FOUR, twist).agree()
    assert words(state) == left_by([1], FOUR, 2)
    assert refused_of(state) == Refused(replies=1)


@pytest.mark.parametrize("field", ["key", "signature"])
def test_who_introduces_itself_wrongly_is_dealt_nothing(field: str) -> None:
    """A key of low order, or one that it did not sign."""

    def twist(verb: Verb, client: ClientId, request: Message, reply: Message) -> Message:
        if verb is not INTRODUCE or client != 0:
            return reply
        return replace(reply, arrays={**reply.arrays, field: reply.arrays[field] * 0})

    ran = lying(FOUR, twist)
    assert words(ran.agree()) == left_by([0], FOUR, 2)
    assert not ran.sent(OFFER, "down", 0)


# --- padding --------------------------------------------------------------------------------------


def test_how_many_words_one_holds_is_known_to_a_power_of_two() -> None:
    def text(n: int) -> list[str]:
        return [" ".join(f"w{i}" for i in range(n))]

    sizes = {1: 1024, 1000: 1024, 1024: 1024, 1025: 2048, 3000: 4096}
    ran = nobody([text(n) for n in sizes], minimum=1, stuffing=9.0)
    assert len(ran.words()) == 1025
    assert [m.meta["words"] for m in ran.sent(INTRODUCE, "up")] == list(sizes.values())
    assert [len(m.arrays["tags"]) for m in ran.sent(OFFER, "up")] == list(sizes.values())
    assert [word_secrets.bucket(n) for n in (0, 1, 1025, 200_000)] == [1024, 1024, 2048, 262_144]


def test_rows_of_no_word_look_like_the_others() -> None:
    """By every byte's mean, and in the order of their tags."""
    ran = nobody([[" ".join(f"w{i}" for i in range(2000))], ["other"]], minimum=1, stuffing=9.0)
    with pytest.raises(LexfedError):
        ran.agree()
    key = key_with(ran, 1)
    (request,) = ran.sent(OFFER, "up", 0)
    real = {tag_of(secret_of(f"w{i}", key, 2)) for i in range(2000)}
    sent = hashes(request.arrays["tags"])
    assert sent == sorted(sent)
    is_real = np.array([tag in real for tag in sent])
    assert (is_real.sum(), (~is_real).sum()) == (2000, 48)
    made = word_secrets.padding(root(4), 2000)
    chance = torch.cat(list(offers.columns(sorted(made)).values()), 1).double().numpy()
    theirs = torch.cat(list(request.arrays.values()), 1).double().numpy()
    assert chance.shape[1] == theirs.shape[1]
    width = chance.shape[1]
    for column in range(1, width):  # the first is sorted: a mean like any
        if column == 16:  # the top of a share: 0 or 1
            assert set(theirs[:, 16]) == set(chance[:, 16]) == {0.0, 1.0}
            continue
        for one in (theirs[is_real, column], chance[:, column]):
            assert abs(one.mean() - 127.5) < 5 * 73.9 / np.sqrt(len(one))


# --- where it is used -----------------------------------------------------------------------------


def server_of(options: Agreement) -> object:
    def server(federation: Federation, seed: Seed, state: ServerState) -> Steps:
        return (yield from agreed(federation, state, options, seed))

    return server


@pytest.mark.parametrize("killed", [INTRODUCE, DEAL, ACCEPT, OFFER])
def test_a_killed_agreement_repeats_itself(killed: Verb, tmp_path: Path) -> None:
    options = Agreement(**QUICK)  # type: ignore[arg-type]
    server = server_of(options)
    method = Method(handlers(options), server, ALL_SHARED, rounds=0)  # type: ignore[arg-type]
    site = Site(method, people_of(TEXTS), Store(tmp_path))

    class KillError(Exception): ...

    def strike(verb: Verb, client: ClientId, request: Message, reply: Message) -> None:
        if verb is killed and client == 1:
            raise KillError

    with pytest.raises(KillError):
        list(server(tapped(simulate(site), up=strike), root(0), ServerState()))  # type: ignore[operator]
    *_, state = server(simulate(site), root(0), ServerState())  # type: ignore[operator]
    assert words(state) == set(nobody(TEXTS).words())


@pytest.mark.parametrize("secrets", ["seed", "system"])
def test_word_vectors_are_trained_on_it_in_threads_too(secrets: str, tmp_path: Path) -> None:
    table = word_vectors(agreement={"minimum": 2, **QUICK}, secrets=secrets, rounds=1)
    lists = []
    for workers in (1, 2):
        assembly = assemble(configuration.parse(table))
        site = site_of(assembly, Store(tmp_path / f"{workers}"))
        with threads(site, workers) as federation:
            *_, state = assembly.method.server(federation, root(0), ServerState())
        lists.append(from_bytes(state.blobs[VOCABULARY]))
        assert state.round == 1
    plain = assemble(configuration.parse(word_vectors(rounds=1)))
    with threads(site_of(plain, Store(tmp_path / "plain")), 1) as federation:
        *_, state = plain.method.server(federation, root(0), ServerState())
    assert lists == [from_bytes(state.blobs[VOCABULARY])] * 2


@pytest.mark.slow
def test_on_the_command_line(tmp_path: Path, lexfed: Lexfed) -> None:
    lines = [
        {"text": f"{text} {i}", "source": f"s{k}"}
        for k, own in enumerate(TEXTS)
        for i, text in enumerate(own)
    ]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    (tmp_path / "three.toml").write_text(
        f'[data]\nname = "{tmp_path}/texts.jsonl"\nclients = 3\npartition = "source"\n'
        '[agreement]\nminimum = 4\ntrust = "nobody"\nmemory = 16\n'
    )
    result = lexfed("vocab", "agree", "three.toml", "--out", "list.json")
    assert result.returncode == 0, result.stderr
    assert "(nobody is trusted)" in result.stdout
    total = next(row for row in result.stdout.splitlines() if row.startswith("all"))
    assert total.split()[-2:] == ["0", "0"], "to others, to the server"
    assert NAME not in (tmp_path / "list.json").read_text()
    seen = lexfed("vocab", "preview", "three.toml").stdout
    assert "the server would read the words that 2 organisations hold" in seen
    assert "each in 16 kilobytes; what they don't guess they can't read" in seen


def test_what_a_liar_may_bring_is_foreseen() -> None:
    client = people_of([[" ".join(f"w{i}" for i in range(1500))] * 9]).client(0)
    public = [f"w{i}" for i in range(9000)]
    seen = [
        preview(client, Agreement(trust=trust), public).reach  # type: ignore[arg-type]
        for trust in ("server", "nobody")
    ]
    assert seen == [1500, 1500], "3,000 or 4,096 guesses: all that it holds"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rule": "union"}, "it needs rule = 'summed' or 'intersection'"),
        ({"hashed": False}, "hashed = true"),
        ({"holders": 1}, "holders of at least 2"),
        ({"rule": "dp"}, "the server adds the noise, and is trusted"),
        ({"memory": 100}, "must be a power of two"),
    ],
)
def test_what_can_not_be_kept_is_refused_in_one_line(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        Agreement(**{"trust": "nobody", **options})  # type: ignore[arg-type]
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_secure_sums_do_not_stand_beside_an_agreement_that_trusts_the_server() -> None:
    with pytest.raises(ConfigError, match=r"set agreement\.trust = 'nobody'"):
        assemble(
            configuration.parse(word_vectors(secure={"sums": True}), ["agreement.trust=server"])
        )
