"""Derived randomness: every draw in a run comes from a party's secret and the path of what it is
for.

Each party has its own secret and no seed crosses the wire: from a broadcast seed a client could
recompute the server's noise, from a client's id the server could rebuild its private table. Derived
randomness repeats when a round repeats, which is right for batches and wrong for noise. So there
are two sources of a party's secret (`secrets` in the configuration): in a simulation it is derived
from the seed; in a deployment it comes from the operating system, and the server's is new each time
it starts.

Two kinds of draws hang from a secret. What somebody must not guess from other draws comes from a
stream cipher (`secret_...`). The rest (batches, samples, partitions) comes from the usual
generators, which are quicker, and of which enough output tells the rest.
"""

import os
from collections.abc import Callable
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

Seed = bytes


def root(number: int) -> Seed:
    """The secret a simulation hangs from; a deployment has one per party instead, from its own key
    file.
    """
    return derive(b"lexfed", number)


def fresh() -> Seed:
    """A secret from the operating system, which nobody can draw again."""
    return os.urandom(32)


def derive(secret: Seed, *path: str | int) -> Seed:
    """A child secret. Steps are typed and length-prefixed, so that ("a", "bc"), ("ab", "c") and
    (1,), ("1",) differ.
    """
    steps = b"".join(_step(part) for part in path)
    return blake2b(steps, key=secret, digest_size=32).digest()


def _step(part: str | int) -> bytes:
    data = f"{type(part).__name__}:{part}".encode()
    return len(data).to_bytes(4, "big") + data


def public_identity(identity: Seed) -> bytes:
    """What others know somebody by who signs with this secret (Ed25519)."""
    return Ed25519PrivateKey.from_private_bytes(identity).public_key().public_bytes_raw()


def torch_generator(seed: Seed) -> torch.Generator:
    """For what need not stay secret: torch's generator starts from 32 bits of the seed, which can
    be tried out.
    """
    return torch.Generator().manual_seed(int.from_bytes(seed[:8], "big", signed=True))


def numpy_generator(seed: Seed) -> np.random.Generator:
    """For what need not stay secret: from enough of its output the rest can be computed."""
    return np.random.Generator(np.random.PCG64(int.from_bytes(seed, "big")))


def keystream(seed: Seed, size: int) -> bytes:
    """So many bytes of ChaCha20 under this key: nobody without the whole seed tells them from
    chance.
    """
    return Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(size))


def stream(seed: Seed) -> Callable[[int], bytes]:
    """The same bytes one after the other, as many at a time as are asked for."""
    cipher = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor()
    return lambda size: cipher.update(bytes(size))


def secret_uniform(seed: Seed, *shape: int) -> npt.NDArray[np.float64]:
    """Numbers of 53 bits from [0, 1): coins that others must not guess from each other."""
    words = np.frombuffer(keystream(seed, 8 * int(np.prod(shape))), "<u8")
    return np.asarray((words >> np.uint64(11)) * 2.0**-53, np.float64).reshape(shape)


def secret_normal(seed: Seed, *shape: int) -> torch.Tensor:
    """Numbers from N(0, 1) that nobody can rebuild without the whole seed, however many others are
    known: private rows, rotations, noise on an upload. (Box and Muller's pairs; float32.)
    """
    return torch.from_numpy(secret_gaussian(seed, *shape).astype(np.float32))


def secret_gaussian(seed: Seed, *shape: int) -> npt.NDArray[np.float64]:
    """The same in float64, whose tails end at eight deviations."""
    count = int(np.prod(shape))
    uniform = secret_uniform(seed, 2, -(-count // 2))
    # 1 - u is never 0, so its logarithm is finite
    radius, angle = np.sqrt(-2 * np.log1p(-uniform[0])), 2 * np.pi * uniform[1]
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)])
    return np.asarray(pairs.reshape(-1)[:count].reshape(shape))


def secret_choice(among: int, size: int, seed: Seed) -> npt.NDArray[np.int64]:
    """So many different places below `among`, each set as likely as any other, in the order drawn.

    Words of the stream below the largest multiple of `among`, as they come; what was there before
    is passed over.
    """
    if 2 * size > among:  # a whole shuffle, so that nobody waits for the last free place
        keys = np.frombuffer(keystream(seed, 8 * among), "<u8")
        return np.argsort(keys, kind="stable")[:size].astype(np.int64)
    limit = 2**64 - 2**64 % among
    places: dict[int, None] = {}
    number = 0
    while len(places) < size:
        words = np.frombuffer(keystream(derive(seed, number), 16 * (size + 8)), "<u8")
        number += 1
        for word in words.tolist():
            if word < limit and len(places) < size:
                places.setdefault(word % among)
    return np.fromiter(places, np.int64, size)
