"""Agreeing on one word list (Federated Word2Vec, Garcia Bernal et al., 2021), between organisations
that do not trust each other.

    union, intersection:  each sends its top N words that occur T times at it or more,
                          without counts                                            [the paper]
    summed (default):     each sends its top N words with coarse counts; kept is what occurs T
                          times in all, k of them hold, and the k - 1 loudest do not decide
    dp:                   three passes of noisy weights (`privacy.set_union`); one document more or
                          less is hidden

    veiled:   server -> organisations   a fresh nonce
              organisation -> server    hashes keyed with it, counts, a share of each hash's
                                        evidence (`evidence`)                             `propose`
              server                    chooses among hashes
              server -> k holders       the chosen hashes and their evidence; back come their words,
                                        which must be the same                              `spell`
    openly:   organisation -> server    words, counts                                    `disclose`
    nobody    organisations             agree on a key of their own                     `group_key`
    trusted:  organisation -> server    words that only k of them together open            `offers`

Veiled, `summed` with k = 2, who learns what (where nobody is trusted: below):

The server alone, honest or not: the words that two organisations hold and it asks for; how many
words each proposes; of every hash which organisations have it, and about how often each uses it
(`word_list.coarse`; who knows a language can guess its most frequent words from that). It lacks the
key, and can't have a word spelt that one alone holds, for it can't show evidence. It can ask for
what two hold and the rule did not choose: that the list is the rule's is its word.

An honest organisation: the list, and about how often all use each word together.

One organisation that lies: the same, and can try words out. A word that it proposes and the others
hold once or twice is not told, however loud it is: without the loudest one, `rest` of T occurrences
must be left. What they hold more often is told, and about how often, though only one of them may
hold it. It may propose `stuffing` times as many words as the others do, in each agreement.
experiments/audit/liar.py measures it. It can't change a word: two holders must spell it alike. It
can keep words out that it and one other hold, by not taking part, or by spelling them wrong. Two
that lie together get any word into the list, wrongly spelt too; `holders = 3` takes three of them.

The server with one organisation: that one has the key. Any word can be tried out against the hashes
of all, and evidence can be made for any hash: all that organisations proposed can be had spelt, but
for the `size` of the list, which they keep to. Only noise would help against these two.

Where one holder is enough (`holders = 1`, a word of `dp` that one alone holds), its spelling stands
unchecked, and no evidence binds the server; `dp` hides a text from readers and liars, and trusts
the server. An intersection of two is no better than a sum: a liar reads what the other holds T
times. The union is always in the clear: all of it is told anyway. A list carries no hashes, so its
readers can't check it against what they proposed.

Where nobody is trusted (`trust = "nobody"`), k = 2:

The server alone, honest or not: every word that two organisations hold, with their counts, though
the rule did not choose it; of what one alone holds neither spelling nor count: that a row exists,
among others that are none. About how many words each holds, to the next power of two.

One organisation that lies: what it could before. It counts as one holder of any word it names; the
server then reads that word, and the list takes it if the others' counts suffice. It can't plant a
word or change one, and can't keep one back that two others hold, by wrong shares, wrong spellings,
keys of its own or complaints.

The server with one organisation: that one has the key. A word that they guess is found, and at
whom; a guess takes them `memory` kilobytes and some time, as each word takes an organisation. That
is a price, no wall: a dictionary costs them what an agreement of as many words costs. Their guesses
could only be counted if every word went through all the others (an oblivious function of a key in
parts); then one that lies could keep every word back.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from statistics import median
from typing import Literal

import torch

from lexfed.agreement import evidence, offers, word_list
from lexfed.agreement.group_key import Hearing, gathered
from lexfed.agreement.proposals import (
    DISCLOSE,
    NONCE,
    PROPOSE,
    SPELL,
    Proposal,
    read,
    rows,
    spelling,
)
from lexfed.core.errors import ConfigError, DataError
from lexfed.core.seeds import Seed, derive
from lexfed.federation import Federation, ServerState, Steps, clock, once
from lexfed.privacy import set_union
from lexfed.privacy.accounting import Ledger
from lexfed.vocabulary.word import Vocabulary
from lexfed.wire import ClientId, Message, Verb

# in the server's state: the list that was agreed on, also on its way to clients; and what was not
# taken of what organisations said
VOCABULARY, REFUSED = "vocabulary", "refused"
NONCE_BYTES = 16
PAID = "pay for the agreement"  # done before anything is asked
FEW = 1000  # words: who proposes no more has brought no dictionary
SPELLERS = 2  # holders that spell a word alike, at least, where it has so many
EXCHANGES = 4  # of an agreement in which nobody is trusted
TRIES = 3  # times that who does not answer is asked to spell


@dataclass(frozen=True)
class Agreement:
    """The `[agreement]` table."""

    # which proposed words enter the list
    rule: Literal["summed", "union", "intersection", "dp"] = "summed"
    top: int = 200_000  # N: the most words that one organisation proposes (dp: all it has)
    minimum: int = 10  # T: occurrences; summed: in all text, else at each organisation
    # k, summed and intersection: organisations that hold a word before it is told
    holders: int = 2
    # summed: share of T that must be left without the k - 1 organisations that say most
    rest: float = 0.5
    # summed: how counts are told, to the server and in the list; coarse: 1, 2, 4, 8, 16, 23, 32,
    # ...; none: T then counts at each organisation
    counts: Literal["coarse", "exact", "none"] = "coarse"
    # summed: so many times the median of the others' words may one propose; its rarest are cut
    stuffing: float = 2.0
    # who is told of words that fewer than k hold: the server sees their hashes and counts; nobody
    # does (k of them open a word)
    trust: Literal["server", "nobody"] = "server"
    # trust = "nobody": kilobytes that hashing a word takes, a power of two; so much costs a guess
    memory: int = 256
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
        if self.size is not None and self.numbers is None:
            which = "counts = 'none'" if self.rule == "summed" else f"rule = '{self.rule}'"
            raise ConfigError(
                f"agreement.size needs counts, which {which} does not share; lower agreement.top"
            )
        if not 0 <= self.rest <= 1 or not self.stuffing >= 1:
            raise ConfigError(
                "agreement.rest is a share, from 0 to 1; agreement.stuffing is at least 1"
            )
        if not self.epsilon > 0 or not 0 < self.delta < 1:
            raise ConfigError(
                "agreement.epsilon must be above 0, agreement.delta between 0 and 1 (1e-6, say)"
            )
        if self.memory < 2 or self.memory & (self.memory - 1):
            raise ConfigError("agreement.memory must be a power of two, and at least 2")
        if self.trust == "nobody":
            self._check_nobody()

    def _check_nobody(self) -> None:
        if self.rule == "union" or not self.hashed or self.holders < 2:
            raise ConfigError(
                "agreement.trust = 'nobody' keeps words back that fewer than k organisations hold: "
                "it needs rule = 'summed' or 'intersection', hashed = true, holders of at least 2"
            )
        if self.rule == "dp":
            raise ConfigError(
                "with agreement.rule = 'dp' the server adds the noise, and is trusted with what it "
                "is added to: set agreement.trust = 'server', or agreement.rule = 'summed'"
            )

    @property
    def veiled(self) -> bool:
        return self.hashed and self.rule != "union"

    @property
    def shared(self) -> bool:
        """Whether a holder wants to see that others hold a word before it spells it."""
        return self.veiled and self.rule != "dp" and self.holders > 1

    @property
    def verb(self) -> Verb:
        return PROPOSE if self.veiled else DISCLOSE

    @property
    def terms(self) -> offers.Terms:
        return offers.Terms(self.holders, self.memory, self.longest, self.numbers is not None)

    @property
    def passes(self) -> int:
        return len(set_union.GROWTH) if self.rule == "dp" else 1

    @property
    def numbers(self) -> str | None:
        """The name of what travels with the words."""
        named = {"summed": "counts", "dp": "weights"}.get(self.rule)
        return None if self.rule == "summed" and self.counts == "none" else named

    @property
    def expected(self) -> frozenset[str]:
        """The arrays of a proposal, beside its names."""
        shares = ("place", "shares") if self.shared else ()
        return frozenset((*shares, *([self.numbers] if self.numbers else [])))

    @property
    def own_minimum(self) -> int:
        """Occurrences at an organisation before it proposes a word."""
        return 1 if self.numbers == "counts" else self.minimum

    def told(self, number: int) -> int:
        """A count as it is told."""
        return word_list.coarse(number) if self.counts == "coarse" else number


# --- the server's half ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Refused:
    """What an agreement did not take, in numbers: not whose, and no word."""

    replies: int = 0  # that were malformed
    organisations: int = 0  # that proposed many more words than the others
    words: int = 0  # of theirs that were cut
    spellings: int = 0  # chosen words that too few holders spelt alike
    shares: int = 0  # trust = "nobody": rows that did not fit the others of their word


@dataclass(frozen=True)
class Choice:
    """What the rule chose, by the names the words travel under."""

    counts: Mapping[bytes, int]
    holders: Mapping[bytes, list[ClientId]]
    proofs: Mapping[bytes, list[int]]  # what evidence of each name may be
    refused: Refused
    words: Mapping[bytes, str] | None = None  # None: nobody spelt them yet


@dataclass(frozen=True)
class Asking:
    """One agreement as the server leads it."""

    federation: Federation
    state: ServerState
    options: Agreement
    nonce: bytes
    noise: Seed

    def request(self, ask: int) -> Message:
        now = clock(self.state, ask)
        return replace(now, blobs={NONCE: self.nonce}) if self.options.veiled else now


def fresh_nonce(seed: Seed, old: Vocabulary | None) -> bytes:
    """Of one agreement: its hashes have nothing in common with another's.

    It hangs from the server's secret: in a simulation it repeats itself when it is resumed, in a
    deployment each start has another. Who extends a list has another than who made it.
    """
    return derive(seed, "nonce", 0 if old is None else old.version)[:NONCE_BYTES]


def agreed(
    federation: Federation,
    state: ServerState,
    options: Agreement,
    seed: Seed,
    old: Vocabulary | None = None,
    again: bool = False,
) -> Steps:
    """The state with the agreed list, paid for and kept before anything is asked.

    An attempt that repeats the same draws tells nothing new, and is paid for once. `again`: every
    attempt draws anew, as in a deployment, and every one is paid for.
    """
    if options.rule == "dp" and "agree" not in state.done and (again or PAID not in state.done):
        ledger = price(options, state.ledger)
        state = replace(state, ledger=ledger, step=state.step + 1, done=state.done | {PAID})
        yield state
    return (yield from once(state, "agree", lambda s: agree(federation, s, options, seed, old)))


def price(options: Agreement, ledger: Ledger = ()) -> Ledger:
    """The ledger with what an agreement is charged."""
    if options.rule != "dp":
        return ledger
    passes = set_union.passes(options.epsilon, options.delta, options.words_per_document)
    return set_union.charged(ledger, passes)


def agree(
    federation: Federation,
    state: ServerState,
    options: Agreement,
    seed: Seed,
    old: Vocabulary | None = None,
) -> ServerState:
    """The state with the agreed list in it, and what was refused on the way.

    With an `old` list its words keep their ids and the new ones come behind. Who joins late is
    known to hold what came then.
    """
    noise = derive(seed, "noise", *state.forks)
    asking = Asking(federation, state, options, fresh_nonce(seed, old), noise)
    choice = _rule_of(options)(asking)
    if not choice.counts and old is None:
        raise DataError(_nothing(options))
    words = _words_of(asking, choice)
    new = word_list.ordered({word: choice.counts[name] for name, word in words.items()})
    if not new.tokens and old is None:
        raise DataError(
            "no word that was chosen was spelt alike by those who hold it; ask them all again"
        )
    unlike = choice.refused.spellings + len(choice.counts) - len(words)
    refused = replace(choice.refused, spellings=unlike)
    vocabulary = new if old is None else word_list.renew(old, new)
    return state.with_blob(VOCABULARY, word_list.to_bytes(vocabulary)).with_blob(
        REFUSED, json.dumps(asdict(refused)).encode()
    )


def refused_of(state: ServerState) -> Refused:
    return Refused(**json.loads(state.blobs.get(REFUSED, b"{}")))


def _rule_of(options: Agreement) -> Callable[[Asking], Choice]:
    if options.trust == "nobody":
        return _opened
    return _released if options.rule == "dp" else _chosen


def _words_of(asking: Asking, choice: Choice) -> Mapping[bytes, str]:
    if choice.words is not None:
        return choice.words
    if not asking.options.veiled:
        return {name: name.decode() for name in choice.counts}
    return _spelt(asking, choice)


def _opened(asking: Asking) -> Choice:
    """What the rule takes of the words that k organisations could be heard to hold."""
    options, hearing = asking.options, Hearing(asking.federation)
    enough(len(asking.federation.clients), options)
    group = gathered(hearing, [asking.request(ask) for ask in range(EXCHANGES)])
    enough(len(group.words), options)
    heard = offers.heard(hearing, group, options.stuffing, options.top)
    enough(len(heard.offers), options)
    found = offers.read_offers(heard.offers, options.terms)
    counts = _by_rule(options, list(found.numbers.values()))
    words = _distinct({name: found.words[name] for name in counts})
    refused = Refused(hearing.malformed, heard.cut, heard.words, found.unlike, found.wrong)
    return Choice(counts, {}, {}, refused, words)


def _distinct(words: Mapping[bytes, str]) -> dict[bytes, str]:
    """Without those that two names are said to stand for."""
    twice = Counter(words.values())
    return {name: word for name, word in words.items() if twice[word] == 1}


def _chosen(asking: Asking) -> Choice:
    options = asking.options
    enough(len(asking.federation.clients), options)
    heard, malformed = _proposals(asking, 0, ())
    enough(len(heard), options)
    proposals = _plausible(heard, options) if options.rule == "summed" else heard
    lost = [len(heard[c].numbers) - len(p.numbers) for c, p in proposals.items()]
    counts = _by_rule(options, [proposal.numbers for proposal in proposals.values()])
    return Choice(
        counts,
        _holders(proposals, counts),
        _proofs(proposals, counts, options.holders) if options.shared else {},
        Refused(malformed, sum(map(bool, lost)), sum(lost)),
    )


def _by_rule(options: Agreement, proposals: Sequence[Mapping[bytes, float]]) -> dict[bytes, int]:
    if options.rule != "summed":
        rules = {"union": word_list.union, "intersection": word_list.intersection}
        return rules[options.rule](proposals)
    whole = [{name: int(n) for name, n in proposal.items()} for proposal in proposals]
    if options.numbers is None:
        return word_list.summed(whole, 0, options.holders)
    rest = options.rest * options.minimum
    chosen = word_list.summed(whole, options.minimum, options.holders, options.size, rest)
    return {name: options.told(n) for name, n in chosen.items()}


def _plausible(
    proposals: Mapping[ClientId, Proposal], options: Agreement
) -> dict[ClientId, Proposal]:
    """Nobody with a dictionary: of who proposes many more words than the others, its most frequent
    ones.
    """
    sizes = {client: len(proposal.numbers) for client, proposal in proposals.items()}
    limited = dict(proposals)
    for client, proposal in proposals.items():
        others = [n for other, n in sizes.items() if other != client and n]
        most = max(FEW, options.stuffing * median(others)) if others else math.inf
        if sizes[client] > most:
            limited[client] = proposal.cut(int(most))
    return limited


def _released(asking: Asking) -> Choice:
    options = asking.options
    passes = set_union.passes(options.epsilon, options.delta, options.words_per_document)
    told: dict[bytes, float] = {}
    holders: dict[bytes, list[ClientId]] = {}
    refused = 0
    for number, step in enumerate(passes):
        proposals, malformed = _proposals(asking, number, told)
        weights: Counter[bytes] = Counter()
        for proposal in proposals.values():
            numbers = proposal.numbers.items()
            weights.update({name: w for name, w in numbers if name not in told})
        new = set_union.release(weights, step, derive(asking.noise, number))
        holders |= _holders(proposals, new)
        told |= new
        refused += malformed
    # a text gives each of its words 1/sqrt(words): back to about the number of texts
    counts = {
        name: max(1, round(weight * math.sqrt(options.words_per_document)))
        for name, weight in told.items()
    }
    return Choice(word_list.largest(counts, options.size), holders, {}, Refused(refused))


def _holders(
    proposals: Mapping[ClientId, Proposal], names: Iterable[bytes]
) -> dict[bytes, list[ClientId]]:
    return {
        name: [client for client, proposal in proposals.items() if name in proposal.numbers]
        for name in names
    }


def _proofs(
    proposals: Mapping[ClientId, Proposal], names: Iterable[bytes], holders: int
) -> dict[bytes, list[int]]:
    points: dict[bytes, list[evidence.Point]] = {name: [] for name in names}
    for proposal in proposals.values():
        for name, point in proposal.points():
            if name in points:
                points[name].append(point)
    return {name: evidence.candidates(own, holders) for name, own in points.items()}


def _proposals(
    asking: Asking, ask: int, told: Iterable[bytes]
) -> tuple[dict[ClientId, Proposal], int]:
    """What each proposes, and how many replies were no proposal: who sent one has dropped out."""
    options, message = asking.options, asking.request(ask)
    if options.rule == "dp" and options.veiled:
        message = replace(message, arrays={"released": rows(told)})
    elif options.rule == "dp":
        message = replace(message, blobs={"released": b"\n".join(told)})
    federation, proposals, malformed = asking.federation, {}, 0
    for client, reply in federation.ask(options.verb, dict.fromkeys(federation.clients, message)):
        proposal = read(options.verb, message, reply, options.expected, options.longest)
        if proposal is None or (options.rule != "dp" and len(proposal.numbers) > options.top):
            malformed += 1
        else:
            proposals[client] = proposal
    return proposals, malformed


def _spelt(asking: Asking, choice: Choice) -> dict[bytes, str]:
    """The words of the chosen hashes, each as k of its holders spell it alike: from the next where
    they differ, or one does not answer. Fewer that lie can't change a word.
    """
    waiting = {name: list(choice.holders[name]) for name in sorted(choice.counts)}
    alike = max(SPELLERS, asking.options.holders if asking.options.shared else 1)
    needed = {name: min(alike, len(holders)) for name, holders in waiting.items()}
    said: dict[bytes, Counter[str]] = {name: Counter() for name in waiting}
    silent: Counter[ClientId] = Counter()
    for ask in count(len(set_union.GROWTH)):  # behind the proposals' asks
        asked: dict[ClientId, list[bytes]] = {}
        for place, (name, holders) in enumerate(waiting.items()):
            missing = needed[name] - max(said[name].values(), default=0)
            for _ in range(missing if missing <= len(holders) else 0):
                asked.setdefault(holders.pop(place % len(holders)), []).append(name)
        if not asked:
            break
        requests = {
            client: _spelling_of(asking, ask, names, choice)
            for client, names in sorted(asked.items())
        }
        for client, reply in asking.federation.ask(SPELL, requests):
            names = asked.pop(client)
            found = spelling(requests[client], reply, names, asking.options.longest)
            for name, word in found.items():
                said[name][word] += 1
        silent.update(asked.keys())
        for client in sorted(asked):
            for name in asked[client] if silent[client] < TRIES else ():
                waiting[name].append(client)
    return _distinct(
        {name: w for name, votes in said.items() for w in votes if votes[w] == needed[name]}
    )


def _spelling_of(asking: Asking, ask: int, names: Sequence[bytes], choice: Choice) -> Message:
    arrays = {"hashes": rows(names)}
    if asking.options.shared:
        shown = [choice.proofs[name] or [0] for name in names]  # 0: there is none
        width = max(map(len, shown))
        padded = [(own * width)[:width] for own in shown]
        arrays["evidence"] = torch.tensor(padded, dtype=torch.int64)
    return replace(asking.request(ask), arrays=arrays)


def enough(organisations: int, options: Agreement) -> None:
    """Refuse what no word could come of."""
    if options.rule in ("summed", "intersection") and organisations < options.holders:
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
    who = "one that says" if options.holders == 2 else f"{options.holders - 1} that say"
    rest = f" ({options.rest * options.minimum:g} without the {who} most)"
    reason = {
        "summed": (
            f"is held by {options.holders} organisations and {enough} in all"
            f"{rest if options.holders > 1 else ''}; "
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
