"""A client in a secure sum: its half of the protocol (Bonawitz et al., CCS 2017, Figure 4).

    keys     c, s <- two fresh key pairs; send both public keys, signed together with what this sum
             is about (the verb, the clock, the thresholds, a digest of the request)
    shares   check everybody's signature; b <- fresh; send each neighbour, sealed, its shares of b
             and of the private key of s
    masked   y = x + PRG(b) + sum_(v > u) PRG(s_uv) - sum_(v < u) PRG(s_uv),  s_uv = agree(s_u, s_v)
    open     of each neighbour that stayed the share of b; of each that left, the share of s.
             Never both: after one answer the session is gone

A client that is asked for anything else says why it refuses, and takes no part.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from lexfed.core.errors import NotAgreedError
from lexfed.core.seeds import Seed
from lexfed.corpus.population import Client
from lexfed.federation import Answer, ClientState, Handler
from lexfed.secure import keys, ring, secure_verbs, shamir
from lexfed.secure.dense_rows import spread
from lexfed.secure.keys import Ring
from lexfed.secure.secure_options import Secure, own_terms
from lexfed.secure.secure_verbs import OF, REFUSED, exchanges
from lexfed.secure.sessions import (
    Session,
    Sessions,
    Stage,
    announced,
    bound_to,
    context_of,
)
from lexfed.wire import ClientId, Message, Verb, below, unpack
from lexfed.wire.verbs import COHORT, ECHO

MOST = 100_000  # clients of a sum
UNREAD = bytes(secure_verbs.SHARE_PAIR)


@dataclass(frozen=True)
class Member:
    options: Secure
    sessions: Sessions
    identity: Callable[[Client], Seed]  # its own, private
    # everybody's public identity, from a file that did not come from the server; None: unknown
    pinned: Callable[[ClientId], bytes | None]

    # --- Round 0

    def keys(self, message: Message, client: Client, state: ClientState) -> Answer:
        terms = {name: message.meta[name] for name in secure_verbs.TERMS}
        clock = int(message.meta["step"]), int(message.meta["ask"])
        if not self.options.least <= int(terms["clients"]) <= MOST:
            return _refuse(secure_verbs.TOO_FEW, state)
        if not self._own(terms):
            return _refuse(secure_verbs.TERMS_DIFFER, state)
        if self.sessions.opened(client.id, str(terms["verb"])) >= clock:
            return _refuse(secure_verbs.OPENED, state)
        request = message.blobs["request"]
        session = Session(
            str(terms["verb"]), clock, context_of(terms, clock, request), request, terms
        )
        public = keys.public(session.sealing_key) + keys.public(session.masking_key)
        about = signed_text(session.context, client.id, public)
        signature = keys.sign(self.identity(client), about)
        self.sessions.save(client.id, session)
        return Message(blobs={"keys": public, "signature": signature}), state

    def _own(self, terms: Mapping[str, object]) -> bool:
        """No server lowers what this client's own table says of a sum of that many."""
        told = tuple(float(str(terms[n])) for n in ("survivors", "threshold", "bits", "range"))
        return told == own_terms(self.options, int(str(terms["clients"])))

    # --- Round 1

    def shares(self, message: Message, client: Client, state: ClientState) -> Answer:
        session = self._session(client, message, "keys")
        if session is None:
            return _refuse(secure_verbs.TURN, state)
        holders = _ids(message.arrays["holders"])
        threshold = int(session.terms["threshold"])
        # t of them, and so few that no two groups of t have nobody in common: none opens the one
        # kind of share while another opens the other
        few = len(holders) < max(threshold, 2) or 2 * threshold <= len(holders)
        if few or len(holders) > int(session.terms["clients"]) or min(holders) < 0:
            return _refuse(secure_verbs.TOO_FEW, state)
        public = dict(zip(holders, _rows(message.arrays["keys"]), strict=False))
        signatures = dict(zip(holders, _rows(message.arrays["signatures"]), strict=False))
        mine = keys.public(session.sealing_key) + keys.public(session.masking_key)
        if not len(public) == len(signatures) == len(holders) or public.get(client.id) != mine:
            return _refuse(secure_verbs.UNSIGNED, state)
        if not all(self._signed(session, v, public[v], signatures[v]) for v in holders):
            return _refuse(secure_verbs.UNSIGNED, state)
        if threshold == session.terms["survivors"]:  # everybody with everybody: all see one list
            session = replace(session, context=bound_to(session.context, public))
        self.sessions.save(client.id, replace(session, stage="shares", keys=public))
        return _dealt(session, client.id, public, threshold), state

    def _signed(self, session: Session, peer: ClientId, public: bytes, signature: bytes) -> bool:
        identity = self.pinned(peer)
        text = signed_text(session.context, peer, public)
        return identity is not None and keys.signed(identity, signature, text)

    # --- Round 2

    def masked(self, verb: Verb, handler: Handler) -> Handler:
        def handle(message: Message, client: Client, state: ClientState) -> Answer:
            session = self._session(client, message, "shares", verb)
            if session is None:
                return _refuse(secure_verbs.TURN, state)
            request = inner(message)
            if announced(verb, request) != session.request:
                return _refuse(secure_verbs.OTHER, state)
            slots = ring.layout(
                verb, request, int(session.terms["clients"]), self.options.bits, self.options.range
            )
            if not _as_announced(session, request, slots):
                return _refuse(secure_verbs.OTHER, state)
            senders, rows = _ids(message.arrays["senders"]), _rows(message.arrays["sealed"])
            sealed = dict(zip(senders, rows, strict=False))
            few = len(sealed) < int(session.terms["threshold"]) or client.id not in sealed
            if few or not sealed.keys() <= session.keys.keys() or len(sealed) < len(senders):
                return _refuse(secure_verbs.TOO_FEW, state)
            seeds = _pair_seeds(session, client.id, senders)
            if seeds is None:
                return _refuse(secure_verbs.UNSIGNED, state)
            try:
                reply, after = handler(_of_cohort(session, request), client, state)
            except NotAgreedError:
                return _refuse(secure_verbs.TERMS_DIFFER, state)
            if reply is None:
                return None, after
            shares = _unsealed(session, client.id, sealed)
            own = ring.encode(slots, spread(unpack(reply.arrays), request))
            hidden = _hidden(own, session.own_mask, client.id, seeds)
            self.sessions.save(client.id, replace(session, stage="masked", shares=shares))
            unread = sum(share == UNREAD for share in shares.values())
            signed = hidden.view(np.int64 if slots.bits == 64 else np.int32)
            return Message({"masked": torch.from_numpy(signed)}, {"unread": unread}), after

        return handle

    # --- Round 4

    def open(self, message: Message, client: Client, state: ClientState) -> Answer:
        session = self._session(client, message, "masked")
        if session is None:
            return _refuse(secure_verbs.TURN, state)
        stayed = set(_ids(message.arrays["stayed"]))
        few = len(stayed) < int(session.terms["threshold"]) or client.id not in stayed
        if few or not stayed <= session.shares.keys():
            return _refuse(secure_verbs.TOO_FEW, state)
        if self.sessions.opened(client.id, session.verb) >= session.clock:
            return _refuse(secure_verbs.OPENED, state)  # its session came back from a copy
        self.sessions.spend(client.id, session)
        own, key = slice(0, shamir.BYTES), slice(shamir.BYTES, None)
        told = [
            pair[own] if peer in stayed else pair[key]
            for peer, pair in sorted(session.shares.items())
        ]
        return Message({"shares": stack(told)}), state

    def _session(
        self, client: Client, message: Message, stage: Stage, verb: Verb | None = None
    ) -> Session | None:
        """The session, if this is its next exchange."""
        session = self.sessions.load(client.id)
        clock = int(message.meta["step"]), int(message.meta["ask"])
        if session is None or session.stage != stage or session.clock != clock:
            return None
        return session if verb is None or verb.name == session.verb else None


