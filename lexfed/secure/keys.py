"""The primitives, all of them from `cryptography`, each with the name that the protocol gives it.

    agree   X25519, then HKDF-SHA256: a key that two know                         KA.agree
    seal    ChaCha20-Poly1305: what only one can read, and nobody can change      AE.enc, AE.dec
    expand  ChaCha20's key stream: a mask as long as an update                    PRG
    sign    Ed25519: who somebody is                                              SIG.sign, SIG.ver

Every key is made for one use, so a nonce of zeros serves once.
"""

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from lexfed.core.seeds import Seed, keystream
from lexfed.core.seeds import public_identity as public_identity

KEY = 32  # bytes, of every key, public or private
SIGNATURE = 64
TAG = 16  # what sealing adds

Ring = npt.NDArray[np.uint64] | npt.NDArray[np.uint32]


def public(private: bytes) -> bytes:
    """Of a key for `agree`."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, theirs: bytes, purpose: bytes) -> Seed | None:
    """A key for this purpose, the same on both sides; None: theirs is no key."""
    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(
            X25519PublicKey.from_public_bytes(theirs)
        )
    except ValueError:  # a point of low order: anybody would know what comes of it
        return None
    return HKDF(SHA256(), KEY, salt=None, info=b"lexfed secure sum\0" + purpose).derive(shared)


def seal(key: Seed, data: bytes, about: bytes) -> bytes:
    return ChaCha20Poly1305(key).encrypt(bytes(12), data, about)


def unseal(key: Seed, sealed: bytes, about: bytes) -> bytes | None:
    """None: it was sealed with another key, or about something else, or was changed."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, about)
    except InvalidTag:
        return None


def expand(seed: Seed, length: int, bits: int) -> Ring:
    """A mask: so many numbers below 2^bits, each as likely as any other."""
    stream = keystream(seed, length * bits // 8)
    return np.frombuffer(stream, "<u8" if bits == 64 else "<u4")


def sign(identity: Seed, data: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(identity).sign(data)


def signed(identity: bytes, signature: bytes, data: bytes) -> bool:
    """Whether the one with this public identity signed the data."""
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True
