"""Shamir's secret sharing: t of n shares are the secret, t - 1 of them are nothing.

share v:   f(v),  f(x) = secret + a_1 x + ... + a_(t-1) x^(t-1)  mod p,  a_i by chance
secret:    f(0) = sum_v f(v) prod_(w != v) w / (w - v)           over any t shares
"""

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

PRIME = 2**257 - 93  # every secret of 32 bytes is below it
BYTES = 33  # of a share
SECRET_BYTES = 32


def split(secret: bytes, threshold: int, places: Sequence[int]) -> list[bytes]:
    """A share for each place. Places are distinct, and above 0: the secret itself is at 0."""
    if len(secret) != SECRET_BYTES or not 0 < threshold <= len(places):
        raise ValueError("a secret has 32 bytes, and there are at least `threshold` places")
    if min(places) < 1 or len(set(places)) < len(places):
        raise ValueError("places are distinct, and above 0")
    chance = (secrets.randbelow(PRIME) for _ in range(threshold - 1))
    coefficients = [int.from_bytes(secret, "big"), *chance]
    return [at(coefficients, place) for place in places]


def join(shares: Mapping[int, bytes]) -> bytes | None:
    """The secret behind these shares, by their places; None: they are no shares of one."""
    numbers = {place: int.from_bytes(share, "big") for place, share in shares.items()}
    weights = _weights(tuple(sorted(numbers)))
    secret = sum(numbers[place] * weight for place, weight in weights.items()) % PRIME
    return secret.to_bytes(BYTES, "big")[1:] if secret < 2 ** (8 * SECRET_BYTES) else None


def at(coefficients: Sequence[int], place: int) -> bytes:
    """The share of a place; the first coefficient is the secret."""
    value = 0
    for coefficient in reversed(coefficients):  # Horner's scheme
        value = (value * place + coefficient) % PRIME
    return value.to_bytes(BYTES, "big")


@lru_cache(maxsize=1 << 12)  # the same survivors hold shares of many secrets
def _weights(places: tuple[int, ...]) -> Mapping[int, int]:
    """What each share counts for at 0."""
    above = 1
    for place in places:
        above = above * place % PRIME
    weights: dict[int, int] = {}
    for place in places:
        below = place
        for other in places:
            if other != place:
                below = below * (other - place) % PRIME
        weights[place] = above * pow(below, -1, PRIME) % PRIME
    return weights