def securing(handlers: Mapping[Verb, Handler], member: Member) -> dict[Verb, Handler]:
    """The handlers of a client that adds up securely. It gives no single answer to what adds up,
    nor to what can't be added up.
    """
    secured: dict[Verb, Handler] = {}
    for verb, handler in handlers.items():
        if verb.adds_up:
            four = exchanges(verb)
            secured |= {
                verb: _silent,
                four.keys: _careful(member.keys),
                four.shares: _careful(member.shares),
                four.masked: _careful(member.masked(verb, handler)),
                four.open: _careful(member.open),
            }
        else:
            secured[verb] = _silent if verb.single else handler
    return secured


def _careful(handler: Handler) -> Handler:
    """What is no request of this protocol is refused. (Requests of the right form alone: a fault
    of the training itself must be heard of.)
    """

    def handle(message: Message, client: Client, state: ClientState) -> Answer:
        numbers = ("step", "ask", "clients", "survivors", "threshold", "n", "length")
        carried = [f"{OF}/{name}" for name in ECHO] if "senders" in message.arrays else []
        whole = all(type(message.meta[name]) is int for name in numbers if name in message.meta)
        if not whole or any(name not in message.meta for name in carried):
            return _refuse(secure_verbs.TURN, state)
        return handler(message, client, state)

    return handle


def _silent(message: Message, client: Client, state: ClientState) -> Answer:
    return None, state


def inner(message: Message) -> Message:
    """The request that a masked one carries."""
    start = f"{OF}/"
    meta = {name.removeprefix(start): x for name, x in message.meta.items() if start in name}
    blobs = {name.removeprefix(start): x for name, x in message.blobs.items()}
    return Message(below(OF, message.arrays), meta, blobs)


def signed_text(context: bytes, client: ClientId, public: bytes) -> bytes:
    return b"lexfed secure keys\0" + context + client.to_bytes(8, "big") + public


