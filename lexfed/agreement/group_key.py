"""A key that the organisations have and the server lacks, of one agreement.

    introduce   each makes a key pair for this nonce and sends the public half, signed; and about
                how many words it would propose
    deal        each draws a key for all, seals it for every other whose signature is good, and
                says its proof, H(key)
    accept      each says whose keys it can read: sealed for it, and of that proof
    server      takes the key of the dealer that is least complained of; who can't read it is out

The server carries sealed keys, and can't make one of its own: public identities are pinned. One
organisation that lies can deal a key of its own choice: it has the key anyway. It can't part the
others by dealing them different keys, for a proof is told to all; nor by complaining: who complains
of many counts for little.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from lexfed.agreement.proposals import NONCE, hashes, rows
from lexfed.core.seeds import Seed, derive
from lexfed.corpus.population import Client
from lexfed.federation import Federation, Requests
from lexfed.secure import keys
from lexfed.wire import Array, ClientId, Form, Message, Verb, well_formed
from lexfed.wire.verbs import ANY, CLOCK

_BYTES = (torch.uint8,)
PROOF = 32
DEALT = keys.KEY + keys.TAG
MANY = 1 << 31  # words: nobody has more

INTRODUCE = Verb(
    "introduce",
    down=Form(meta=CLOCK, blobs=(NONCE,)),
    up=Form(
        {"key": Array(_BYTES, (keys.KEY,)), "signature": Array(_BYTES, (keys.SIGNATURE,))},
        {"words": Array(low=1, high=MANY)},
        needs=(("key", "signature", "words"),),
    ),
    kind="list",
    apart=True,
)
DEAL = Verb(
    "deal",
    down=Form({"members": ANY, "keys": ANY, "signatures": ANY}, (*CLOCK, "n"), (NONCE,)),
    up=Form(
        {"sealed": Array(_BYTES, ("n", DEALT)), "proof": Array(_BYTES, (PROOF,))},
        needs=(("sealed", "proof"),),
    ),
    kind="list",
    apart=True,
)
# what one is dealt: the dealers with their keys, and what each sealed for it
DEALS = {"dealers": ANY, "keys": ANY, "signatures": ANY, "sealed": ANY, "proofs": ANY}
ACCEPT = Verb(
    "accept",
    down=Form(DEALS, (*CLOCK, "n"), (NONCE,)),
    up=Form({"read": Array((torch.bool,), ("n",))}, needs=(("read",),)),
    kind="list",
    apart=True,
)


# --- an organisation's half -----------------------------------------------------------------------


def introduction(client: Client, nonce: bytes, words: int) -> Message:
    public = keys.public(_private(client, nonce))
    signature = keys.sign(client.identity, _signed_text(nonce, client.id, public))
    return Message({"key": _flat(public), "signature": _flat(signature)}, {"words": words})


def dealt(message: Message, client: Client, nonce: bytes) -> Message:
    """A key for all of them. Nothing can be read by one whose own key is not signed."""
    group = derive(client.secret, "group key", nonce.hex())
    sealed = []
    for member, public, signature in _met(message, "members"):
        pair = None
        if _introduced(client, nonce, member, public, signature):
            pair = _pair(client, nonce, public, client.id, member)
        sealed.append(bytes(DEALT) if pair is None else keys.seal(pair, group, nonce))
    return Message({"sealed": rows(sealed, DEALT), "proof": _flat(_proof(group))})


def read_deals(message: Message, client: Client, nonce: bytes) -> list[Seed | None]:
    """The key that each dealer dealt; None: it can't be read, or is none that all were dealt."""
    boxes = zip(hashes(message.arrays["sealed"]), hashes(message.arrays["proofs"]), strict=True)
    found: list[Seed | None] = []
    for (dealer, public, signature), (sealed, proof) in zip(
        _met(message, "dealers"), boxes, strict=True
    ):
        group = None
        if _introduced(client, nonce, dealer, public, signature):
            pair = _pair(client, nonce, public, dealer, client.id)
            group = None if pair is None else keys.unseal(pair, sealed, nonce)
        found.append(group if group is not None and _proof(group) == proof else None)
    return found


def _met(message: Message, who: str) -> Iterator[tuple[ClientId, bytes, bytes]]:
    """Who is told of, with its public key and its signature."""
    members = [int(member) for member in message.arrays[who].tolist()]
    arrays = (hashes(message.arrays[name]) for name in ("keys", "signatures"))
    return zip(members, *arrays, strict=True)


