"""An organisation's half of an agreement: what it proposes, and what it spells; or, where nobody is
trusted, what it offers.

It remembers what it answered under each nonce. A nonce that comes again gets the same bytes, or
nothing: a server that repeats one can't compare what the organisation held then with what it holds
now. (A simulation keeps states by the server's clock, so that a killed run can repeat itself; the
memory of a deployment must not go back with a clock that the server sets.)
"""

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import torch

from lexfed.agreement import evidence, group_key, offers, word_list, word_secrets
from lexfed.agreement.proposals import DISCLOSE, NONCE, PROPOSE, SPELL, hashes, listed, rows
from lexfed.agreement.protocol import NONCE_BYTES, Agreement
from lexfed.core.errors import PrivacyError
from lexfed.core.params import Params
from lexfed.core.seeds import Seed, derive
from lexfed.corpus.population import Client
from lexfed.federation import Answer, ClientState, Handler
from lexfed.vocabulary import scan
from lexfed.wire import Message, Verb, encode

MEMORY = "agreements"  # in an organisation's state: by nonce, what it answered
Name = Callable[[str], bytes]  # a word as it travels
Counted = Iterable[tuple[str, float]]


def handlers(options: Agreement) -> dict[Verb, Handler]:
    """What an organisation answers to. It keeps no words: to spell, it counts again."""

    def disclose(message: Message, client: Client, state: ClientState) -> Answer:
        told = listed(message.blobs.get("released", b""))
        proposal = _named(_own(options, client, message, str.encode, told), str.encode)
        return Message(_numbers(options, proposal), blobs={"words": b"\n".join(proposal)}), state

    def propose(message: Message, client: Client, state: ClientState) -> Answer:
        nonce, ask = message.blobs.get(NONCE, b""), int(message.meta["ask"])
        key, memory = key_of(client, nonce), _memory(state, nonce)
        told = hashes(message.arrays["released"]) if options.rule == "dp" else []
        proposal = _named(_own(options, client, message, _hashing(key), told), _hashing(key))
        shares = _shares(options, client, list(proposal), key, nonce)
        reply = Message({"hashes": rows(proposal), **_numbers(options, proposal), **shares})
        digest = _digest(reply)
        if ask >= options.passes or memory.get(str(ask), digest) != digest:
            return None, state
        return reply, _kept(state, nonce, {**memory, str(ask): digest})

    def spell(message: Message, client: Client, state: ClientState) -> Answer:
        nonce, asked = message.blobs.get(NONCE, b""), hashes(message.arrays["hashes"])
        key, memory = key_of(client, nonce), _memory(state, nonce)
        proven, name = _proven(options, message, asked, key), _hashing(key)
        found = {h: word for word, _ in proposed(options, client) if (h := name(word)) in proven}
        if options.size is not None:  # no list is longer, whoever asks for more
            spelt = [*memory.get("spelt", []), *(h.hex() for h in asked if h in found)]
            memory = {**memory, "spelt": list(dict.fromkeys(spelt))[: options.size]}
            found = {h: found[h] for h in map(bytes.fromhex, memory["spelt"]) if h in found}
        words = "\n".join(found.get(h, "") for h in asked)
        return Message(blobs={"words": words.encode()}), _kept(state, nonce, memory)

    if options.trust == "nobody":
        return trusting_nobody(options)
    return {PROPOSE: propose, SPELL: spell} if options.veiled else {DISCLOSE: disclose}


def trusting_nobody(options: Agreement) -> dict[Verb, Handler]:
    """The four exchanges after which words that k hold can be read. All secrets of a nonce hang
    from it and the organisation's own, and no exchange is answered in two ways.
    """

    def introduce(message: Message, client: Client, nonce: bytes) -> Message | None:
        words = word_secrets.bucket(len(_offered(options, client)))
        return group_key.introduction(client, nonce, words)

    def accept(message: Message, client: Client, nonce: bytes) -> Message | None:
        read = [key is not None for key in group_key.read_deals(message, client, nonce)]
        return Message({"read": torch.tensor(read, dtype=torch.bool)})

    def offer(message: Message, client: Client, nonce: bytes) -> Message | None:
        (group,) = group_key.read_deals(message, client, nonce)
        if group is None:
            return None
        own, most = _offered(options, client), int(message.meta["most"])
        terms, size = options.terms, min(most, word_secrets.bucket(len(own)))
        key = terms.key(group, nonce)
        chance = derive(client.secret, "padding", key.hex())
        words = [(word, options.told(n) if terms.counted else 0) for word, n in own[:size]]
        return offers.offer(words, key, terms, offers.place_of(client.id), size, chance)

    return {
        group_key.INTRODUCE: _in_one_way(introduce, "introduce"),
        group_key.DEAL: _in_one_way(group_key.dealt, "deal"),
        group_key.ACCEPT: _in_one_way(accept, "accept"),
        offers.OFFER: _in_one_way(offer, "offer"),
    }


