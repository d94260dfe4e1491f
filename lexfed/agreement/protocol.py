"""Agreeing on one word list (Federated Word2Vec, Garcia Bernal et al., 2021), without showing what
one alone holds.

    union, intersection:  each sends its top N words that occur T times at it or more,
                          without counts                                            [the paper]
    summed (default):     each sends its top N words with counts; kept is what occurs T times in all
                          *and* k of them hold
    dp:                   three passes of noisy weights (`privacy.set_union`); one document more or
                          less is hidden

    veiled:   organisation -> server    keyed hashes, counts                              `propose`
              server                    chooses among hashes
              server -> holders         the chosen hashes; back come their words          `spell`
    openly:   organisation -> server    words, counts                                     `disclose`

Veiled, the server learns the words of the agreed list alone; of the others it sees how often each
organisation uses a hash. It lacks the key, which the organisations share. That holds while no
organisation works with the server (with the key, any word can be tried out), and while the server
asks to spell what the rule chose and nothing else. Who knows a language can guess its most frequent
words from their counts. The union is always in the clear: all of it is told anyway.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Literal

import torch

from lexfed.agreement import word_list
from lexfed.agreement.proposals import (
    DISCLOSE,
    PROPOSE,
    SPELL,
    Proposal,
    hashes,
    listed,
    read,
    rows,
    spelling,
)
from lexfed.core.errors import ConfigError, DataError
from lexfed.core.seeds import Seed, derive
from lexfed.corpus.population import Client
from lexfed.federation import Answer, ClientState, Federation, Handler, ServerState, clock
from lexfed.privacy import set_union
from lexfed.privacy.accounting import Ledger
from lexfed.vocabulary import scan
from lexfed.vocabulary.word import Vocabulary
from lexfed.wire import ClientId, Message, Verb

# the list that was agreed on, in the server's state and on its way to clients
VOCABULARY = "vocabulary"


@dataclass(frozen=True)
class Agreement:
    """The `[agreement]` table."""

    # which proposed words enter the list
    rule: Literal["summed", "union", "intersection", "dp"] = "summed"
    top: int = 200_000  # N: the most words that one organisation proposes (dp: all it has)
    minimum: int = 10  # T: occurrences; summed: in all text, else at each organisation
    holders: int = 2  # k, summed: organisations that hold a word before it is told
    hashed: bool = True  # the server chooses among hashes; the union is always in the clear
    size: int | None = None  # the most words in the list
    longest: int = 100  # characters; what is longer is no word
    # dp: of the list, per document
    epsilon: float = 3.0
    delta: float = 1e-6  # dp: the chance that the promise fails
    words_per_document: int = 100  # that count, by chance where there are more

    def __post_init__(self) -> None:
        for name in ("top", "minimum", "holders", "size", "longest", "words_per_document"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ConfigError(f"agreement.{name} must be at least 1")
        if self.size is not None and self.rule in ("union", "intersection"):
            raise ConfigError(
                f"agreement.size needs counts, which rule = '{self.rule}' does not share; lower "
                "agreement.top"
            )
        if not self.epsilon > 0 or not 0 < self.delta < 1:
            raise ConfigError(
                "agreement.epsilon must be above 0, agreement.delta between 0 and 1 (1e-6, say)"
            )

    @property
    def veiled(self) -> bool:
        return self.hashed and self.rule != "union"

    @property
    def verb(self) -> Verb:
        return PROPOSE if self.veiled else DISCLOSE

    @property
    def numbers(self) -> str | None:
        """The name of what travels with the words."""
        return {"summed": "counts", "dp": "weights"}.get(self.rule)

    @property
    def own_minimum(self) -> int:
        """Occurrences at an organisation before it proposes a word."""
        return 1 if self.rule == "summed" else self.minimum


# --- the organisation's half ----------------------------------------------------------------------

Name = Callable[[str], bytes]  # a word as it travels


def handlers(options: Agreement) -> dict[Verb, Handler]:
    """What an organisation answers to. It keeps nothing: to spell, it counts again."""

    def propose(message: Message, client: Client, state: ClientState) -> Answer:
        name = _name(options, client, message)
        # in the order of their names: no order of the text is sent along
        proposal = dict(
            sorted((name(word), number) for word, number in _own(options, client, message, name))
        )
        kind = torch.float64 if options.rule == "dp" else torch.int64
        arrays = (
            {options.numbers: torch.tensor(list(proposal.values()), dtype=kind)}
            if options.numbers
            else {}
        )
        if options.veiled:
            return Message({"hashes": rows(proposal), **arrays}), state
        return Message(arrays, blobs={"words": b"\n".join(proposal)}), state

    def spell(message: Message, client: Client, state: ClientState) -> Answer:
        name, asked = _name(options, client, message), hashes(message.arrays["hashes"])
        wanted, counts = set(asked), scan.count(client.train, longest=options.longest)
        proposed = (
            counts
            if options.rule == "dp"
            else counts.most_frequent(options.top, options.own_minimum)
        )
        found = {hashed: word for word, _ in proposed if (hashed := name(word)) in wanted}
        return Message(
            blobs={"words": "\n".join(found.get(hashed, "") for hashed in asked).encode()}
        ), state

    return {PROPOSE: propose, SPELL: spell} if options.veiled else {DISCLOSE: propose}


def _name(options: Agreement, client: Client, message: Message) -> Name:
    """Hashed with a key of this agreement alone: the server can't follow a word from one agreement
    to the next.
    """
    if not options.veiled:
        return str.encode
    key = (
        derive(client.common_secret, "words", int(message.meta["step"]))
        if client.common_secret
        else b""
    )
    return lambda word: word_list.keyed(word, key)


def _own(
    options: Agreement, client: Client, message: Message, name: Name
) -> Iterable[tuple[str, float]]:
    if options.rule != "dp":
        return scan.count(client.train, longest=options.longest).most_frequent(
            options.top, options.own_minimum
        )
    told = set(
        hashes(message.arrays["released"]) if options.veiled else listed(message.blobs["released"])
    )
    released = lru_cache(scan.LIMIT)(lambda word: name(word) in told)
    seed = derive(client.secret, "agree", int(message.meta["step"]), int(message.meta["ask"]))
    return scan.weigh(
        client.train, released, options.words_per_document, options.longest, seed
    ).items()


# --- the server's half ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """What the rule chose, by the names the words travel under."""

    counts: Mapping[bytes, int]
    holders: Mapping[bytes, list[ClientId]]
    ledger: Ledger


def agree(
    federation: Federation,
    state: ServerState,
    options: Agreement,
    seed: Seed,
    old: Vocabulary | None = None,
) -> ServerState:
    """One-off work for `once(state, "agree", ...)`: the state with the agreed list, and what it
    cost, in it.

    With an `old` list its words keep their ids and the new ones come behind. Who joins late is
    known to hold what came then.
    """
    choice = (_released if options.rule == "dp" else _chosen)(federation, state, options, seed)
    if not choice.counts and old is None:
        raise DataError(_nothing(options))
    words = (
        _spelt(federation, state, options, choice)
        if options.veiled
        else {name: name.decode() for name in choice.counts}
    )
    new = word_list.ordered(
        {words[name]: n for name, n in choice.counts.items() if name in words}, options.size
    )
    if not new.tokens and old is None:
        raise DataError(
            "no organisation was left to spell the words that were chosen; ask them all again"
        )
    vocabulary = new if old is None else word_list.renew(old, new)
    return replace(
        state.with_blob(VOCABULARY, word_list.to_bytes(vocabulary)), ledger=choice.ledger
    )


def _chosen(federation: Federation, state: ServerState, options: Agreement, seed: Seed) -> Choice:
    _enough(len(federation.clients), options)
    proposals = dict(_proposals(federation, state, options, 0, ()))
    _enough(len(proposals), options)
    if options.rule == "summed":
        whole = [{name: int(n) for name, n in proposal.items()} for proposal in proposals.values()]
        counts = word_list.summed(whole, options.minimum, options.holders, options.size)
    else:
        counts = {"union": word_list.union, "intersection": word_list.intersection}[options.rule](
            list(proposals.values())
        )
    return Choice(counts, _holders(proposals, counts), state.ledger)


def _released(federation: Federation, state: ServerState, options: Agreement, seed: Seed) -> Choice:
    passes = set_union.passes(options.epsilon, options.delta, options.words_per_document)
    told: dict[bytes, float] = {}
    holders: dict[bytes, list[ClientId]] = {}
    for number, step in enumerate(passes):
        proposals = dict(_proposals(federation, state, options, number, told))
        weights: Counter[bytes] = Counter()
        for proposal in proposals.values():
            weights.update({name: w for name, w in proposal.items() if name not in told})
        new = set_union.release(weights, step, derive(seed, "noise", number))
        holders |= _holders(proposals, new)
        told |= new
    # a text gives each of its words 1/sqrt(words): back to about the number of texts
    counts = {
        name: max(1, round(weight * math.sqrt(options.words_per_document)))
        for name, weight in told.items()
    }
    return Choice(
        word_list.largest(counts, options.size), holders, set_union.charged(state.ledger, passes)
    )


def _holders(
    proposals: Mapping[ClientId, Proposal], names: Iterable[bytes]
) -> dict[bytes, list[ClientId]]:
    return {
        name: [client for client, proposal in proposals.items() if name in proposal]
        for name in names
    }


def _proposals(
    federation: Federation, state: ServerState, options: Agreement, ask: int, told: Iterable[bytes]
) -> Iterator[tuple[ClientId, Proposal]]:
    message = clock(state, ask)
    if options.rule == "dp" and options.veiled:
        message = replace(message, arrays={"released": rows(told)})
    elif options.rule == "dp":
        message = replace(message, blobs={"released": b"\n".join(told)})
    for client, reply in federation.ask(options.verb, dict.fromkeys(federation.clients, message)):
        proposal = read(options.verb, message, reply, options.numbers, options.longest)
        if proposal is not None and (options.rule == "dp" or len(proposal) <= options.top):
            yield client, proposal  # else: it has dropped out


def _spelt(
    federation: Federation, state: ServerState, options: Agreement, choice: Choice
) -> dict[bytes, str]:
    """The words of the chosen hashes: each from one of its holders, from the next where one does
    not answer.
    """
    waiting = {name: list(choice.holders[name]) for name in sorted(choice.counts)}
    words: dict[bytes, str] = {}
    for ask in count(len(set_union.GROWTH)):  # behind the proposals' asks
        asked: dict[ClientId, list[bytes]] = {}
        for place, (name, holders) in enumerate(waiting.items()):
            if holders and name not in words:
                asked.setdefault(holders.pop(place % len(holders)), []).append(name)
        if not asked:
            break
        now = clock(state, ask)
        requests = {
            client: replace(now, arrays={"hashes": rows(names)})
            for client, names in sorted(asked.items())
        }
        for client, reply in federation.ask(SPELL, requests):
            words |= spelling(requests[client], reply, asked[client], options.longest)
    return words


def _enough(organisations: int, options: Agreement) -> None:
    if options.rule == "summed" and organisations < options.holders:
        who = (
            "1 organisation takes part"
            if organisations == 1
            else f"{organisations} organisations take part"
        )
        raise ConfigError(
            f"a word must be held by {options.holders} organisations, but {who}: "
            f"set agreement.holders = {max(1, organisations)}"
        )


def _nothing(options: Agreement) -> str:
    """Why no word was chosen, and what to do."""
    enough = f"occurs {options.minimum} times"
    reason = {
        "summed": (
            f"is held by {options.holders} organisations and {enough} in all; "
            "lower agreement.minimum"
        ),
        "union": f"{enough} at any organisation; lower agreement.minimum",
        "intersection": (
            f"{enough} at every organisation; "
            "lower agreement.minimum, or set agreement.rule = 'summed'"
        ),
        "dp": (
            f"is frequent enough to be told at epsilon {options.epsilon:g}; "
            "raise agreement.epsilon, or bring more texts"
        ),
    }[options.rule]
    return f"no word {reason} (text written without spaces must be cut into words first)"
