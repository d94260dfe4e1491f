"""The configuration: strict TOML into frozen dataclasses. Each table is one dataclass, defined where it is used."""

import dataclasses
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import tomli_w

from lexfed.corpus.population import Data
from lexfed.errors import ConfigError, nearest
from lexfed.methods.agreement import Agreement
from lexfed.methods.audit_options import Audit
from lexfed.methods.centralised import Centralised
from lexfed.methods.defences import Defences
from lexfed.methods.evaluation import Evaluation
from lexfed.methods.fedavg import FineTune
from lexfed.methods.fedevocab import FedeVocab
from lexfed.methods.fedprox import FedProx
from lexfed.methods.fedrecon import FedRecon
from lexfed.methods.heavy_hitting import HeavyHitters
from lexfed.methods.lg_fedavg import LGFedAvg
from lexfed.methods.local_only import LocalOnly
from lexfed.methods.self_audit import SelfAudit
from lexfed.methods.tokenizer_for_free import TokenizerForFree
from lexfed.methods.training import Train
from lexfed.methods.word2vec_options import Word2Vec
from lexfed.models.language import LanguageModelOptions
from lexfed.models.model import ModelOptions
from lexfed.optim import ServerOptimizer
from lexfed.privacy.gaussian import Privacy
from lexfed.privacy.robust import Aggregation, Malice
from lexfed.privacy.sampling import Cohort
from lexfed.vocabulary.learned import TokenizerOptions
from lexfed.vocabulary.word import Words


@dataclass(frozen=True)
class Config:
    """A run, completely: the same configuration gives the same bits."""

    name: str = "lexfed"
    seed: int = 0
    rounds: int = 10
    keep: tuple[int, ...] = ()  # rounds whose checkpoint stays, to fork from
    method: Literal[
        "fedevocab",
        "fedavg",
        "fedavg_finetune",
        "fedprox",
        "lg_fedavg",
        "fedrecon",
        "local_only",
        "centralised",
        "federated_word2vec",
        "tokenizer_for_free",
    ] = "fedavg"
    data: Data = field(default_factory=Data)
    vocabulary: Words = field(default_factory=Words)
    agreement: Agreement = field(default_factory=Agreement)
    word2vec: Word2Vec = field(default_factory=Word2Vec)
    model: ModelOptions = field(default_factory=ModelOptions)
    tokenizer: TokenizerOptions = field(default_factory=TokenizerOptions)
    language_model: LanguageModelOptions = field(default_factory=LanguageModelOptions)
    tokenizer_for_free: TokenizerForFree = field(default_factory=TokenizerForFree)
    heavy_hitters: HeavyHitters = field(default_factory=HeavyHitters)
    cohort: Cohort = field(default_factory=Cohort)
    train: Train = field(default_factory=Train)
    server: ServerOptimizer = field(default_factory=ServerOptimizer)
    privacy: Privacy = field(default_factory=Privacy)
    defences: Defences = field(default_factory=Defences)
    self_audit: SelfAudit = field(default_factory=SelfAudit)
    aggregation: Aggregation = field(default_factory=Aggregation)
    malice: Malice = field(default_factory=Malice)
    evaluation: Evaluation = field(default_factory=Evaluation)
    audit: Audit = field(default_factory=Audit)
    fedevocab: FedeVocab = field(default_factory=FedeVocab)
    fedavg_finetune: FineTune = field(default_factory=FineTune)
    fedprox: FedProx = field(default_factory=FedProx)
    lg_fedavg: LGFedAvg = field(default_factory=LGFedAvg)
    fedrecon: FedRecon = field(default_factory=FedRecon)
    local_only: LocalOnly = field(default_factory=LocalOnly)
    centralised: Centralised = field(default_factory=Centralised)

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError("rounds must be at least 1")
        if not self.name or "/" in self.name:
            raise ConfigError("name must be a plain word: it becomes part of a directory's name")
        if self.aggregation.rule != "mean":
            self._check_aggregation()
        if self.malice.clients:
            self._check_malice()

    def _check_aggregation(self) -> None:
        if self.privacy.placement != "none":
            raise ConfigError(
                "noise is made for a sum, which a robust rule is not: set aggregation.rule = 'mean' "
                "(a clipped sum bounds every client already), or privacy.placement = 'none'"
            )
        if self.method == "federated_word2vec":
            raise ConfigError("word vectors travel as rows, which have no median: set aggregation.rule = 'mean'")

    def _check_malice(self) -> None:
        if self.malice.clients > self.data.clients or self.method == "centralised":
            clients = 1 if self.method == "centralised" else self.data.clients
            raise ConfigError(f"malice.clients is {self.malice.clients}, but the number of clients is {clients}; lower it")
        agrees = self.method == "federated_word2vec"
        if self.malice.kind == "stuff_vocabulary" and not agrees:
            raise ConfigError(f"{self.method} agrees on no word list that could be stuffed: choose another malice.kind")
        if self.malice.kind == "flip_labels" and (agrees or self.method == "tokenizer_for_free"):
            raise ConfigError(f"{self.method} trains without labels: choose another malice.kind")


