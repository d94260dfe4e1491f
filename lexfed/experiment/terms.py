"""The terms of a federation: what of a configuration all its parties share, and may travel.

A server's configuration holds what is nobody else's business (seed, name, its own files) and what
an organisation must not take from it (where texts lie, what is imported). So terms leave out the
first, and an organisation puts its own in place of the second:

    [data]         the organisation's own; the server says how many clients, and names the classes
    a public file  travels as its name and a digest; each party says where its copy lies
    method, model  must stand on the organisation's list before anything of it is imported
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import tomli_w

from lexfed.core.errors import ConfigError
from lexfed.core.importing import is_own
from lexfed.corpus.catalogue import CATALOGUE
from lexfed.corpus.organisations import ELSEWHERE
from lexfed.corpus.population import Data
from lexfed.experiment import config as configuration
from lexfed.experiment import toml
from lexfed.experiment.config import FILES, Config
from lexfed.models.language_model import LANGUAGE_MODELS
from lexfed.models.registry import MODELS
from lexfed.vocabulary.tables.vectors import HASHED
from lexfed.vocabulary.word import public_text

FILE = "file:"  # a public file that both parties have
# what a key that may name a file says instead of one, and a deployment can mean
WORDS = ("", "public", "heavy_hitters", "random", "none")
VECTORS = ("vocabulary.vectors", "fedevocab.vectors")  # keys that may name numbers made from words
# of [data], what the server says
SHARED_DATA = ("clients", "labels", "classes")
LEFT_OUT = ("seed", "name", "keep", "secrets", "malice", "audit", "data")
# what stands in place of what is left out
OURS: Mapping[str, Any] = {"malice": {}, "audit": {}, "secrets": "system"}
OPENED_FILES = tuple(key for key in FILES if key != "data.name")


LONGEST = 1 << 18  # bytes


class TermsError(ConfigError):
    """What is wrong with a server's terms, in a sentence that it may be told: it holds the server's
    own words, and nothing of the organisation.
    """


@dataclass(frozen=True)
class Allowed:
    """What an organisation has looked at: only this is imported."""

    methods: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict)  # its copies of public files, by name


def of(config: Config) -> bytes:
    """The terms of this configuration, as they travel."""
    _check_deployable(config)
    table = tomllib.loads(configuration.to_toml(config))
    shared = {key: table["data"][key] for key in SHARED_DATA if key in table["data"]}
    if table["vocabulary"]["corpus"] == "public":  # which text that is depends on the server's data
        table["vocabulary"]["corpus"] = public_text(config.data.name)
    digests: dict[str, str] = {}
    for key in OPENED_FILES:
        _put(table, key, lambda value: _told(value, digests))
    kept = {key: value for key, value in table.items() if key not in LEFT_OUT}
    return tomli_w.dumps({**kept, "data": shared, "files": digests}).encode()


def _told(value: str, digests: dict[str, str]) -> str:
    """A file by its name; a word as it is."""
    path = Path(value)
    if not path.is_absolute():
        return value
    if not path.is_file():
        raise ConfigError(f"{value} is no file: between organisations, public files travel by name")
    if path.name in digests and digests[path.name] != _digest(path):
        raise ConfigError(f"two public files are called {path.name}: rename one")
    digests[path.name] = _digest(path)
    return FILE + path.name


def _digest(path: Path) -> str:
    hashed = blake2b(digest_size=32)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            hashed.update(piece)
    return hashed.hexdigest()


def _put(table: dict[str, Any], key: str, change: Any) -> None:
    """What a key that may name a file holds, changed in place."""
    name, _, last = key.partition(".")
    inner = table.get(name)
    if not isinstance(inner, dict) or last not in inner:
        return
    value = inner[last]
    if isinstance(value, str):
        inner[last] = change(value)
    elif isinstance(value, list) and all(isinstance(v, str) for v in value):
        inner[last] = [change(v) for v in value]
    else:
        raise TermsError(f"{key} must be a name")


def adopted(terms: bytes, mine: Data, allowed: Allowed, **own: Mapping[str, Any]) -> Config:
    """The configuration that an organisation works with: the server's terms, its own texts and
    files, and tables of its own (`self_audit`). Nothing is imported that it did not list, and no
    name of the server's is looked for on its disk.
    """
    table, shared, digests = _read(terms)
    for what in _unlisted(table, allowed):
        raise TermsError(what)
    if stray := [key for key in LEFT_OUT if key in table] or set(shared) - set(SHARED_DATA):
        raise TermsError(f"the server's terms hold '{min(stray)}', which is not its to say")
    here = toml.copied(table)
    for key in OPENED_FILES:
        _put(here, key, lambda value, key=key: _found(value, key, digests, allowed))
    _check(table, shared)
    data = {**_written(mine), **shared}
    return configuration.parse({**here, "data": data, **OURS, **own}, find=False)


def _read(terms: bytes) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The terms, what they say of data, and the digests of public files."""
    if len(terms) > LONGEST:
        raise TermsError(f"the server's terms are longer than {LONGEST:,} bytes")
    try:
        table = toml.copied(tomllib.loads(terms.decode()))
        shared, digests = dict(table.pop("data")), dict(table.pop("files"))
        if not all(isinstance(value, str) for value in digests.values()):
            raise ValueError("files")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TermsError("the server's terms can't be read") from error
    return table, shared, digests


