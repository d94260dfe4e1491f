"""Proposals as they travel: words or their hashes, each with its number. No reply makes reading it
fail.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from lexfed.agreement.word_list import HASH
from lexfed.wire import Array, Form, Message, Verb, well_formed
from lexfed.wire.verbs import CLOCK

# proposals as keyed hashes (what was released so far is left out), or in the clear; then the words
# of chosen hashes
_NAMES = Array((torch.uint8,), ("names", HASH))
_NUMBERS = {
    "counts": Array((torch.int64,), ("names",)),
    "weights": Array((torch.float64,), ("names",)),
}
PROPOSE = Verb(
    "propose",
    down=Form({"released": _NAMES}, CLOCK),
    up=Form({"hashes": _NAMES, **_NUMBERS}),
    kind="list",
)
DISCLOSE = Verb(
    "disclose",
    down=Form(meta=CLOCK, blobs=("released",)),
    up=Form(_NUMBERS, blobs=("words",)),
    kind="list",
)
SPELL = Verb("spell", down=Form({"hashes": _NAMES}, CLOCK), up=Form(blobs=("words",)), kind="list")

Proposal = Mapping[bytes, float]  # a word or its hash -> count or weight; 0 where none is sent


def rows(hashes: Iterable[bytes]) -> Tensor:
    data = b"".join(hashes)  # (n, HASH)
    return (
        torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(-1, HASH)
        if data
        else torch.empty(0, HASH).byte()
    )


def hashes(rows: Tensor) -> list[bytes]:
    data = rows.contiguous().numpy().tobytes()
    return [data[start : start + HASH] for start in range(0, len(data), HASH)]


def listed(blob: bytes) -> list[bytes]:
    return blob.split(b"\n") if blob else []


def read(
    verb: Verb, message: Message, reply: Message, numbers: str | None, longest: int
) -> Proposal | None:
    """What a reply proposes; None if it is not a list of distinct names with a good number each."""
    if not well_formed(verb, message, reply) or set(reply.arrays) - {"hashes"} != {numbers} - {
        None
    }:
        return None
    names = _hashed(reply) if verb is PROPOSE else _words(reply, longest)
    if names is None or len(set(names)) != len(names):
        return None
    if numbers is None:
        return dict.fromkeys(names, 0)
    values = reply.arrays[numbers]
    if len(values) != len(names) or not bool((torch.isfinite(values) & (values > 0)).all()):
        return None
    return dict(zip(names, values.tolist(), strict=True))


def _hashed(reply: Message) -> list[bytes] | None:
    sent = reply.arrays.get("hashes")
    return (
        None if sent is None or sent.dtype != torch.uint8 or sent.shape[1] != HASH else hashes(sent)
    )


def _words(reply: Message, longest: int) -> list[bytes] | None:
    words = listed(reply.blobs.get("words", b""))
    return words if all(_is_word(word, longest) for word in words) else None


def _is_word(name: bytes, longest: int) -> bool:
    try:
        word = name.decode()
    except UnicodeDecodeError:
        return False
    return word.split() == [word] and len(word) <= longest


def spelling(
    message: Message, reply: Message, asked: Sequence[bytes], longest: int
) -> dict[bytes, str]:
    """The words of a reply to `spell`, one for each hash asked; what is not a word is left out."""
    words = reply.blobs.get("words", b"").split(b"\n")
    if not well_formed(SPELL, message, reply) or len(words) != len(asked):
        return {}
    return {
        name: word.decode()
        for name, word in zip(asked, words, strict=True)
        if _is_word(word, longest)
    }
