"""`lexfed keys`: who makes which key, and what is passed on.

    lexfed keys new NAME      an organisation: identity.pem, node (its SuperNode's key), and a card
    lexfed keys server HOST   the server: identity.pem, a certificate authority, a certificate
    lexfed keys gather CARD.. of everybody's cards: peers.json, and what each party needs of others

A card holds public keys only. Secrets are files that their owner alone can read, and are never
written over.
"""

import base64
import datetime
import hashlib
import ipaddress
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from lexfed.core.errors import ConfigError
from lexfed.core.files import OWNER_ONLY, OWNERS_FOLDER, write_atomically
from lexfed.core.seeds import fresh, public_identity
from lexfed.secure.identity import Roster, write_identity, write_roster

ORGANISATION, SERVER = "lexfed organisation", "lexfed server"
IDENTITY, NODE, COMMON = "identity.pem", "node", "common.key"
CA, CA_KEY, CERTIFICATE, TLS_KEY = "ca.crt", "ca.key", "server.crt", "server.key"
YEARS = 5


@dataclass(frozen=True)
class Card:
    """What one party gives to all others."""

    what: str
    name: str
    identity: bytes
    node: str = ""  # an organisation's: the public key of its SuperNode, as OpenSSH writes it
    ca: str = ""  # the server's: the certificate that its TLS certificate is signed with

    def to_json(self) -> bytes:
        identity = base64.b64encode(self.identity).decode()
        return (json.dumps({**vars(self), "identity": identity}, indent=2) + "\n").encode()


def read_card(path: Path) -> Card:
    try:
        fields: Mapping[str, Any] = json.loads(path.read_text())
        card = Card(**{**fields, "identity": base64.b64decode(fields["identity"], validate=True)})
        good = all(isinstance(word, str) for word in (card.what, card.name, card.node, card.ca))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path} is no card of `lexfed keys`") from error
    if not good or card.what not in (ORGANISATION, SERVER) or len(card.identity) != 32:
        raise ConfigError(f"{path} is no card of `lexfed keys`")
    _plain_name(card.name)
    try:
        if card.what == SERVER:
            x509.load_pem_x509_certificate(card.ca.encode())
        else:
            serialization.load_ssh_public_key(card.node.encode())
    except ValueError as error:
        raise ConfigError(f"{path} holds no certificate, or no key of a SuperNode") from error
    return card


def new(name: str, folder: Path) -> Path:
    """An organisation's keys, and its card."""
    _plain_name(name)
    card = folder / f"{name}.card.json"
    _refuse_existing(folder, (IDENTITY, NODE, card.name))
    identity, node = fresh(), ec.generate_private_key(ec.SECP384R1())
    write_identity(folder / IDENTITY, identity)
    secret = node.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    write_atomically(folder / NODE, secret, OWNER_ONLY)
    public = node.public_key().public_bytes(Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    about = Card(ORGANISATION, name, public_identity(identity), node=public.decode())
    write_atomically(card, about.to_json())
    return card


def common_secret(folder: Path) -> Path:
    """The secret that all organisations share: one of them makes it, and passes it on past the
    server.
    """
    _refuse_existing(folder, (COMMON,))
    write_atomically(folder / COMMON, fresh(), OWNER_ONLY)
    return folder / COMMON


def server(hosts: Sequence[str], folder: Path) -> Path:
    """The server's keys, its certificate for these hosts, and its card."""
    card = folder / "server.card.json"
    _refuse_existing(folder, (IDENTITY, CA, CA_KEY, CERTIFICATE, TLS_KEY, card.name))
    identity = fresh()
    write_identity(folder / IDENTITY, identity)
    authority, ca = _authority()
    key, certificate = _certificate(hosts, authority, ca)
    for name, secret in ((CA_KEY, authority), (TLS_KEY, key)):
        data = secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_atomically(folder / name, data, OWNER_ONLY)
    for name, public in ((CA, ca), (CERTIFICATE, certificate)):
        write_atomically(folder / name, public.public_bytes(Encoding.PEM))
    told = ca.public_bytes(Encoding.PEM).decode()
    about = Card(SERVER, "server", public_identity(identity), ca=told)
    write_atomically(card, about.to_json())
    return card


@dataclass(frozen=True)
class Gathered:
    names: tuple[str, ...]  # of the organisations, by their numbers
    fingerprint: str  # the same for everybody who gathered the same cards


def gather(cards: Sequence[Path], folder: Path) -> Gathered:
    """Who is who, written where `lexfed server` and `lexfed client` look for it. Numbers go by
    names, so that everybody counts alike.
    """
    read = [read_card(path) for path in cards]
    servers = [card for card in read if card.what == SERVER]
    organisations = sorted((c for c in read if c.what == ORGANISATION), key=lambda c: c.name)
    names = tuple(card.name for card in organisations)
    if len(servers) != 1 or not organisations:
        raise ConfigError("gather takes the server's card and one of each organisation")
    if len(set(names)) < len(names):
        raise ConfigError("two organisations have one name: one of them makes its keys again")
    folder.mkdir(parents=True, exist_ok=True)
    clients = {number: card.identity for number, card in enumerate(organisations)}
    write_roster(folder / "peers.json", Roster(clients, servers[0].identity))
    write_atomically(folder / CA, servers[0].ca.encode())
    (folder / "nodes").mkdir(exist_ok=True)
    for card in organisations:
        write_atomically(folder / "nodes" / f"{card.name}.pub", f"{card.node}\n".encode())
    write_atomically(folder / "names.json", (json.dumps(names) + "\n").encode())
    told = b"".join(card.to_json() for card in (*servers, *organisations))
    return Gathered(names, "-".join(_words(hashlib.sha256(told).hexdigest()[:40])))


def _words(digits: str) -> list[str]:
    return [digits[start : start + 5] for start in range(0, len(digits), 5)]


def _refuse_existing(folder: Path, names: Sequence[str]) -> None:
    folder.mkdir(OWNERS_FOLDER, parents=True, exist_ok=True)
    for name in names:
        if (folder / name).exists():
            raise ConfigError(f"{folder / name} is there already, and keys are not written over")


def _plain_name(name: str) -> None:
    if not name or not all(c.isalnum() or c in "-_" for c in name) or len(name) > 60:
        raise ConfigError(f"'{name}' is no plain name: letters, digits, - and _")


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _begun(subject: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> Any:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_named(subject))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
    )


def _authority() -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = f"lexfed federation {os.urandom(4).hex()}"
    use = x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _begun(name, _named(name), key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(use, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return key, certificate


def _certificate(
    hosts: Sequence[str], authority: ec.EllipticCurvePrivateKey, ca: x509.Certificate
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    names = [_alternative(host) for host in dict.fromkeys((*hosts, "localhost", "127.0.0.1"))]
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    certificate = (
        _begun(hosts[0], ca.subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority, hashes.SHA256())
    )
    return key, certificate


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
