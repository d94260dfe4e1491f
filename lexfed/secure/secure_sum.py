"""The server in a secure sum: `secure(ask, options) -> total`.

    keys -> U1, shares -> U2, masked -> U3, open -> U4           each the clients that answered
    sum_(u in U3) x_u = sum_(u in U3) (y_u - PRG(b_u))
                        + sum_(u in U3, v in U2 \\ U3) +- PRG(s_uv)      masks with who left

Fewer than the threshold in any of them: nothing is opened, and the sum is empty. A share is checked
against its owner's proof, a secret that comes of shares against what its owner promised: what is
wrong is left out and counted.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from lexfed.core.errors import ConfigError
from lexfed.core.params import Params
from lexfed.core.seeds import Seed
from lexfed.federation import Ask, Federation, Replies, Requests, Sum, Total
from lexfed.secure import keys, ring, shamir
from lexfed.secure.dense_rows import gathered
from lexfed.secure.graph import Graph
from lexfed.secure.keys import Ring
from lexfed.secure.member import (
    add_pair,
    pair_mask,
    promise_of,
    proof_of,
    signed_text,
    stack,
)
from lexfed.secure.secure_options import Secure, graph_of, survivors
from lexfed.secure.secure_verbs import OF, PROOF, REFUSALS, REFUSED, Exchanges, exchanges
from lexfed.secure.sessions import announced, bound_to, context_of
from lexfed.wire import ClientId, Message, Meta, Verb, size, under
from lexfed.wire.verbs import TOGETHER

NOT_OPENED = "too few stayed: the sum was not opened"
WRONG_SHARE, UNREADABLE = "a wrong share", "a sealed share that could not be read"
WRONG_SECRET = "shares of no secret"
UNSIGNED = REFUSALS[3]
Known = Callable[[ClientId], bytes | None]


class NotOpenedError(Exception):
    """Too few are left."""


@dataclass
class Bill:
    """What a sum costs, and what was not taken, by its reasons."""

    up: int = 0
    down: int = 0
    refused: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Dealt:
    """What a client published with its shares."""

    sealed: Mapping[ClientId, bytes]  # by holder
    proofs: Mapping[ClientId, bytes]
    promise: bytes


@dataclass(frozen=True)
class Protocol:
    """One sum, exchange by exchange."""

    ask: Ask
    verb: Verb
    requests: Requests
    slots: ring.Layout
    graph: Graph
    needed: int  # how many must stay
    terms: Mapping[str, Meta]
    announced: bytes
    known: Known  # everybody's public identity; None: unknown
    bound: bytes = b""
    bill: Bill = field(default_factory=Bill)

    @property
    def exchanges(self) -> Exchanges:
        return exchanges(self.verb)

    @property
    def clock(self) -> dict[str, Meta]:
        meta = next(iter(self.requests.values())).meta
        return {name: meta[name] for name in ("step", "ask", "round")}

    @property
    def context(self) -> bytes:
        """What everybody signs; once keys are known, what everybody's secrets are bound to."""
        at = int(self.clock["step"]), int(self.clock["ask"])
        return self.bound or context_of(self.terms, at, self.announced)

    def total(self) -> tuple[Params, set[ClientId]]:
        public = self.keys()
        after = self
        if self.graph.threshold == self.terms["survivors"]:  # everybody with everybody
            shown = {client: both for client, (both, _) in public.items()}
            after = replace(self, bound=bound_to(self.context, shown))
        dealt = after.shares(public)
        hidden, stayed = after.masked(dealt)
        shares = after.open(dealt, stayed)
        return after.unmasked(hidden, stayed, public, dealt, shares), stayed

    def exchange(
        self, verb: Verb, requests: Requests, needed: int
    ) -> Iterator[tuple[ClientId, Message]]:
        """Those who answer; who refuses is counted."""
        sizes = {id(message): size(message) for message in requests.values()}
        self.bill.down += sum(sizes[id(message)] for message in requests.values())
        heard = 0
        for client, reply in self.ask(verb, requests):
            self.bill.up += size(reply)
            if REFUSED in reply.meta:
                self.bill.refused[REFUSALS[int(reply.meta[REFUSED])]] += 1
                continue
            heard += 1
            yield client, reply
        if heard < needed:
            raise NotOpenedError

    def keys(self) -> dict[ClientId, tuple[bytes, bytes]]:
        """U1: two public keys of each, and its signature."""
        message = Message(meta={**self.clock, **self.terms}, blobs={"request": self.announced})
        asked = dict.fromkeys(self.requests, message)
        found: dict[ClientId, tuple[bytes, bytes]] = {}
        for client, reply in self.exchange(self.exchanges.keys, asked, self.needed):
            both, signature = reply.blobs["keys"], reply.blobs["signature"]
            identity = self.known(client)
            text = signed_text(self.context, client, both)
            if len(both) != 2 * keys.KEY or len(signature) != keys.SIGNATURE:
                self.bill.refused[UNSIGNED] += 1
            elif identity is None or not keys.signed(identity, signature, text):
                self.bill.refused[UNSIGNED] += 1  # its peers would refuse the whole sum
            else:
                found[client] = (both, signature)
        if len(found) < self.needed:
            raise NotOpenedError
        return found

    def shares(self, public: Mapping[ClientId, tuple[bytes, bytes]]) -> dict[ClientId, Dealt]:
        """U2: what each dealt to its neighbours."""
        holders = {client: self._among(client, public) for client in public}
        known: dict[tuple[ClientId, ...], Message] = {}
        for group in set(holders.values()):
            known[group] = Message(
                {
                    "holders": torch.tensor(group, dtype=torch.int64),
                    "keys": stack([public[peer][0] for peer in group]),
                    "signatures": stack([public[peer][1] for peer in group]),
                },
                {**self.clock, "n": len(group)},
            )
        asked = {client: known[group] for client, group in holders.items()}
        dealt: dict[ClientId, Dealt] = {}
        for client, reply in self.exchange(self.exchanges.shares, asked, self.needed):
            sealed, proofs = (
                dict(zip(holders[client], map(bytes, reply.arrays[name].numpy()), strict=True))
                for name in ("sealed", "proofs")
            )
            dealt[client] = Dealt(sealed, proofs, bytes(reply.arrays["promise"].numpy()))
        return dealt

    def masked(self, dealt: Mapping[ClientId, Dealt]) -> tuple[Ring, set[ClientId]]:
        """U3, and the sum of what they sent, still under masks."""
        total = ring.nothing(self.slots)
        stayed: set[ClientId] = set()
        wanted = torch.int64 if self.slots.bits == 64 else torch.int32
        for client, reply in self.exchange(
            self.exchanges.masked, self._carriers(dealt), self.needed
        ):
            hidden = reply.arrays["masked"]
            if hidden.dtype != wanted:
                self.bill.refused["'masked' has another dtype"] += 1
                continue
            if unread := int(reply.meta.get("unread", 0)):
                self.bill.refused[UNREADABLE] += unread
            total += ring.view(self.slots, hidden.numpy())
            stayed.add(client)
        return total, stayed

    def _carriers(self, dealt: Mapping[ClientId, Dealt]) -> Requests:
        """To each its own request, and the shares that its neighbours sealed for it."""
        carriers: dict[ClientId, Message] = {}
        for client in dealt:
            request, senders = self.requests[client], self._among(client, dealt)
            carriers[client] = Message(
                {
                    **under(OF, request.arrays),
                    "senders": torch.tensor(senders, dtype=torch.int64),
                    "sealed": stack([dealt[sender].sealed[client] for sender in senders]),
                },
                {
                    **{f"{OF}/{name}": value for name, value in request.meta.items()},
                    **{**self.clock, "n": len(senders), "length": self.slots.length},
                },
                {f"{OF}/{name}": blob for name, blob in request.blobs.items()},
            )
        return carriers

    def open(
        self, dealt: Mapping[ClientId, Dealt], stayed: set[ClientId]
    ) -> dict[ClientId, dict[ClientId, bytes]]:
        """By owner and holder, the shares that hold what their owner promised: of the own mask of
        who stayed, of the key of who left.
        """
        if len(stayed) < self.needed:
            raise NotOpenedError
        senders = {client: self._among(client, dealt) for client in stayed}
        asked = {
            client: Message(
                {"stayed": torch.tensor([v for v in group if v in stayed], dtype=torch.int64)},
                {**self.clock, "n": len(group)},
            )
            for client, group in senders.items()
        }
        shares: dict[ClientId, dict[ClientId, bytes]] = {client: {} for client in dealt}
        for holder, reply in self.exchange(self.exchanges.open, asked, 0):
            told = map(bytes, reply.arrays["shares"].numpy())
            for owner, share in zip(senders[holder], told, strict=True):
                kind = "own mask" if owner in stayed else "key"
                start = 0 if owner in stayed else PROOF
                proof = dealt[owner].proofs[holder][start : start + PROOF]
                if proof_of(self.context, owner, holder, share, kind) == proof:
                    shares[owner][holder] = share
                elif any(share):  # one that could not be read was counted before
                    self.bill.refused[WRONG_SHARE] += 1
        return shares

    def unmasked(
        self,
        total: Ring,
        stayed: set[ClientId],
        public: Mapping[ClientId, tuple[bytes, bytes]],
        dealt: Mapping[ClientId, Dealt],
        shares: Mapping[ClientId, Mapping[ClientId, bytes]],
    ) -> Params:
        secrets = {client: self._secret(shares[client]) for client in dealt}
        for client, secret in secrets.items():
            if client in stayed:
                honest = promise_of(self.context, client, secret) == dealt[client].promise
            else:
                honest = keys.public(secret) == public[client][0][keys.KEY :]
            if not honest:
                self.bill.refused[WRONG_SECRET] += 1
                raise NotOpenedError
        for client in stayed:
            total -= keys.expand(secrets[client], len(total), self.slots.bits)
        for gone in secrets.keys() - stayed:
            for client in self.graph.neighbours[gone]:
                if client in stayed:
                    self._take_off(total, client, gone, secrets[gone], public[client][0])
        return ring.decode(self.slots, total)

    def _take_off(
        self, total: Ring, client: ClientId, gone: ClientId, private: Seed, public: bytes
    ) -> None:
        """The mask that one who stayed had in common with one who left: as that one would have."""
        seed = pair_mask(private, public[keys.KEY :], self.context)
        if seed is None:
            raise NotOpenedError
        add_pair(total, keys.expand(seed, len(total), self.slots.bits), gone, client)

    def _secret(self, shares: Mapping[ClientId, bytes]) -> Seed:
        """Any shares do, as many as the threshold says."""
        if len(shares) < self.graph.threshold:
            raise NotOpenedError
        holders = sorted(shares)[: self.graph.threshold]
        secret = shamir.join({holder + 1: shares[holder] for holder in holders})
        if secret is None:
            self.bill.refused[WRONG_SECRET] += 1
            raise NotOpenedError
        return secret

    def _among(self, client: ClientId, clients: Mapping[ClientId, object]) -> tuple[ClientId, ...]:
        return tuple(peer for peer in self.graph.neighbours[client] if peer in clients)


