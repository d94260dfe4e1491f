"""Words that k organisations must hold before anybody can read them: STAR (Davidson et al., CCS
2022), among organisations that have a key which the server lacks.

    of a word w       s = scrypt(w, key)             a guess takes time and memory
                      tag = H(s)
                      f(x) = s + a_1 x + ... + a_(k-1) x^(k-1)  mod p,   a_j = H(s, j)
    organisation i    sends the tag, f(i + 1), and w with its count, sealed under H(s, i + 1)
    server            has s = f(0) from k shares of a tag, and opens what its holders sealed

All of it follows from s, so with s every share can be checked: one that is wrong keeps nobody's
word back, and the secret of a wrong share has another tag (Bellare, Dai and Rogaway, "Reimagining
secret sharing", PETS 2020). Rows of no word at all are made by chance, and can't be told from the
others: how many words somebody holds is known to the next power of two.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import combinations, islice
from typing import NamedTuple

from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from lexfed.agreement.word_list import HASH
from lexfed.core.seeds import Seed, derive, keystream
from lexfed.secure import keys, shamir

SPELLING = 64  # bytes of a word: all are sealed alike, and what is longer is not proposed
_COUNT = 6
SEALED = 1 + SPELLING + _COUNT + keys.TAG
SMALLEST = 1024  # rows: who holds fewer words sends so many
TRIES = 1000  # groups of k shares, before a tag is given up
_WIDE = 64  # bytes of a number that is then taken mod p: as good as by chance


class Row(NamedTuple):
    """A word as it travels."""

    tag: bytes
    share: bytes
    sealed: bytes


class Spelt(NamedTuple):
    """A word as one holder tells it."""

    word: bytes
    number: int  # of its occurrences


Rows = Mapping[int, Row]  # of one tag, by the place of who sent it


# --- an organisation's half -----------------------------------------------------------------------


@lru_cache(maxsize=1 << 17)  # organisations on one machine hold many of the same words
def secret_of(word: str, key: Seed, memory: int) -> Seed:
    """s. `key` is the organisations', of this agreement; `memory` in kilobytes."""
    slow = Scrypt(salt=key, length=32, n=memory, r=8, p=1).derive(word.encode())
    return blake2b(slow, key=key, digest_size=32).digest()


def row(word: str, count: int, secret: Seed, k: int, place: int) -> Row:
    spelling = word.encode()
    told = bytes([len(spelling)]) + spelling.ljust(SPELLING, b"\0") + count.to_bytes(_COUNT, "big")
    tag = tag_of(secret)
    return Row(tag, _share(secret, k, place), keys.seal(_seal(secret, place), told, tag))


def fits(word: str) -> bool:
    return len(word.encode()) <= SPELLING


def padding(secret: Seed, number: int) -> Iterator[Row]:
    """Rows of no word. The same again from the same secret."""
    width = HASH + _WIDE + SEALED
    stream = keystream(secret, number * width)
    for start in range(0, len(stream), width):
        one = stream[start : start + width]
        share = int.from_bytes(one[HASH : HASH + _WIDE], "big") % shamir.PRIME
        yield Row(one[:HASH], share.to_bytes(shamir.BYTES, "big"), one[HASH + _WIDE :])


def bucket(words: int) -> int:
    """What is told of how many words an organisation holds."""
    return max(SMALLEST, 1 << max(0, words - 1).bit_length())


def tag_of(secret: Seed) -> bytes:
    return derive(secret, "tag")[:HASH]


def _share(secret: Seed, k: int, place: int) -> bytes:
    return shamir.at(_coefficients(secret, k), place)


def _coefficients(secret: Seed, k: int) -> list[int]:
    stream = keystream(derive(secret, "coefficients"), (k - 1) * _WIDE)
    numbers = (stream[start : start + _WIDE] for start in range(0, len(stream), _WIDE))
    return [int.from_bytes(one, "big") % shamir.PRIME for one in (secret, *numbers)]


def _seal(secret: Seed, place: int) -> Seed:
    """Each holder has a key of its own: they seal different counts of one word."""
    return derive(secret, "sealed", place)


# --- the server's half ----------------------------------------------------------------------------


def opened(rows: Rows, k: int, wrong: Counter[int]) -> dict[int, Spelt]:
    """What its holders say of a tag, by their places; nothing where fewer than k shares fit.

    Who sent a share or a seal that does not fit is left out, and counted in `wrong`.
    """
    secret = _secret_behind(rows, k, wrong) if len(rows) >= k else None
    if secret is None:
        return {}
    found: dict[int, Spelt] = {}
    coefficients = _coefficients(secret, k)
    for place, one in rows.items():
        spelt = None
        if one.share == shamir.at(coefficients, place):
            told = keys.unseal(_seal(secret, place), one.sealed, one.tag)
            spelt = _spelt(told) if told is not None else None
        if spelt is None:
            wrong[place] += 1
        else:
            found[place] = spelt
    return found


def _secret_behind(rows: Rows, k: int, wrong: Mapping[int, int]) -> Seed | None:
    """From k shares whose secret has this tag; first of those that were right so far."""
    places = sorted(rows, key=lambda place: (wrong[place], place))
    tag = rows[places[0]].tag
    for group in _groups(places, k):
        secret = shamir.join({place: rows[place].share for place in group})
        if secret is not None and tag_of(secret) == tag:
            return secret
    return None


def _groups(places: Sequence[int], k: int) -> Iterator[tuple[int, ...]]:
    """Neighbours, going round: one that lies is in k of them at most. Then any others."""
    n = len(places)
    for start in range(n if n > k else 1):
        yield tuple(places[(start + i) % n] for i in range(k))
    yield from islice(combinations(places, k), TRIES)


def _spelt(told: bytes) -> Spelt | None:
    length, count = told[0], int.from_bytes(told[1 + SPELLING :], "big")
    word, rest = told[1 : 1 + length], told[1 + length : 1 + SPELLING]
    return Spelt(word, count) if length <= SPELLING and not any(rest) else None