def _offered(options: Agreement, client: Client) -> list[tuple[str, int]]:
    return [(word, n) for word, n in proposed(options, client) if word_secrets.fits(word)]


def _in_one_way(answer: Callable[[Message, Client, bytes], Message | None], name: str) -> Handler:
    """The same nonce gets the same bytes again, or nothing."""

    def handle(message: Message, client: Client, state: ClientState) -> Answer:
        nonce = message.blobs.get(NONCE, b"")
        _check_nonce(nonce)
        reply, memory = answer(message, client, nonce), _memory(state, nonce)
        if reply is None:
            return None, state
        digest = _digest(reply)
        if memory.get(name, digest) != digest:
            return None, state
        return reply, _kept(state, nonce, {**memory, name: digest})

    return handle


def _digest(reply: Message) -> str:
    return blake2b(encode(reply), digest_size=16).hexdigest()


def key_of(client: Client, nonce: bytes) -> Seed:
    """The organisations' key of this agreement: the server can't follow a word from one to the
    next.
    """
    if not client.common_secret:
        raise PrivacyError(
            "words can't be hashed without a secret that the organisations share: anyone could "
            "try words out"
        )
    _check_nonce(nonce)
    return derive(client.common_secret, "words", nonce.hex())


def _check_nonce(nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES:
        raise PrivacyError(f"an agreement needs a nonce of {NONCE_BYTES} bytes; nothing was sent")


def _hashing(key: Seed) -> Name:
    return lambda word: word_list.keyed(word, key)


def _own(
    options: Agreement, client: Client, message: Message, name: Name, told: Collection[bytes]
) -> Counted:
    if options.rule != "dp":
        return ((word, options.told(n)) for word, n in proposed(options, client))
    known = frozenset(told)
    released = lru_cache(scan.LIMIT)(lambda word: name(word) in known)
    seed = derive(client.secret, "agree", int(message.meta["step"]), int(message.meta["ask"]))
    return scan.weigh(
        client.train, released, options.words_per_document, options.longest, seed
    ).items()


def proposed(options: Agreement, client: Client) -> Iterable[tuple[str, int]]:
    """The words that it may be asked for; dp: all it has."""
    counts = scan.count(client.train, longest=options.longest)
    if options.rule == "dp":
        return counts
    return counts.most_frequent(options.top, options.own_minimum)


def _named(own: Counted, name: Name) -> dict[bytes, float]:
    """In the order of their names: no order of the text is sent along."""
    return dict(sorted((name(word), number) for word, number in own))


def _numbers(options: Agreement, proposal: dict[bytes, float]) -> Params:
    if options.numbers is None:
        return {}
    kind = torch.float64 if options.rule == "dp" else torch.int64
    return {options.numbers: torch.tensor(list(proposal.values()), dtype=kind)}


# --- who else holds a word ------------------------------------------------------------------------


def _shares(
    options: Agreement, client: Client, names: Sequence[bytes], key: Seed, nonce: bytes
) -> Params:
    if not options.shared:
        return {}
    x, secret = evidence.place(client.secret, nonce), derive(key, "evidence")
    values = [evidence.share(name, secret, options.holders, x) for name in names]
    return {
        "place": torch.tensor(x, dtype=torch.int64),
        "shares": torch.tensor(values, dtype=torch.int64),
    }


def _proven(
    options: Agreement, message: Message, asked: Sequence[bytes], key: Seed
) -> frozenset[bytes]:
    """The hashes that so many organisations proposed as must hold a word before it is told."""
    if not options.shared:
        return frozenset(asked)
    shown = message.arrays.get("evidence")
    if shown is None or shown.ndim != 2 or len(shown) != len(asked):
        return frozenset()
    if shown.shape[1] > evidence.groups(options.holders):  # that is guessing
        return frozenset()
    secret = derive(key, "evidence")
    return frozenset(
        name
        for name, claims in zip(asked, shown.tolist(), strict=True)
        if evidence.proof(name, secret) in claims
    )


# --- what it remembers ----------------------------------------------------------------------------


def _memory(state: ClientState, nonce: bytes) -> dict[str, Any]:
    return dict(json.loads(state.blobs.get(MEMORY, b"{}")).get(nonce.hex(), {}))


def _kept(state: ClientState, nonce: bytes, memory: dict[str, Any]) -> ClientState:
    """The state with what is remembered of a nonce; itself where that is nothing new."""
    everything = json.loads(state.blobs.get(MEMORY, b"{}"))
    if everything.get(nonce.hex(), {}) == memory:
        return state
    data = json.dumps({**everything, nonce.hex(): memory}).encode()
    return replace(state, blobs={**state.blobs, MEMORY: data})
