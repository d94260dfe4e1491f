"""What agreeing on a word list tells of single-source words: those that one organisation alone
holds.

    public files          the server: a name that one alone proposed is a single-source word, if it
                          is told in the clear (openly: all of them; veiled: those that were chosen
                          and spelt; where nobody is trusted: those that it can open)
    a colluding client    the same, and tries a public word list out against the hashes, with the
                          key of the organisations (slowly, where nobody is trusted)
    another organisation  reads the list: a word that its own text lacks is somebody else's, perhaps
                          of one alone

Precision and recall are of an organisation's single-source words (of all others', for the last, who
can't tell whose).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, partial

from lexfed.agreement import group_key, word_list, word_secrets
from lexfed.agreement.offers import OFFER, read_offers
from lexfed.agreement.organisation import key_of
from lexfed.agreement.proposals import (
    DISCLOSE,
    NONCE,
    PROPOSE,
    SPELL,
    hashes,
    listed,
    spelling,
)
from lexfed.agreement.protocol import VOCABULARY, Agreement
from lexfed.audits.closed_form.attackers import PUBLIC_FILES
from lexfed.audits.scene import Figures, Findings, Scene, timed
from lexfed.audits.transcript import Recorded
from lexfed.vocabulary import scan, splitting
from lexfed.wire import ClientId

Words = Mapping[bytes, str]  # a word by the name it travelled under


@dataclass(frozen=True)
class Messages:
    """What the messages say."""

    messages: Sequence[Recorded]
    options: Agreement

    @cached_property
    def held(self) -> dict[ClientId, set[bytes]]:
        """The names that each organisation proposed."""
        held: dict[ClientId, set[bytes]] = {}
        for one in self.messages:
            if one.verb in (PROPOSE, DISCLOSE, OFFER) and one.direction == "up":
                reply = one.message.arrays
                sent = reply.get("hashes", reply.get("tags"))
                names = listed(one.message.blobs["words"]) if sent is None else hashes(sent)
                held.setdefault(one.client, set()).update(names)
        return held

    @cached_property
    def alone(self) -> dict[ClientId, set[bytes]]:
        """The names that nobody else proposed."""
        holders = Counter(name for names in self.held.values() for name in names)
        return {
            client: {name for name in names if holders[name] == 1}
            for client, names in self.held.items()
        }

    @cached_property
    def words(self) -> Words:
        """Those that came in the clear."""
        if self.options.trust == "nobody":
            sent = (one for one in self.messages if one.verb is OFFER and one.direction == "up")
            offers = {one.client: one.message for one in sent}
            return read_offers(offers, self.options.terms).words
        if not self.options.veiled:
            return {name: name.decode() for names in self.held.values() for name in names}
        asked = {
            (m.step, m.ask, m.client): m.message
            for m in self.messages
            if m.verb is SPELL and m.direction == "down"
        }
        found: dict[bytes, str] = {}
        for one in self.messages:
            if one.verb is SPELL and one.direction == "up":
                request = asked[one.step, one.ask, one.client]
                found |= spelling(
                    request, one.message, hashes(request.arrays["hashes"]), self.options.longest
                )
        return found

    @cached_property
    def list(self) -> frozenset[str]:
        """What was agreed on, as every organisation was sent it."""
        sent = (
            one.message.blobs[VOCABULARY]
            for one in self.messages
            if VOCABULARY in one.message.blobs
        )
        data = next(sent, None)
        return frozenset(word_list.from_bytes(data).tokens) if data is not None else frozenset()


def agreement(scene: Scene, findings: Findings) -> None:
    if not scene.agreement:
        return findings.not_run("agreement", "no word list is agreed on")
    told = Messages(scene.agreement, scene.assembly.config.agreement)
    truth = single_source(scene, told)
    for attacker, words in _servers(scene, told):
        for client, alone in told.alone.items():
            guess = {words[name] for name in alone if name in words}
            timed(findings.cell("agreement", attacker), partial(_figures, guess, truth[client]))
    for client in told.held if told.list else ():
        own = {word for word, _ in scan.count(scene.assembly.population.client(client).train)}
        others = set[str]().union(*(words for other, words in truth.items() if other != client))
        timed(
            findings.cell("agreement", "another organisation"),
            partial(_figures, told.list - own, others),
        )


def single_source(scene: Scene, told: Messages) -> dict[ClientId, set[str]]:
    """The truth: the words of each organisation's text that no other's has."""
    longest = told.options.longest
    texts = {client: scene.assembly.population.client(client).train for client in told.held}
    own = {
        client: {word for word, _ in scan.count(text, longest=longest)}
        for client, text in texts.items()
    }
    holders = Counter(word for words in own.values() for word in words)
    return {client: {word for word in words if holders[word] == 1} for client, words in own.items()}


def _servers(scene: Scene, told: Messages) -> Iterator[tuple[str, Words]]:
    """Who sees the messages, and the names it can read."""
    yield PUBLIC_FILES.name, told.words
    name = _naming(scene, told)
    if name is not None and told.held and scene.public.words:
        found = {word for text in scene.public.words for word in splitting.words(text)}
        yield "a colluding client", {**{name(word): word for word in found}, **told.words}


def _naming(scene: Scene, told: Messages) -> Callable[[str], bytes] | None:
    """How an organisation that works with the server makes a word's name."""
    asked = (
        one for one in told.messages if one.verb in (PROPOSE, OFFER) and one.direction == "down"
    )
    request = next((one for one in asked if NONCE in one.message.blobs), None)
    if request is None:
        return None
    client, nonce = scene.assembly.population.client(request.client), request.message.blobs[NONCE]
    if request.verb is PROPOSE:
        return partial(word_list.keyed, key=key_of(client, nonce))
    (group,) = group_key.read_deals(request.message, client, nonce)
    terms = told.options.terms
    if group is None:
        return None
    key = terms.key(group, nonce)
    return lambda word: word_secrets.tag_of(word_secrets.secret_of(word, key, terms.memory))


def _figures(guess: Set[str], truth: Set[str]) -> Figures | None:
    if not truth:
        return None
    hits = len(guess & truth)
    precision = hits / len(guess) if guess else None
    return {
        "precision": precision,
        "recall": hits / len(truth),
        "f1": 2 * hits / (len(guess) + len(truth)),
    }
