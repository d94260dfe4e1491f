"""Letters: a message between a server and an organisation, signed by who wrote it.

    head   signature (64 bytes), then JSON: what kind of letter, of which federation, to or from
           which client, the nonce of the request, a digest of the body
    body   bytes: a message, or the terms of a federation

Who carries a letter (the relay, a SuperNode, a SuperLink) can lose or repeat it, and no more. A
reply names the request that it answers. Nothing here runs code: JSON and digests.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal

from lexfed.core.errors import WireError
from lexfed.core.seeds import Seed
from lexfed.secure import keys

# hello: the terms of a federation; ask: a request of a verb
# reply: its answer; silence: the client keeps its answer for itself; refusal: it does not take part
Kind = Literal["hello", "ask", "reply", "silence", "refusal"]
REQUESTS, ANSWERS = ("hello", "ask"), ("reply", "silence", "refusal")
LONGEST_HEAD = 1 << 16
LONGEST_REASON = 300  # characters
ANYBODY = 2**32 - 1  # a hello is for whoever reads it: the answer says who that is


class LetterError(WireError):
    """A letter that is not what it says, or not from who it says."""


@dataclass(frozen=True)
class Letter:
    kind: Kind
    federation: str  # 32 hexadecimal digits: the same after a restart
    client: int
    nonce: str  # of the request: another for every attempt of the server
    version: str = ""  # of lexfed, at the server
    terms: str = ""  # the digest of the federation's terms
    verb: str = ""
    request: str = ""  # of an answer: the digest of the request's head
    reason: str = ""  # of a refusal, in words
    body: bytes = b""

    @property
    def written(self) -> bytes:
        """What is signed."""
        fields = {name: value for name, value in vars(self).items() if name != "body"}
        text = json.dumps({**fields, "body": digest(self.body)}, sort_keys=True)
        return text.encode()

    @property
    def digest(self) -> str:
        """Of a request: two that have the same are one."""
        return digest(self.written)


@lru_cache(maxsize=4)  # a broadcast is one body for everybody
def digest(data: bytes) -> str:
    return blake2b(data, digest_size=32).hexdigest()


def sealed(letter: Letter, identity: Seed) -> tuple[bytes, bytes]:
    """Head and body, as they travel."""
    written = letter.written
    return keys.sign(identity, b"lexfed letter\0" + written) + written, letter.body


def opened(head: bytes, body: bytes, known: Callable[[Letter], bytes | None]) -> Letter:
    """The letter, if it is whole, and from who should have written it: `known` says by what key
    that one is known.
    """
    letter, claimed = signed_head(head, known)
    if claimed != digest.__wrapped__(body):  # what nobody has signed is not remembered
        raise LetterError("the body was changed on its way, or cut off")
    letter = replace(letter, body=body)
    if letter.written != head[keys.SIGNATURE :]:
        raise LetterError("a head of no letter")
    return letter


def signed_head(head: bytes, known: Callable[[Letter], bytes | None]) -> tuple[Letter, str]:
    """The letter without its body, and the digest that its body must have."""
    if not keys.SIGNATURE < len(head) <= LONGEST_HEAD:
        raise LetterError("a head of no letter")
    signature, written = head[: keys.SIGNATURE], head[keys.SIGNATURE :]
    try:
        fields = json.loads(written)
        claimed = fields.pop("body")
        letter = Letter(**fields, body=b"")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise LetterError("a head of no letter") from error
    if not _is_sound(vars(letter)) or not isinstance(claimed, str):
        raise LetterError("a head of no letter")
    key = known(letter)
    if key is None or not keys.signed(key, signature, b"lexfed letter\0" + written):
        raise LetterError("not signed by who should have written it")
    return letter, claimed


def _is_sound(fields: Mapping[str, Any]) -> bool:
    words = [value for name, value in fields.items() if name not in ("client", "body")]
    return (
        all(isinstance(word, str) and len(word) <= 1000 for word in words)
        and type(fields["client"]) is int
        and fields["client"] >= 0
        and fields["kind"] in (*REQUESTS, *ANSWERS)
        and _is_hexadecimal(fields["federation"], 32)
        and _is_hexadecimal(fields["nonce"], 32)
    )


def _is_hexadecimal(word: str, digits: int) -> bool:
    return len(word) == digits and all(c in "0123456789abcdef" for c in word)


def answer(request: Letter, kind: Kind, me: int, body: bytes = b"", reason: str = "") -> Letter:
    """An answer of client `me` to this request."""
    return Letter(
        kind, request.federation, me, request.nonce, verb=request.verb,
        request=request.digest, reason=reason[:LONGEST_REASON], body=body,
    )  # fmt: skip


def answers(letter: Letter, request: Letter) -> bool:
    """Whether a letter is an answer to this very request."""
    names = ("federation", "nonce", "verb", *(() if request.client == ANYBODY else ("client",)))
    same = all(getattr(letter, name) == getattr(request, name) for name in names)
    return letter.kind in ANSWERS and same and letter.request == request.digest
