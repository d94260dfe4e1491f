"""Derived randomness: every draw in a run comes from a party's secret and the path of what it is
for.

Each party has its own secret and no seed crosses the wire: from a broadcast seed a client could
recompute the server's noise, from a client's id the server could rebuild its private table. Derived
randomness repeats when a round repeats, which is right for batches and wrong for secrets: those
come from the operating system.
"""

from hashlib import blake2b

import numpy as np
import torch

Seed = bytes


def root(number: int) -> Seed:
    """The secret a simulation hangs from; a deployment has one per party instead, from its own key
    file.
    """
    return derive(b"lexfed", number)


def derive(secret: Seed, *path: str | int) -> Seed:
    """A child secret. Steps are typed and length-prefixed, so that ("a", "bc"), ("ab", "c") and
    (1,), ("1",) differ.
    """
    steps = b"".join(_step(part) for part in path)
    return blake2b(steps, key=secret, digest_size=32).digest()


def _step(part: str | int) -> bytes:
    data = f"{type(part).__name__}:{part}".encode()
    return len(data).to_bytes(4, "big") + data


def torch_generator(seed: Seed) -> torch.Generator:
    """For what need not stay secret: torch's generator starts from 32 bits of the seed, which can
    be tried out.
    """
    return torch.Generator().manual_seed(int.from_bytes(seed[:8], "big", signed=True))


def numpy_generator(seed: Seed) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(int.from_bytes(seed, "big")))


def secret_normal(seed: Seed, *shape: int) -> torch.Tensor:
    """Numbers from N(0, 1) that nobody can rebuild without the whole seed: private rows, noise on
    an upload.
    """
    return torch.from_numpy(numpy_generator(seed).standard_normal(shape, dtype=np.float32))
