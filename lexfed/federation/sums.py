"""Asking clients, and adding up what they say.

    server program ── ask / total ──> runtime ──> handlers
          │ <──────── replies, or their sum ────────┘

A runtime is a function (`Ask`), and a sum is a function of it (`Total`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lexfed.core.params import Params, Update, add_all
from lexfed.federation.robust import Rule, heard
from lexfed.wire import ClientId, Message, Verb, size, unpack, well_formed

# At most one reply per client, in the order asked; who is missing or malformed has dropped out.
Requests = Mapping[ClientId, Message]
Replies = Iterator[tuple[ClientId, Message]]
Ask = Callable[[Verb, Requests], Replies]


@dataclass(frozen=True)
class Sum:
    """What a cohort's replies add up to."""

    update: Update = field(default_factory=dict)
    clients: int = 0
    bytes_up: int = 0


Total = Callable[[Verb, Requests], Sum]


@dataclass(frozen=True)
class Federation:
    """All that a server program sees of the world."""

    clients: Sequence[ClientId]
    ask: Ask
    total: Total


def add_up(sums: Iterable[Sum]) -> Sum:
    """In the order given, tensors as they come."""
    clients = bytes_up = 0

    def updates() -> Iterator[Update]:
        nonlocal clients, bytes_up
        for part in sums:
            clients, bytes_up = clients + part.clients, bytes_up + part.bytes_up
            yield part.update

    update = add_all(updates())
    return Sum(update, clients, bytes_up)


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
    """The sum of a block. A malformed reply counts as none: its client has dropped out."""
    return add_up(
        Sum(unpack(reply.arrays), 1, size(reply))
        for client, reply in replies
        if well_formed(verb, requests[client], reply)
    )  # fmt: skip


def plain(ask: Ask) -> Total:
    """Add up here, block by block."""

    def total(verb: Verb, requests: Requests) -> Sum:
        cohort = [
            {client: requests[client] for client in block} for block in blocks(list(requests))
        ]
        return add_up(add_replies(verb, asked, ask(verb, asked)) for asked in cohort)

    return total


def robust(ask: Ask, rule: Rule) -> Total:
    """Not a sum of blocks: every reply comes to this process, whoever answered for the client."""

    def total(verb: Verb, requests: Requests) -> Sum:
        sizes: list[int] = []

        def updates() -> Iterator[Params]:
            for client, reply in ask(verb, requests):
                update = heard(verb, requests[client], reply)
                if update is not None:
                    sizes.append(size(reply))
                    yield update

        return Sum(rule(updates()), len(sizes), sum(sizes))

    return total


def ruled(federation: Federation, rule: Rule) -> Federation:
    """By this rule where replies are updates of the model; what else is added up stays a sum."""
    by_rule = robust(federation.ask, rule)

    def total(verb: Verb, requests: Requests) -> Sum:
        return (by_rule if verb.moves else federation.total)(verb, requests)

    return Federation(federation.clients, federation.ask, total)


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

    return Federation(federation.clients, ask, total)


Down = Callable[[Verb, Requests], None]
Up = Callable[[Verb, ClientId, Message, Message], None]
