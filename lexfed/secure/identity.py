"""Who somebody is: a signing key of one's own, and a file with everybody's public ones.

    identity.pem   Ed25519, PKCS #8; its owner alone can read it
    peers.json     {"server": "base64 of a public key", "0": "...", "1": "...", ...}

An organisation gets `peers.json` from the others, not from the server: a server that hands out the
keys could hand out its own, and sit in the middle of every pair.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Roster:
    """Whom everybody is known by: the clients by their numbers, and the server that asks them."""

    clients: Mapping[ClientId, bytes]
    server: bytes | None = None


SERVER = "server"


def write_roster(path: Path, roster: Roster) -> None:
    table = {str(peer): key for peer, key in sorted(roster.clients.items())}
    if roster.server is not None:
        table = {SERVER: roster.server, **table}
    told = {name: base64.b64encode(key).decode() for name, key in table.items()}
    write_atomically(path, (json.dumps(told, indent=2) + "\n").encode())


def read_roster(path: Path) -> Roster:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}: `lexfed keys gather` writes it; --keys")
    try:
        table = json.loads(path.read_text())
        found = {peer: base64.b64decode(key, validate=True) for peer, key in table.items()}
        server = found.pop(SERVER, None)
        clients = {int(peer): key for peer, key in found.items()}
    except (OSError, ValueError, AttributeError, TypeError, binascii.Error) as error:
        raise ConfigError(
            f"{path} is no list of peers: it holds a public key in base64 by each number"
        ) from error
    everybody = [*clients.values(), *([server] if server is not None else [])]
    if any(len(key) != keys.KEY for key in everybody):
        raise ConfigError(f"{path} holds a key that is not {keys.KEY} bytes long")
    if len(set(everybody)) < len(everybody):
        raise ConfigError(f"{path} holds one key twice: everybody has one of its own")
    if sorted(clients) != list(range(len(clients))):
        raise ConfigError(f"{path} must number the clients from 0 on")
    return Roster(clients, server)


def simulated(options: Secure, people: Population, root: Path) -> Member:
    """All clients of a simulation: each with a key that hangs from its own secret, and with
    everybody's public ones.
    """

    def identity(client: Client) -> Seed:
        return client.identity

    return Member(options, Sessions(root), identity, lru_cache(maxsize=1 << 16)(people.pinned))