def _introduced(
    client: Client, nonce: bytes, other: ClientId, public: bytes, signature: bytes
) -> bool:
    identity = client.pinned(other)
    text = _signed_text(nonce, other, public)
    return identity is not None and keys.signed(identity, signature, text)


def _private(client: Client, nonce: bytes) -> Seed:
    """Of this nonce alone; the same again, if the server asks again."""
    return derive(client.secret, "agreement", nonce.hex())


def _pair(
    client: Client, nonce: bytes, public: bytes, dealer: ClientId, member: ClientId
) -> Seed | None:
    way = b"group key" + nonce + dealer.to_bytes(8, "big") + member.to_bytes(8, "big")
    return keys.agree(_private(client, nonce), public, way)


def _signed_text(nonce: bytes, client: ClientId, public: bytes) -> bytes:
    return b"lexfed agreement\0" + nonce + client.to_bytes(8, "big") + public


def _proof(group: Seed) -> bytes:
    return derive(group, "proof")


def _flat(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


# --- the server's half ----------------------------------------------------------------------------


@dataclass
class Hearing:
    """Asks, and counts the replies that are of no use."""

    federation: Federation
    malformed: int = 0

    def ask(self, verb: Verb, requests: Requests) -> dict[ClientId, Message]:
        heard = {}
        for client, reply in self.federation.ask(verb, requests):
            if well_formed(verb, requests[client], reply):
                heard[client] = reply
            else:
                self.malformed += 1
        return heard


@dataclass(frozen=True)
class Group:
    """Organisations that have a key in common."""

    words: Mapping[ClientId, int]  # about how many each would propose
    requests: Requests  # to each, the key as it was sealed for it


def gathered(hearing: Hearing, asks: Sequence[Message]) -> Group:
    """The organisations that could read one key; `asks` are the clocks of four exchanges."""
    met = hearing.ask(INTRODUCE, dict.fromkeys(hearing.federation.clients, asks[0]))
    if not met:
        return Group({}, {})
    members = list(met)
    arrays = {"members": torch.tensor(members), **_keys_of(met, members)}
    request = _with(asks[1], arrays, len(members))
    deals = hearing.ask(DEAL, dict.fromkeys(members, request))
    boxes = {  # by dealer and member
        dealer: dict(zip(members, hashes(deal.arrays["sealed"]), strict=True))
        for dealer, deal in deals.items()
    }

    def deal_for(member: ClientId, ask: Message, dealers: Sequence[ClientId]) -> Message:
        arrays = {
            "dealers": torch.tensor(dealers),
            "sealed": rows((boxes[dealer][member] for dealer in dealers), DEALT),
            "proofs": torch.stack([deals[dealer].arrays["proof"] for dealer in dealers]),
        }
        return _with(ask, {**arrays, **_keys_of(met, dealers)}, len(dealers))

    if not deals:
        return Group({}, {})
    said = hearing.ask(ACCEPT, {m: deal_for(m, asks[2], list(deals)) for m in members})
    read = {
        m: dict(zip(deals, reply.arrays["read"].tolist(), strict=True)) for m, reply in said.items()
    }
    dealer = least_complained_of(read, deals)
    able = [member for member, by in read.items() if by[dealer]]
    return Group(
        {member: int(met[member].meta["words"]) for member in able},
        {member: deal_for(member, asks[3], [dealer]) for member in able},
    )


def least_complained_of(
    read: Mapping[ClientId, Mapping[ClientId, bool]], dealers: Iterable[ClientId]
) -> ClientId:
    """A complaint weighs the less, the more dealers its author complains of: all are honest but a
    few.
    """
    weight = {member: 1 / max(1, sum(not ok for ok in by.values())) for member, by in read.items()}

    def blame(dealer: ClientId) -> tuple[float, ClientId]:
        return sum(weight[member] for member, by in read.items() if not by[dealer]), dealer

    return min(dealers, key=blame)


def _keys_of(met: Mapping[ClientId, Message], who: Sequence[ClientId]) -> dict[str, torch.Tensor]:
    return {
        "keys": torch.stack([met[member].arrays["key"] for member in who]),
        "signatures": torch.stack([met[member].arrays["signature"] for member in who]),
    }


def _with(ask: Message, arrays: Mapping[str, torch.Tensor], n: int) -> Message:
    return replace(ask, arrays=dict(arrays), meta={**ask.meta, "n": n})