def _check(table: Mapping[str, Any], shared: Mapping[str, Any]) -> None:
    """In the server's own words alone, so that it may hear what is wrong with them."""
    try:
        data = {"name": ELSEWHERE, "partition": "iid", **shared}
        configuration.parse({**table, "data": data, **OURS}, find=False)
    except ConfigError as error:
        raise TermsError(f"the server's terms: {error}") from error


def _unlisted(table: Mapping[str, Any], allowed: Allowed) -> Iterator[str]:
    method = table.get("method")
    if method not in allowed.methods:
        yield f"method {method!r} is not on this site's list (policy.methods)"
    for name, known in (("model", MODELS), ("language_model", LANGUAGE_MODELS)):
        inner = table.get(name)
        model = inner.get("name") if isinstance(inner, dict) else None
        if model is not None and model not in (*known, *allowed.models):
            yield f"model {model!r} is not on this site's list (policy.models)"


def _found(value: str, key: str, digests: Mapping[str, str], allowed: Allowed) -> str:
    """Where this party's copy of a public file lies."""
    if not value.startswith(FILE):
        hashed = key in VECTORS and value.startswith(HASHED) and value[len(HASHED) :].isdecimal()
        if value in (*WORDS, *CATALOGUE) or hashed:
            return value
        raise TermsError(f"{key} = {value!r} names neither a public file nor a data set")
    name = value.removeprefix(FILE)
    if name not in allowed.files:
        raise TermsError(
            f"{key} needs the public file {name!r}: say under [files] of site.toml where it lies"
        )
    if not allowed.files[name].is_file() or _digest(allowed.files[name]) != digests.get(name):
        raise TermsError(f"the file {name!r} here is not the one that the server has")
    return str(allowed.files[name].resolve())


def _written(data: Data) -> dict[str, Any]:
    return {key: value for key, value in asdict(data).items() if value is not None}


def _check_deployable(config: Config) -> None:
    """What only a simulation can do is refused where nobody simulates."""
    flat = toml.flat(configuration.as_table(config))
    whose = {"vocabulary.corpus": "clients", "tokenizer.start": "oracle"}
    for key, word in whose.items():
        if flat.get(key) == word:
            raise ConfigError(f"{key} = '{word}' pools the clients' texts, which nobody has here")
    if config.malice.clients or any(flat[f"cohort.{k}"] for k in ("dropout", "lost", "stale")):
        raise ConfigError("malice, cohort.dropout, lost and stale are for simulations: leave them")
    if config.data.unseen:
        raise ConfigError("data.unseen is for simulations: every client here is an organisation")
    if config.entry.has("pooled") and config.data.clients > 1:
        raise ConfigError(f"{config.entry.name} is for one place that holds all texts")
    if any(name.startswith("__main__:") for name in (config.method, config.model.name)):
        raise ConfigError("what a script defines is not installed elsewhere")
    if is_own(config.data.name):
        raise ConfigError("data.name is each organisation's own: leave it out")
