"""Who somebody is: a signing key of one's own, and a file with everybody's public ones.

    identity.pem   Ed25519, PKCS #8; its owner alone can read it
    peers.json     {"0": "base64 of a public key", ...}

An organisation gets `peers.json` from the others, not from the server: a server that hands out the
keys could hand out its own, and sit in the middle of every pair.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from lexfed.core.errors import ConfigError
from lexfed.core.files import OWNER_ONLY, write_atomically
from lexfed.core.seeds import Seed
from lexfed.corpus.population import Client, Population
from lexfed.secure import keys
from lexfed.secure.member import Member
from lexfed.secure.secure_options import Secure
from lexfed.secure.sessions import Sessions
from lexfed.wire import ClientId


def write_identity(path: Path, identity: Seed) -> None:
    key = Ed25519PrivateKey.from_private_bytes(identity)
    data = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_atomically(path, data, OWNER_ONLY)


def read_identity(path: Path) -> Seed:
    if path.stat().st_mode & 0o077:
        raise ConfigError(f"{path} can be read by others than its owner: chmod 600 {path}")
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} holds no private key") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path} holds a key of another kind: Ed25519 is needed")
    return key.private_bytes_raw()


def write_peers(path: Path, peers: Mapping[ClientId, bytes]) -> None:
    table = {str(peer): base64.b64encode(key).decode() for peer, key in sorted(peers.items())}
    write_atomically(path, (json.dumps(table, indent=2) + "\n").encode())


def read_peers(path: Path) -> dict[ClientId, bytes]:
    try:
        table = json.loads(path.read_text())
        peers = {int(peer): base64.b64decode(key, validate=True) for peer, key in table.items()}
    except (OSError, ValueError, AttributeError, TypeError, binascii.Error) as error:
        raise ConfigError(
            f"{path} is no list of peers: it holds a public key in base64 by each number"
        ) from error
    if any(len(key) != keys.KEY for key in peers.values()):
        raise ConfigError(f"{path} holds a key that is not {keys.KEY} bytes long")
    return peers


def simulated(options: Secure, people: Population, root: Path) -> Member:
    """All clients of a simulation: each with a key that hangs from its own secret, and with
    everybody's public ones.
    """

    def identity(client: Client) -> Seed:
        return client.identity

    return Member(options, Sessions(root), identity, lru_cache(maxsize=1 << 16)(people.pinned))
