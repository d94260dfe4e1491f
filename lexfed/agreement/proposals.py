"""Proposals as they travel: words or their hashes, each with its number. No reply makes reading it
fail.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lexfed.agreement.evidence import PRIME, Point
from lexfed.agreement.word_list import HASH
from lexfed.wire import Array, Form, Message, Verb, well_formed
from lexfed.wire.verbs import CLOCK

NONCE = "nonce"  # of an agreement: its hashes are made with it
MOST = 1 << 40  # occurrences of a word: more is no count, and would not add up

# proposals as keyed hashes (what was released so far is left out), or in the clear; then the words
# of chosen hashes
_NAMES = Array((torch.uint8,), ("names", HASH))
_NUMBERS = {
    "counts": Array((torch.int64,), ("names",), low=1, high=MOST),
    "weights": Array((torch.float64,), ("names",), low=0, high=MOST),
}
# evidence that others proposed a hash too: an organisation's value of it, and where (`evidence`)
_SHARES = {
    "place": Array((torch.int64,), (), low=1, high=PRIME),
    "shares": Array((torch.int64,), ("names",), low=0, high=PRIME),
}
PROPOSE = Verb(
    "propose",
    down=Form({"released": _NAMES}, CLOCK, (NONCE,)),
    up=Form({"hashes": _NAMES, **_NUMBERS, **_SHARES}),
    kind="list",
)
DISCLOSE = Verb(
    "disclose",
    down=Form(meta=CLOCK, blobs=("released",)),
    up=Form(_NUMBERS, blobs=("words",)),
    kind="list",
)
SPELL = Verb(
    "spell",
    down=Form(
        {"hashes": _NAMES, "evidence": Array((torch.int64,), ("names", "candidates"))},
        CLOCK,
        (NONCE,),
    ),
    up=Form(blobs=("words",)),
    kind="list",
)


@dataclass(frozen=True, eq=False)
class Proposal:
    """What one organisation proposes."""

    numbers: Mapping[bytes, float]  # a word or its hash -> count or weight; 0 where none is sent
    shares: Tensor | None = None  # (n,) in the same order
    place: int = 0

    def points(self) -> Iterator[tuple[bytes, Point]]:
        if self.shares is not None:
            for name, value in zip(self.numbers, self.shares.tolist(), strict=True):
                yield name, (self.place, value)

    def cut(self, most: int) -> "Proposal":
        """Its most frequent words alone."""
        ranked = heapq.nsmallest(most, self.numbers.items(), key=lambda item: (-item[1], item[0]))
        kept = {name for name, _ in ranked}
        numbers = {name: number for name, number in self.numbers.items() if name in kept}
        mask = torch.tensor([name in kept for name in self.numbers], dtype=torch.bool)
        return Proposal(numbers, None if self.shares is None else self.shares[mask], self.place)


def rows(hashes: Iterable[bytes], width: int = HASH) -> Tensor:
    data = b"".join(hashes)  # (n, width)
    return (
        torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(-1, width)
        if data
        else torch.empty(0, width).byte()
    )


def hashes(rows: Tensor) -> list[bytes]:
    data, width = rows.contiguous().numpy().tobytes(), rows.shape[1]
    return [data[start : start + width] for start in range(0, len(data), width)]


def listed(blob: bytes) -> list[bytes]:
    return blob.split(b"\n") if blob else []


def read(
    verb: Verb, message: Message, reply: Message, expected: frozenset[str], longest: int
) -> Proposal | None:
    """What a reply proposes; None if it is not a list of distinct names with all that is expected
    of each.
    """
    if not well_formed(verb, message, reply) or set(reply.arrays) - {"hashes"} != expected:
        return None
    names = _hashed(reply) if verb is PROPOSE else _words(reply, longest)
    if names is None or len(set(names)) != len(names):
        return None
    if any(len(v) != len(names) for name, v in reply.arrays.items() if name != "place"):
        return None
    numbers = _numbers(reply, names)
    if numbers is None or "shares" not in expected:
        return None if numbers is None else Proposal(numbers)
    place, shares = int(reply.arrays["place"]), reply.arrays["shares"]
    if not 0 < place < PRIME or not bool(((shares >= 0) & (shares < PRIME)).all()):
        return None
    return Proposal(numbers, shares, place)


def _numbers(reply: Message, names: Sequence[bytes]) -> dict[bytes, float] | None:
    values = reply.arrays.get("counts", reply.arrays.get("weights"))
    if values is None:
        return dict.fromkeys(names, 0)
    if not bool((torch.isfinite(values) & (values > 0) & (values <= MOST)).all()):
        return None
    return dict(zip(names, values.tolist(), strict=True))


def _hashed(reply: Message) -> list[bytes] | None:
    sent = reply.arrays.get("hashes")
    return (
        None if sent is None or sent.dtype != torch.uint8 or sent.shape[1] != HASH else hashes(sent)
    )


def _words(reply: Message, longest: int) -> list[bytes] | None:
    words = listed(reply.blobs.get("words", b""))
    return words if all(is_word(word, longest) for word in words) else None


def is_word(name: bytes, longest: int) -> bool:
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
        if is_word(word, longest)
    }
