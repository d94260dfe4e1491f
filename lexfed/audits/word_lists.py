"""What agreeing on a word list tells of single-source words: those that one organisation alone
holds.

    public files          the server: a name that one alone proposed is a single-source word, if it
                          is told in the clear (openly: all of them; veiled: those that were chosen
                          and spelt)
    a colluding client    the same, and tries a public word list out against the hashes, with the
                          key of the organisations
    another organisation  reads the list: a word that its own text lacks is somebody else's, perhaps
                          of one alone

Precision and recall are of an organisation's single-source words (of all others', for the last, who
can't tell whose).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, partial

from lexfed.agreement import word_list
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
from lexfed.core.seeds import Seed
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
            if one.verb in (PROPOSE, DISCLOSE) and one.direction == "up":
                reply = one.message
                names = (
                    hashes(reply.arrays["hashes"])
                    if "hashes" in reply.arrays
                    else listed(reply.blobs["words"])
                )
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
    nonces = (one.message.blobs.get(NONCE) for one in told.messages if one.verb is PROPOSE)
    nonce = next((found for found in nonces if found is not None), None)
    if nonce is not None and told.held and scene.public.words:
        client = scene.assembly.population.client(next(iter(told.held)))
        yield "a colluding client", {**_tried_out(scene, key_of(client, nonce)), **told.words}


def _tried_out(scene: Scene, key: Seed) -> Words:
    """Public words under the organisations' key: a hash among them is read."""
    found = {word for text in scene.public.words for word in splitting.words(text)}
    return {word_list.keyed(word, key): word for word in found}


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
