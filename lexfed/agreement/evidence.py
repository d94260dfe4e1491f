"""Evidence that k organisations proposed a hash: shares of a secret (Shamir, 1979), as in STAR
(Davidson et al., 2022).

    of a hash h          f(x) = a_0 + a_1 x + ... + a_(k-1) x^(k-1)  mod p,
                         its coefficients made of h and the organisations' key
    organisation         sends f(x) for an x of its own, beside h
    server               has a_0 from k of these values, and shows it to whom it asks to spell h
    organisation         makes a_0 anew, and spells h if it is the one that was shown

Who lacks the key learns nothing of a_0 from fewer than k values. The x is an organisation's own
choice, so a server can't have two values from one; a_0 does not say whose values it was made of.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from math import prod

from lexfed.core.seeds import Seed, derive

PRIME = (1 << 61) - 1  # a value fits into an int64
Point = tuple[int, int]  # x, f(x)


def place(secret: Seed, nonce: bytes) -> int:
    """The x of an organisation in this agreement."""
    return 1 + int.from_bytes(derive(secret, "place", nonce.hex()), "big") % (PRIME - 1)


def share(name: bytes, key: Seed, k: int, x: int) -> int:
    value = 0
    for power in reversed(range(k)):
        value = (value * x + _coefficient(name, key, power)) % PRIME
    return value


def proof(name: bytes, key: Seed) -> int:
    return _coefficient(name, key, 0)


def _coefficient(name: bytes, key: Seed, power: int) -> int:
    salt = power.to_bytes(blake2b.SALT_SIZE, "big")
    return int.from_bytes(blake2b(name, key=key, salt=salt, digest_size=16).digest(), "big") % PRIME


def candidates(points: Sequence[Point], k: int) -> list[int]:
    """What a_0 may be: from k neighbours at a time, going round. Honest values give one number.

    The server can't tell which of several is right; who is asked to spell can.
    """
    tried = min(len(points), groups(k)) if len(points) > k else len(points) // k
    found = []
    for start in range(tried):
        group = [points[(start + i) % len(points)] for i in range(k)]
        if len({x for x, _ in group}) == k:
            found.append(_at_zero(group))
    return list(dict.fromkeys(found))


def groups(k: int) -> int:
    """One that lies spoils the k groups it stands in: with so many, two may lie where holders are
    many.
    """
    return 2 * k + 1


def _at_zero(points: Sequence[Point]) -> int:
    weights = _weights(tuple(x for x, _ in points))
    return sum(weight * y for weight, (_, y) in zip(weights, points, strict=True)) % PRIME


@lru_cache(maxsize=1 << 12)
def _weights(xs: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's, at zero."""

    def of(x: int) -> int:
        others = [other for other in xs if other != x]
        below = prod(other - x for other in others) % PRIME
        return prod(others) * pow(below, -1, PRIME) % PRIME

    return tuple(map(of, xs))
