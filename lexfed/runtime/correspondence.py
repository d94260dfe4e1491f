"""Asking organisations by letter: the server's half of a deployment.

A `Carrier` brings letters to nodes and answers back; Flower is one. Who a node is, it says itself:
a hello that is for anybody is answered under the node's own key, and the key has a number in
`peers.json`. Nodes come and go, and have other names after a restart; keys stay.

An exchange waits for everybody who is there. Who loses a letter is sent the same one again, and
answers with the same bytes. Who is away, or does not answer in time, has dropped out of it.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from lexfed import __version__
from lexfed.core.errors import WireError
from lexfed.core.seeds import Seed
from lexfed.federation import Federation, Replies, Requests, at_once, gated
from lexfed.runtime import letters
from lexfed.runtime.letters import Letter, LetterError
from lexfed.wire import ClientId, Message, Verb, decode, encode

WINDOW = 64  # letters that are on their way at the same time
HELD = 256  # letters and answers that are held at most
NodeId = int
Ticket = str
TWO_NODES, UNREADABLE, BY_SITE = "two nodes with one key", "no letter", "refused by the site"


@dataclass(frozen=True)
class Arrived:
    """What came of a letter; without a head it was lost on its way."""

    ticket: Ticket
    head: bytes = b""
    body: bytes = b""


class Carrier(Protocol):
    def nodes(self) -> Sequence[NodeId]:
        """Those that are there now."""

    def send(self, node: NodeId, head: bytes, body: bytes) -> Ticket | None:
        """None: it could not be sent."""

    def collect(self, tickets: Sequence[Ticket]) -> Sequence[Arrived]:
        """What has come of these so far, each once."""


@dataclass(frozen=True)
class Times:
    """How long a server waits, in seconds."""

    patience: float = 600.0  # for the answer of a node that is there
    grace: float = 30.0  # for somebody who is away
    start: float | None = None  # for enough clients to begin with; none: for ever
    again: float = 2.0  # before a lost letter is sent again
    look: float = 3.0  # between two looks at who is there
    poll: float = 0.2


@dataclass
class Pending:
    """A letter that waits for its answer."""

    letter: Letter
    packet: tuple[bytes, bytes]
    ticket: Ticket | None = None
    node: NodeId | None = None
    not_before: float = 0.0
    sent: float | None = None  # when, for the first time


@dataclass
class Correspondence:
    carrier: Carrier
    identity: Seed = field(repr=False)
    peers: Mapping[ClientId, bytes]
    federation: str
    terms: bytes
    times: Times = field(default_factory=Times)
    tell: Callable[["Correspondence", str], None] = lambda letters, what: None
    # who sits at which node
    where: dict[ClientId, NodeId] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    said: dict[str, str] = field(default_factory=dict)  # why somebody does not take part
    _greeted: dict[NodeId, Pending | None] = field(default_factory=dict)
    _looked: float = float("-inf")

    # --- who is there

    def look(self) -> None:
        """Greet the nodes that are new; forget those that are gone."""
        now = time.monotonic()
        if now - self._looked >= self.times.look:
            self._looked = now
            nodes = set(self.carrier.nodes())
            self.where = {client: node for client, node in self.where.items() if node in nodes}
            self._greeted = {n: p for n, p in self._greeted.items() if n in nodes}
            for node in sorted(nodes - set(self._greeted)):
                self._greeted[node] = self._pending("hello", letters.ANYBODY, self.terms)
        hellos = {node: hello for node, hello in self._greeted.items() if hello is not None}
        for node, hello in hellos.items():
            self._send(hello, node)
        for node, letter in self._arrived(hellos):
            self._met(node, letter)

    def _met(self, node: NodeId, letter: Letter) -> None:
        client = letter.client
        if letter.kind == "refusal":
            # it may be asked again: a site is mended and started anew without a new node
            self._greeted[node] = self._later()
            self._refuse(f"client {client}", letter.reason)
            return
        if self.where.get(client, node) != node:
            # the first one counts while it is there: it may be what is left of a node that died
            self._greeted[node] = self._later()
            if self.said.get(f"client {client}") != TWO_NODES:
                self._refuse(f"client {client}", TWO_NODES, TWO_NODES)
            return
        self._greeted[node] = None
        self.where[client] = node
        self.said.pop(f"client {client}", None)
        self.tell(self, f"client {client} is there")

    def _later(self) -> Pending:
        """A new hello, not at once."""
        hello = self._pending("hello", letters.ANYBODY, self.terms)
        hello.not_before = time.monotonic() + 10 * self.times.again
        return hello

    def wait_for(self, clients: int) -> None:
        """Until so many are there."""
        began, limit = time.monotonic(), self.times.start
        while len(self.where) < clients:
            self.look()
            if limit is not None and time.monotonic() - began > limit:
                why = "".join(f"; {who}: {said}" for who, said in sorted(self.said.items()))
                raise WireError(f"{len(self.where)} of {clients} clients came in {limit:g} s{why}")
            self.tell(self, f"waiting: {len(self.where)} of {len(self.peers)} clients are there")
            time.sleep(self.times.poll)

    # --- asking them

    def ask(self, verb: Verb, requests: Requests) -> Replies:
        """Everybody at once; answers in the order asked."""
        bodies = {id(message): encode(message) for message in requests.values()}
        pending = {
            client: self._pending("ask", client, bodies[id(message)], verb.name)
            for client, message in requests.items()
        }
        started, heard = time.monotonic(), dict[ClientId, Message | None]()
        for client in requests:
            while client not in heard and not self._is_late(client, pending[client], started):
                self._turn(pending, heard)
                self.tell(self, f"'{verb.name}': {len(heard)} of {len(requests)} have answered")
                if client not in heard:
                    time.sleep(self.times.poll)
            reply = heard.get(client)
            heard[client] = None  # it is the caller's now
            pending.pop(client)
            if reply is not None:
                yield client, reply

    def _turn(
        self, pending: Mapping[ClientId, Pending], heard: dict[ClientId, Message | None]
    ) -> None:
        self.look()
        # in the order asked; answers that wait for one before them are held, up to a limit
        next_ones = ((c, p) for c, p in islice(pending.items(), HELD) if c not in heard)
        open_letters = dict(islice(next_ones, WINDOW))
        for client, waiting in open_letters.items():
            node = self.where.get(client)
            if waiting.ticket is not None and waiting.node != node and node is not None:
                waiting.ticket = None  # it came back as another node
            if node is not None:
                self._send(waiting, node)
        for client, letter in self._arrived(open_letters):
            heard[client] = self._message(client, letter)

    def _message(self, client: ClientId, letter: Letter) -> Message | None:
        if letter.kind == "refusal":
            self._refuse(f"client {client}", letter.reason)
        if letter.kind != "reply":
            return None
        try:
            return decode(letter.body)
        except WireError:
            self.refused[UNREADABLE] += 1
            return None

    def _is_late(self, client: ClientId, waiting: Pending, started: float) -> bool:
        """Who is there has its patience from when its letter was sent: it may have had to wait."""
        now = time.monotonic()
        if client not in self.where:
            return now - started > self.times.grace
        return waiting.sent is not None and now - waiting.sent > self.times.patience

    # --- letters

    def _pending(self, kind: letters.Kind, client: int, body: bytes, verb: str = "") -> Pending:
        letter = Letter(
            kind, self.federation, client, os.urandom(16).hex(), __version__,
            letters.digest(self.terms), verb, body=body,
        )  # fmt: skip
        return Pending(letter, letters.sealed(letter, self.identity))

    def _send(self, waiting: Pending, node: NodeId) -> None:
        if waiting.ticket is None and time.monotonic() >= waiting.not_before:
            waiting.ticket, waiting.node = self.carrier.send(node, *waiting.packet), node
            waiting.not_before = time.monotonic() + self.times.again
            waiting.sent = time.monotonic() if waiting.sent is None else waiting.sent

    def _arrived(self, pending: Mapping[int, Pending]) -> Iterator[tuple[int, Letter]]:
        """Answers to these letters, by their keys. What is lost is asked for again."""
        tickets = {p.ticket: key for key, p in pending.items() if p.ticket is not None}
        for arrived in self.carrier.collect(list(tickets)) if tickets else ():
            key = tickets.get(arrived.ticket)
            if key is None:
                continue
            waiting = pending[key]
            waiting.ticket = None
            if not arrived.head:
                continue
            letter = self._opened(arrived, waiting.letter)
            if letter is not None:
                yield key, letter
            else:
                waiting.not_before = time.monotonic() + 10 * self.times.again

    def _opened(self, arrived: Arrived, asked: Letter) -> Letter | None:
        """The answer to what was asked; None: it is none, or not from whom it should be."""
        try:
            letter = letters.opened(arrived.head, arrived.body, self._known)
        except LetterError as error:
            self._refuse("a node", str(error), UNREADABLE)
            return None
        if not letters.answers(letter, asked):
            self._refuse("a node", "an answer to another letter", UNREADABLE)
            return None
        return letter

    def _known(self, letter: Letter) -> bytes | None:
        return self.peers.get(letter.client)

    def _refuse(self, who: str, why: str, kind: str = BY_SITE) -> None:
        self.refused[kind] += 1
        self.said[who] = "".join(c if c.isprintable() else "?" for c in why)
        self.tell(self, f"{who}: {self.said[who]}")


def by_letter(correspondence: Correspondence) -> Federation:
    """The federation whose clients are asked by letter."""
    ask = correspondence.ask
    clients = range(len(correspondence.peers))
    federation = gated(Federation(clients, ask, at_once(ask)))
    correspondence.refused = federation.refused  # one count: whoever keeps the record reads it
    return federation
