"""An agreement in which nobody is trusted: words that k organisations hold come out, and nobody
reads another (`word_secrets`, under a key of the organisations' own: `group_key`).

    organisation   offers a row for each of its words, and rows of none up to a power of two
    server         opens what k organisations offered: the words, as k of them spell them, with the
                   counts of each. The rule then chooses among these
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median_high

import torch

from lexfed.agreement.group_key import DEALS, Group, Hearing
from lexfed.agreement.proposals import MOST, NONCE, hashes, is_word, rows
from lexfed.agreement.word_list import HASH
from lexfed.agreement.word_secrets import (
    SEALED,
    Row,
    Spelt,
    bucket,
    opened,
    padding,
    row,
    secret_of,
)
from lexfed.core.params import Params
from lexfed.core.seeds import Seed, derive
from lexfed.secure import shamir
from lexfed.wire import Array, ClientId, Form, Message, Verb
from lexfed.wire.verbs import CLOCK

_BYTES = (torch.uint8,)
OFFER = Verb(
    "offer",
    down=Form(DEALS, (*CLOCK, "n", "most"), (NONCE,)),
    up=Form(
        {
            "tags": Array(_BYTES, ("names", HASH)),
            "shares": Array(_BYTES, ("names", shamir.BYTES)),
            "sealed": Array(_BYTES, ("names", SEALED)),
        },
        needs=(("tags", "shares", "sealed"),),
    ),
    kind="list",
    apart=True,
)


@dataclass(frozen=True)
class Terms:
    """What organisations must have alike for their words to meet."""

    holders: int  # k
    memory: int  # kilobytes that hashing a word takes
    longest: int  # characters of a word
    counted: bool  # whether counts are told

    def key(self, group: Seed, nonce: bytes) -> Seed:
        """Tags of two agreements, or of other terms, have nothing in common."""
        return derive(group, "words", nonce.hex(), self.holders, self.memory)


# --- an organisation's half -----------------------------------------------------------------------


def offer(
    words: Iterable[tuple[str, int]], key: Seed, terms: Terms, place: int, size: int, chance: Seed
) -> Message:
    """So many rows, of the words and of none, in the order of their tags."""
    made = [
        row(word, count, secret_of(word, key, terms.memory), terms.holders, place)
        for word, count in words
    ]
    made.extend(padding(chance, max(0, size - len(made))))
    return Message(columns(sorted(made)))


def columns(made: Iterable[Row]) -> Params:
    tags, shares, sealed = zip(*made, strict=True)
    return {
        "tags": rows(tags),
        "shares": rows(shares, shamir.BYTES),
        "sealed": rows(sealed, SEALED),
    }


def place_of(client: ClientId) -> int:
    """Where its shares lie: its own, so nobody has two."""
    return client + 1


# --- the server's half ----------------------------------------------------------------------------


@dataclass
class Opened:
    """What k organisations hold, by its tag."""

    words: dict[bytes, str] = field(default_factory=dict)
    # by organisation, the count of each; 0 where none is told
    numbers: dict[ClientId, dict[bytes, int]] = field(default_factory=dict)
    unlike: int = 0  # tags that were opened, and not spelt alike by k holders
    wrong: int = 0  # rows that did not fit the others of their tag


@dataclass(frozen=True)
class Heard:
    offers: Mapping[ClientId, Message]
    cut: int  # organisations that would have proposed many more words than the others
    words: int  # that these were asked to leave out, about


def heard(hearing: Hearing, group: Group, stuffing: float, top: int) -> Heard:
    """The offers of those who keep to what they were told: at most so many rows, no tag twice."""
    sizes = {client: bucket(min(words, top)) for client, words in group.words.items()}
    most = {client: _most(sizes, client, stuffing) for client in sizes}
    requests = {
        client: replace(request, meta={**request.meta, "most": most[client]})
        for client, request in group.requests.items()
    }
    offers = {}
    for client, reply in hearing.ask(OFFER, requests).items():
        tags = hashes(reply.arrays["tags"])
        if len(tags) <= most[client] and len(set(tags)) == len(tags):
            offers[client] = reply
        else:
            hearing.malformed += 1
    lost = [size - most[client] for client, size in sizes.items()]
    return Heard(offers, sum(map(bool, lost)), sum(lost))


def _most(sizes: Mapping[ClientId, int], client: ClientId, stuffing: float) -> int:
    """Nobody with a dictionary: an organisation is told how many words it may bring, and brings its
    most frequent ones. (The higher median: one that says it holds little has nobody cut.)
    """
    others = [n for other, n in sizes.items() if other != client]
    return min(sizes[client], int(stuffing * median_high(others))) if others else sizes[client]


def read_offers(offers: Mapping[ClientId, Message], terms: Terms) -> Opened:
    """What the server can read of them."""
    by_tag: dict[bytes, dict[int, Row]] = {}
    for client, reply in offers.items():
        for one in map(Row, *(hashes(reply.arrays[name]) for name in ("tags", "shares", "sealed"))):
            by_tag.setdefault(one.tag, {})[place_of(client)] = one
    found, wrong = Opened(numbers={client: {} for client in offers}), Counter[int]()
    clients = {place_of(client): client for client in offers}
    for tag in sorted(by_tag):
        said = opened(by_tag[tag], terms.holders, wrong)
        if not said:
            continue
        word = _alike(said, terms)
        if word is None:
            found.unlike += 1
            continue
        found.words[tag] = word.decode()
        for place, spelt in said.items():
            if spelt.word == word and _counted(spelt, terms):
                found.numbers[clients[place]][tag] = spelt.number
            else:
                wrong[place] += 1
    found.wrong = wrong.total()
    return found


def _alike(said: Mapping[int, Spelt], terms: Terms) -> bytes | None:
    """The word as k holders spell it: fewer that lie can't change it."""
    votes = Counter(spelt.word for spelt in said.values() if _counted(spelt, terms))
    words = [word for word, n in votes.items() if n >= terms.holders]
    # k that lie alike could be as many as those who don't
    return words[0] if len(words) == 1 and is_word(words[0], terms.longest) else None


def _counted(spelt: Spelt, terms: Terms) -> bool:
    return 1 <= spelt.number <= MOST if terms.counted else spelt.number == 0
