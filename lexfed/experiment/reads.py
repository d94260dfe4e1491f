"""Which keys of the common tables a method reads. A key that was set and is not read is refused: it
would do nothing.

A method's own table is its own, and other methods' tables stay allowed: `--set method=` compares
them on one file. For the same reason a file may hold keys that another method of the same kind
reads. What is said with `--set` is meant for the method that runs.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from lexfed.core.errors import ConfigError
from lexfed.experiment import toml
from lexfed.federation.method import Entry

GENERAL = ("name", "seed", "secrets", "rounds", "keep", "method", "format")
COMMON = (
    "data", "vocabulary", "agreement", "word2vec", "model", "tokenizer", "language_model",
    "heavy_hitters", "cohort", "train", "server", "privacy", "defences", "self_audit",
    "aggregation", "malice", "evaluation", "audit", "secure",
)  # fmt: skip


LATER = ("heavy_hitters", "secure")  # tables that older files lack


def is_resolved(table: Mapping[str, Any]) -> bool:
    """Whether lexfed wrote this file: no person writes every table."""
    return all(name in table for name in COMMON if name not in LATER)


def check(entry: Entry, written: Mapping[str, Any], settings: Iterable[str]) -> None:
    """`written` is what the user's file holds, `settings` the keys given with `--set`."""
    for key in toml.flat(written):
        if not of_kind(entry, key):
            raise ConfigError(_sentence(entry, key))
    for key in settings:
        if not by_method(entry, key):
            raise ConfigError(_sentence(entry, key))


def of_kind(entry: Entry, key: str) -> bool:
    """Whether a method of this kind reads the key."""
    table = key.partition(".")[0]
    return table not in COMMON or _among(key, entry.kind.reads)


def by_method(entry: Entry, key: str) -> bool:
    """Whether this very method reads it."""
    return of_kind(entry, key) and not _among(key, entry.ignores)


def _among(key: str, names: Iterable[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


def _sentence(entry: Entry, key: str) -> str:
    if key == "rounds":
        return f"{entry.name} counts epochs, not rounds: set {entry.name}.epochs"
    table = key.partition(".")[0]
    why = entry.kind.tells.get(key, entry.kind.tells.get(table, ""))
    return f"method = '{entry.name}' does not read {key}: leave it out" + (
        f" ({why})" if why else ""
    )