def secure(ask: Ask, options: Secure, known: Known) -> Total:
    """A sum of which the server learns nothing but the sum. It knows everybody's public identity,
    as all clients do.
    """

    def total(verb: Verb, requests: Requests) -> Sum:
        if not requests:
            return Sum()
        protocol = _protocol(ask, options, known, verb, requests)
        update: Params = {}
        members: set[ClientId] = set()
        try:
            update, members = protocol.total()
        except NotOpenedError:
            protocol.bill.refused[NOT_OPENED] += 1
        bill = protocol.bill
        cut = int(update[ring.CUT]) if ring.CUT in update else 0
        sums = {name: value for name, value in update.items() if name != ring.CUT}
        told = gathered(sums, next(iter(requests.values())))
        # the requests themselves are counted by whoever counts
        beside = bill.down - sum(size(message) for message in requests.values())
        who = tuple(sorted(members))
        return Sum(told, len(who), bill.up, bill.refused, beside, cut, who)

    return total


def secured(federation: Federation, options: Secure, known: Known) -> Federation:
    """Nothing but sums. What tells of no text is asked of each."""

    def ask(verb: Verb, requests: Requests) -> Replies:
        if verb.adds_up or verb.single:
            raise ConfigError(
                f"'{verb.name}' asks each client for an answer of its own, which nobody gives "
                "where sums are secure: set secure.sums = false"
            )
        return federation.ask(verb, requests)

    total = secure(federation.ask, options, known)
    return replace(federation, ask=ask, total=total, sums_only=True)


def _protocol(ask: Ask, options: Secure, known: Known, verb: Verb, requests: Requests) -> Protocol:
    one = next(iter(requests.values()))
    if not verb.unlike and any(message is not one for message in requests.values()):
        raise ConfigError(
            f"requests of '{verb.name}' differ from client to client, and its verb does not say so "
            "(unlike=True): under masks all must be sent the same"
        )
    slots = ring.layout(verb, one, len(requests), options.bits, options.range)
    graph, needed = graph_of(options, list(requests)), survivors(options, len(requests))
    terms: dict[str, Meta] = {
        "verb": verb.name,
        "clients": len(requests),
        "survivors": needed,
        "threshold": graph.threshold,
        "length": slots.length,
        "bits": slots.bits,
        "range": options.range,
    }
    # of a second sum of the same: all, or none
    needed = len(requests) if TOGETHER in one.meta else needed
    return Protocol(ask, verb, requests, slots, graph, needed, terms, announced(verb, one), known)
