"""What crosses the wire for a secure sum (Bonawitz et al., CCS 2017, Figure 4): four exchanges.

    keys      up: two public keys, signed                        [Round 0: AdvertiseKeys]
    shares    down: the neighbours' keys; up: sealed shares       [Round 1: ShareKeys]
    masked    down: the request itself, the shares for this       [Round 2: MaskedInputCollection]
              client; up: the reply under masks
    open      down: who stayed; up: one share of each neighbour   [Round 4: Unmasking]

Their Round 3 (clients sign who stayed) guards against a server that lies to some of them. This one
is honest but curious, so it is left out.
"""

from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch

from lexfed.secure import keys, shamir
from lexfed.wire.verbs import ANY, CLOCK, Array, Blob, Form, Verb

# What a client says instead of an answer, by its number: the record counts them.
REFUSALS = (
    "an exchange out of its turn",
    "this sum was opened already",
    "too few clients for a secure sum",
    "a key that its owner did not sign",
    "another request than the one that was announced",
    "other terms than the client's own",
)
TURN, OPENED, TOO_FEW, UNSIGNED, OTHER, TERMS_DIFFER = range(len(REFUSALS))
REFUSED = "refused"

OF = "of"  # the names of the request itself stand under this one

_BYTES = (torch.uint8,)
_WIDE = 2.0**63
SHARE_PAIR = 2 * shamir.BYTES
SEALED = SHARE_PAIR + keys.TAG
PROOF = 32  # bytes of a digest

# what everybody in the sum must have been told alike
TERMS = ("verb", "clients", "survivors", "threshold", "length", "bits", "range")

_NO = {REFUSED: Array(low=0, high=len(REFUSALS) - 1)}


def _exchange(
    verb: Verb,
    name: str,
    down: Form,
    arrays: dict[str, Array],
    blobs: dict[str, Blob] | None = None,
    meta: dict[str, Array] | None = None,
) -> Verb:
    """A client answers, or says why not. Of figures, nothing goes wrong by chance."""
    whole = (*arrays, *(blobs or {}))
    up = Form(arrays, {**_NO, **(meta or {})}, blobs or {}, needs=(whole, (REFUSED,)))
    made = Verb(f"{verb.name}-{name}", down, up, "list", charged=True, phase=True, apart=True)
    return replace(made, kind="figures") if verb.kind == "figures" else made


class Exchanges(NamedTuple):
    keys: Verb
    shares: Verb
    masked: Verb
    open: Verb


@cache
def exchanges(verb: Verb) -> Exchanges:
    """Those that make a sum of this verb's replies."""
    carried = Form(
        {"senders": ANY, "sealed": ANY, f"{OF}/": ANY},
        (*CLOCK, "n", "length", *(f"{OF}/{name}" for name in verb.down.meta)),
        tuple(f"{OF}/{name}" for name in verb.down.blobs),
    )
    whole = Array((torch.int64, torch.int32), ("length",), low=-_WIDE, high=_WIDE)
    masked = _exchange(
        verb, "masked", carried, {"masked": whole},
        meta={"unread": Array(low=0)},  # sealed shares that could not be opened
    )  # fmt: skip
    return Exchanges(
        keys=_exchange(
            verb,
            "keys",
            down=Form(meta=(*CLOCK, *TERMS), blobs=("request",)),
            arrays={},
            blobs={"keys": Blob(longest=2 * keys.KEY), "signature": Blob(longest=keys.SIGNATURE)},
        ),
        shares=_exchange(
            verb,
            "shares",
            down=Form({"holders": ANY, "keys": ANY, "signatures": ANY}, (*CLOCK, "n")),
            arrays={
                "sealed": Array(_BYTES, ("n", SEALED)),
                "proofs": Array(_BYTES, ("n", 2 * PROOF)),  # of each pair of shares
                "promise": Array(_BYTES, (PROOF,)),  # of the own mask
            },
        ),
        masked=replace(masked, open=verb.open, prepares=verb.prepares),
        open=_exchange(
            verb,
            "open",
            down=Form({"stayed": ANY}, (*CLOCK, "n")),
            arrays={"shares": Array(_BYTES, ("n", shamir.BYTES))},
        ),
    )