def load(path: Path, settings: Sequence[str] = ()) -> Config:
    """Read a TOML file, then apply `key=value` settings over it."""
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    try:
        return loads(path.read_text(encoding="utf-8"), settings)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def loads(text: str, settings: Sequence[str] = ()) -> Config:
    table = tomllib.loads(text)
    for setting in settings:
        _apply(table, setting)
    return parse(table)


def parse(table: Mapping[str, Any]) -> Config:
    return _read(Config, table, "")


def to_toml(config: Config) -> str:
    """The whole configuration, defaults included: it can be run again."""
    return tomli_w.dumps(_without_none(dataclasses.asdict(config)))


def differences(one: Config, other: Config) -> list[str]:
    """The keys in which two configurations differ, as `table.key`."""
    left, right = _flat(dataclasses.asdict(one)), _flat(dataclasses.asdict(other))
    return [key for key in left if left[key] != right[key]]


def fingerprint(config: Config) -> str:
    """Of all that gives a run's state its meaning: everything but its name and its number of rounds."""
    return blake2b(to_toml(dataclasses.replace(config, name="any", rounds=1)).encode(), digest_size=16).hexdigest()


def _flat(table: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{where}{key}.") if isinstance(value, Mapping) else {f"{where}{key}": value}
    return flat


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {k: _without_none(v) if isinstance(v, dict) else v for k, v in table.items() if v is not None}


def _apply(table: dict[str, Any], setting: str) -> None:
    """`data.alpha=0.1`: the value is TOML; what is not TOML is a string."""
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set wants key=value, not '{setting}'")
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        parsed = {}
    value = parsed["value"] if len(parsed) == 1 else text
    *path, last = key.strip().split(".")
    for name in path:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {setting}: '{name}' is not a table")
    table[last] = value


T = TypeVar("T")


def _read(kind: type[T], table: Mapping[str, Any], where: str) -> T:
    """A dataclass from a table: no unknown key, every value of its field's type."""
    hints = get_type_hints(kind)
    for key in table:
        if key not in hints:
            raise ConfigError(f"unknown key '{where}{key}'; {nearest(key, hints)}")
    return kind(**{key: _value(hints[key], value, f"{where}{key}") for key, value in table.items()})


def _value(kind: Any, value: Any, key: str) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, Mapping):
            raise ConfigError(f"'{key}' is a table: write [{key}], not {key} = {value!r}")
        return _read(kind, value, f"{key}.")
    if get_origin(kind) is Literal:
        if value not in get_args(kind) or isinstance(value, bool):
            raise ConfigError(f"{key} = {value!r} is not known; {nearest(str(value), map(str, get_args(kind)))}")
        return value
    if get_origin(kind) in (Union, UnionType):
        return _value(next(k for k in get_args(kind) if k is not NoneType), value, key)
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{key} must be a list, not {value!r}")
        return tuple(_value(get_args(kind)[0], entry, key) for entry in value)
    if kind is float and type(value) is int:
        return float(value)
    if kind is float and type(value) is float and not math.isfinite(value):
        raise ConfigError(f"{key} must be a finite number, not {value}")
    if type(value) is not kind:
        names = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
        raise ConfigError(f"{key} must be {names[kind]}, not {value!r}")
    return value
