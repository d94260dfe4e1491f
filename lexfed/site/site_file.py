"""`site.toml`: what an organisation says of itself.

[data]       its texts, as in any experiment: name, columns, how much is held out
[files]      its copies of public files, by the names that servers give them
[policy]     what it allows
[self_audit] what it does to its own uploads before they leave, whatever the server says
[door]       where the relay knocks, and who may
"""

import os
import pwd
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lexfed.core.errors import ConfigError
from lexfed.core.files import OWNER_ONLY, OWNERS_FOLDER, write_atomically
from lexfed.core.seeds import Seed, fresh, public_identity
from lexfed.corpus.organisations import Keys
from lexfed.corpus.population import Data
from lexfed.experiment import toml
from lexfed.experiment.terms import SHARED_DATA, Allowed
from lexfed.layers.self_audit import SelfAudit
from lexfed.secure.identity import read_identity, read_roster
from lexfed.site.policy import Policy

IDENTITY, PEERS, COMMON, SECRET = "identity.pem", "peers.json", "common.key", "secret"


@dataclass(frozen=True)
class Door:
    """The `[door]` table: the socket at which the relay hands in letters."""

    socket: str = ""  # its path; default: site.sock beside site.toml
    # who may knock beside this process's own user: the user that the SuperNode runs as
    user: str = ""
    node: str = ""  # the folder of the SuperNode's own key; default: that of site.toml

    def users(self) -> frozenset[int]:
        """User ids."""
        if not self.user:
            return frozenset({os.getuid()})
        try:
            found = int(self.user) if self.user.isdigit() else pwd.getpwnam(self.user).pw_uid
        except KeyError as error:
            raise ConfigError(f"door.user = '{self.user}': there is no such user") from error
        return frozenset({os.getuid(), found})


@dataclass(frozen=True)
class SiteFile:
    folder: Path
    data: Data
    policy: Policy
    door: Door
    server: bytes  # the public key of the one whose letters are read
    peers: Mapping[int, bytes]  # everybody's, by number
    me: int
    keys: Keys
    files: Mapping[str, Path] = field(default_factory=dict)
    self_audit: Mapping[str, Any] = field(default_factory=dict)

    @property
    def allowed(self) -> Allowed:
        return Allowed(self.policy.methods, self.policy.models, self.files)

    @property
    def socket(self) -> Path:
        return self.folder / (self.door.socket or "site.sock")


def load(path: Path) -> SiteFile:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}; lexfed client --init writes one")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    for key in table:
        if key not in ("data", "files", "policy", "self_audit", "door"):
            raise ConfigError(f"unknown key '{key}' in {path}")
    folder = path.resolve().parent
    identity = read_identity(folder / IDENTITY)
    roster = read_roster(folder / PEERS)
    me = [number for number, key in roster.clients.items() if key == public_identity(identity)]
    if not me:
        raise ConfigError(f"{folder / PEERS} does not hold this site's own key: make it again")
    if roster.server is None:
        raise ConfigError(f"{folder / PEERS} does not hold the server's key: make it again")
    if "self_audit" in table:
        toml.read(SelfAudit, table["self_audit"], "self_audit.")
    return SiteFile(
        folder=folder,
        data=_data(table.get("data", {}), folder),
        policy=toml.read(Policy, table.get("policy", {}), "policy."),
        door=toml.read(Door, table.get("door", {}), "door."),
        server=roster.server,
        peers=roster.clients,
        me=me[0],
        keys=Keys(_secret(folder / SECRET), identity, _common(folder / COMMON)),
        files={name: folder / place for name, place in _names(table).items()},
        self_audit=table.get("self_audit", {}),
    )


def _data(table: Any, folder: Path) -> Data:
    if not isinstance(table, dict) or "name" not in table:
        raise ConfigError("site.toml must say where the texts lie: name under [data]")
    for key in (*SHARED_DATA, "unseen", "partition"):
        if key in table:
            raise ConfigError(f"data.{key} is the federation's to say: leave it out of site.toml")
    place = folder / os.path.expanduser(str(table["name"]))
    name = str(place) if place.exists() else table["name"]
    return toml.read(Data, {**table, "name": name, "partition": "iid"}, "data.")


def _names(table: Mapping[str, Any]) -> dict[str, str]:
    names = table.get("files", {})
    if not isinstance(names, dict) or not all(isinstance(place, str) for place in names.values()):
        raise ConfigError('[files] holds a path by each name: "vectors.txt" = "/srv/vectors.txt"')
    return names


def _secret(path: Path) -> Seed:
    """Drawn once; it is what private tables hang from, so it is kept and backed up."""
    if not path.exists():
        path.parent.mkdir(OWNERS_FOLDER, parents=True, exist_ok=True)
        write_atomically(path, fresh(), OWNER_ONLY)
    return _owners(path)


def _common(path: Path) -> Seed:
    return _owners(path) if path.exists() else b""


def _owners(path: Path) -> Seed:
    if path.stat().st_mode & 0o077:
        raise ConfigError(f"{path} can be read by others than its owner: chmod 600 {path}")
    secret = path.read_bytes()
    if len(secret) != len(fresh()):
        raise ConfigError(f"{path} holds no secret of {len(fresh())} bytes: restore it from a copy")
    return secret
