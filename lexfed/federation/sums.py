"""Asking clients, and adding up what they say.

    server program ── ask / total ──> runtime ──> handlers
          │ <──────── replies, or their sum ────────┘

A runtime is a function (`Ask`), and a sum is a function of it (`Total`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from lexfed.core.params import Params, Update, add_all
from lexfed.federation.asking import Ask, Replies, Requests, sound
from lexfed.federation.robust import Rule, dense_only, heard
from lexfed.wire import ClientId, Message, Verb, size, unpack


@dataclass(frozen=True)
class Sum:
    """What a cohort's replies add up to, and how many were refused, by their reasons."""

    update: Update = field(default_factory=dict)
    clients: int = 0
    bytes_up: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    bytes_down: int = 0  # beside the requests themselves: what a secure sum takes
    cut: int = 0  # clients that had to cut their numbers to fit a secure sum
    members: tuple[ClientId, ...] = ()  # of a secure sum: who is in it


Total = Callable[[Verb, Requests], Sum]


@dataclass(frozen=True)
class Federation:
    """All that a server program sees of the world."""

    clients: Sequence[ClientId]
    ask: Ask
    total: Total
    # replies to `ask` that were not taken, by their reasons: for whoever keeps the record
    refused: Counter[str] = field(default_factory=Counter)
    # nobody gives an answer of its own to what adds up: the sum is all there is
    sums_only: bool = False


def gated(federation: Federation) -> Federation:
    """The layer around `ask`: whoever asks gets sound replies only. (A sum is made of such.)"""
    refused: Counter[str] = Counter()

    def ask(verb: Verb, requests: Requests) -> Replies:
        return sound(verb, requests, federation.ask(verb, requests), refused)

    return replace(federation, ask=ask, refused=refused)


def add_up(sums: Iterable[Sum]) -> Sum:
    """In the order given, tensors as they come."""
    clients = bytes_up = 0
    refused: Counter[str] = Counter()

    def updates() -> Iterator[Update]:
        nonlocal clients, bytes_up
        for part in sums:
            clients, bytes_up = clients + part.clients, bytes_up + part.bytes_up
            refused.update(part.refused)
            yield part.update

    update = add_all(updates())
    return Sum(update, clients, bytes_up, refused)


BLOCKS = 16


def blocks(cohort: Sequence[ClientId]) -> list[Sequence[ClientId]]:
    """The cohort in at most 16 runs of equal length: a function of the cohort alone, never of the
    workers.

    Replies are added within a block, then the blocks in order. A block is the unit of work a worker
    takes, so only sums cross process borders, and the result does not depend on who made them.
    """
    length = -(-len(cohort) // BLOCKS) or 1
    return [cohort[start : start + length] for start in range(0, len(cohort), length)]


def add_replies(verb: Verb, requests: Requests, replies: Replies) -> Sum:
    """The sum of a block's sound replies."""
    refused: Counter[str] = Counter()
    good = sound(verb, requests, replies, refused)
    total = add_up(Sum(unpack(reply.arrays), 1, size(reply)) for _, reply in good)
    return replace(total, refused=refused)


def plain(ask: Ask) -> Total:
    """Add up here, block by block."""

    def total(verb: Verb, requests: Requests) -> Sum:
        cohort = [
            {client: requests[client] for client in block} for block in blocks(list(requests))
        ]
        return add_up(add_replies(verb, asked, ask(verb, asked)) for asked in cohort)

    return total


def at_once(ask: Ask) -> Total:
    """The same sum as `plain`, where everybody is asked at the same time: between machines, a block
    need not wait for the one before it.
    """

    def total(verb: Verb, requests: Requests) -> Sum:
        cohort = blocks(list(requests))
        place = {client: number for number, block in enumerate(cohort) for client in block}
        replies = groupby(ask(verb, requests), key=lambda reply: place.get(reply[0], -1))
        return add_up(add_replies(verb, requests, block) for _, block in replies)

    return total


def robust(ask: Ask, rule: Rule) -> Total:
    """Not a sum of blocks: every reply comes to this process, whoever answered for the client."""

    def total(verb: Verb, requests: Requests) -> Sum:
        dense_only(requests.values())
        sizes: list[int] = []
        refused: Counter[str] = Counter()

        def updates() -> Iterator[Params]:
            for _, reply in sound(verb, requests, ask(verb, requests), refused):
                update = heard(reply)
                if update is not None:
                    sizes.append(size(reply))
                    yield update

        return Sum(rule(updates()), len(sizes), sum(sizes), refused)

    return total


def ruled(federation: Federation, rule: Rule) -> Federation:
    """By this rule where replies are updates of the model; what else is added up stays a sum."""
    by_rule = robust(federation.ask, rule)

    def total(verb: Verb, requests: Requests) -> Sum:
        return (by_rule if verb.moves else federation.total)(verb, requests)

    return replace(federation, total=total)


def tapped(
    federation: Federation, down: "Down | None" = None, up: "Up | None" = None
) -> Federation:
    """A tap on what crosses: `down` sees requests before they go out, `up` every reply to an ask as
    it comes.

    Replies that are added up elsewhere pass no tap: only their sum comes here.
    """

    def ask(verb: Verb, requests: Requests) -> Replies:
        if down is not None:
            down(verb, requests)
        for client, reply in federation.ask(verb, requests):
            if up is not None:
                up(verb, client, requests[client], reply)
            yield client, reply

    def total(verb: Verb, requests: Requests) -> Sum:
        if down is not None:
            down(verb, requests)
        return federation.total(verb, requests)

    return replace(federation, ask=ask, total=total)


Down = Callable[[Verb, Requests], None]
Up = Callable[[Verb, ClientId, Message, Message], None]