def proof_of(context: bytes, owner: ClientId, holder: ClientId, share: bytes, kind: str) -> bytes:
    """What a share is checked against when it is given out. It tells nothing: a share is as long as
    a key, and by chance.
    """
    about = context + owner.to_bytes(8, "big") + holder.to_bytes(8, "big") + kind.encode()
    return blake2b(about + share, digest_size=secure_verbs.PROOF).digest()


def promise_of(context: bytes, owner: ClientId, own_mask: Seed) -> bytes:
    return proof_of(context, owner, owner, own_mask, "own mask")


def pair_mask(private: bytes, theirs: bytes, context: bytes) -> Seed | None:
    """s_uv: the seed of the mask that two have in common."""
    return keys.agree(private, theirs, b"mask" + context)


def _refuse(why: int, state: ClientState) -> Answer:
    return Message(meta={REFUSED: why}), state


def _as_announced(session: Session, request: Message, slots: ring.Layout) -> bool:
    clock = int(request.meta["step"]), int(request.meta["ask"])
    fits = (slots.length, slots.bits) == (session.terms["length"], session.terms["bits"])
    return fits and clock == session.clock


def _of_cohort(session: Session, request: Message) -> Message:
    """The request, with the number of clients that all have signed: whoever adds a share of noise
    must know how many shares there are, and does not take it from the server.
    """
    return replace(request, meta={**request.meta, COHORT: int(session.terms["clients"])})


def _dealt(
    session: Session, me: ClientId, public: Mapping[ClientId, bytes], threshold: int
) -> Message:
    """Shares of both secrets for every neighbour, sealed; and proofs of them."""
    holders = sorted(public)
    places = [holder + 1 for holder in holders]
    of_mask = shamir.split(session.own_mask, threshold, places)
    of_key = shamir.split(session.masking_key, threshold, places)
    sealed, proofs = [], []
    for holder, mask, key in zip(holders, of_mask, of_key, strict=True):
        seal = _sealing_key(session, public[holder], me, holder)
        sealed.append(
            keys.seal(seal, mask + key, session.context)
            if seal is not None
            else bytes(secure_verbs.SEALED)
        )
        proofs.append(
            proof_of(session.context, me, holder, mask, "own mask")
            + proof_of(session.context, me, holder, key, "key")
        )
    promise = promise_of(session.context, me, session.own_mask)
    return Message(
        {
            "sealed": stack(sealed),
            "proofs": stack(proofs),
            "promise": torch.frombuffer(bytearray(promise), dtype=torch.uint8),
        }
    )


def _sealing_key(session: Session, public: bytes, owner: ClientId, holder: ClientId) -> Seed | None:
    """Of what the owner sends the holder: each way has a key of its own."""
    way = b"seal" + owner.to_bytes(8, "big") + holder.to_bytes(8, "big")
    return keys.agree(session.sealing_key, public[: keys.KEY], way + session.context)


def _unsealed(
    session: Session, me: ClientId, sealed: Mapping[ClientId, bytes]
) -> dict[ClientId, bytes]:
    """The pair of shares that each sender sealed for this client; zeros: it can't be read."""
    pairs: dict[ClientId, bytes] = {}
    for sender, data in sealed.items():
        key = _sealing_key(session, session.keys[sender], sender, me)
        pair = keys.unseal(key, data, session.context) if key is not None else None
        pairs[sender] = UNREAD if pair is None or len(pair) != len(UNREAD) else pair
    return pairs


def _pair_seeds(
    session: Session, me: ClientId, senders: list[ClientId]
) -> dict[ClientId, Seed] | None:
    """The seed that this client has in common with each other one; None: one sent no real key."""
    seeds: dict[ClientId, Seed] = {}
    for peer in senders:
        if peer != me:
            theirs = session.keys[peer][keys.KEY :]
            seed = pair_mask(session.masking_key, theirs, session.context)
            if seed is None:
                return None
            seeds[peer] = seed
    return seeds


def _hidden(vector: Ring, own_mask: Seed, me: ClientId, seeds: Mapping[ClientId, Seed]) -> Ring:
    """y_u = x_u + PRG(b_u) + sum of the pairs' masks, whose signs differ on the two sides."""
    bits = 64 if vector.dtype == np.uint64 else 32
    hidden: Ring = vector + keys.expand(own_mask, len(vector), bits)
    for peer, seed in seeds.items():
        add_pair(hidden, keys.expand(seed, len(vector), bits), me, peer)
    return hidden


def add_pair(vector: Ring, mask: Ring, me: ClientId, peer: ClientId) -> None:
    """The mask of a pair, in place: one of the two adds it, the other takes it off."""
    if me < peer:
        vector += mask
    else:
        vector -= mask


def _ids(array: Tensor) -> list[ClientId]:
    return [int(client) for client in array.tolist()]


def _rows(array: Tensor) -> list[bytes]:
    return [bytes(row) for row in array.numpy()]


def stack(rows: list[bytes]) -> Tensor:
    """Byte strings of one length as an array."""
    joined = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1)
    return torch.from_numpy(joined.copy())
