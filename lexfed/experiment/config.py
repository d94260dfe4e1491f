"""The configuration: strict TOML into frozen dataclasses. Each table is one dataclass, defined
where it is used.
"""

import dataclasses
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import tomli_w

from lexfed.agreement.protocol import Agreement
from lexfed.core import formats
from lexfed.core.errors import ConfigError
from lexfed.core.importing import is_own, look_in
from lexfed.corpus.catalogue import CATALOGUE
from lexfed.corpus.population import Data, check_partition
from lexfed.experiment import known_methods, reads, toml
from lexfed.experiment.audit_options import Audit
from lexfed.federation.method import Entry, Nothing
from lexfed.federation.robust import Aggregation
from lexfed.federation.sampling import Cohort
from lexfed.federation.server_optimizer import ServerOptimizer
from lexfed.language.heavy_hitters import HeavyHitters
from lexfed.language.switching import TokenizerForFree
from lexfed.layers.malice import Malice
from lexfed.layers.self_audit import SelfAudit
from lexfed.learning.defences import Defences
from lexfed.learning.evaluation import Evaluation
from lexfed.learning.task import Train
from lexfed.methods.centralised import Centralised
from lexfed.methods.fedavg import FineTune
from lexfed.methods.fedevocab import FedeVocab
from lexfed.methods.fedprox import FedProx
from lexfed.methods.fedrecon import FedRecon
from lexfed.methods.lg_fedavg import LGFedAvg
from lexfed.methods.local_only import LocalOnly
from lexfed.models.language_model import LanguageModelOptions
from lexfed.models.model import ModelOptions
from lexfed.privacy.gaussian import Privacy
from lexfed.secure.secure_options import Secure
from lexfed.vocabulary.learned import TokenizerOptions
from lexfed.vocabulary.word import Words
from lexfed.word2vec.options import Word2Vec


@dataclass(frozen=True)
class Config:
    """A run, completely: the same configuration gives the same bits."""

    name: str = "lexfed"  # of the run: part of its directory's name
    seed: int = 0  # from which all randomness of a simulation hangs
    # where cohorts, noise, keys and private numbers come from: derived from the seed, so that a run
    # repeats to the bit; or from the operating system, as in a deployment
    secrets: Literal["seed", "system"] = "seed"
    rounds: int = 10  # exchanges between server and clients
    # rounds whose checkpoint stays, to fork from; that before a switch of the tokenizer always does
    keep: tuple[int, ...] = ()
    method: str = "fedavg"  # a name, or `package.module:METHOD` for one's own
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
    secure: Secure = field(default_factory=Secure)
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

    own: Any = field(default_factory=Nothing)  # the table of a method of the user's own

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError("rounds must be at least 1")
        if not self.name or "/" in self.name:
            raise ConfigError("name must be a plain word: it becomes part of a directory's name")

    @property
    def entry(self) -> Entry:
        return known_methods.method(self.method)

    @property
    def apart(self) -> bool:
        """Whether what a client trains on is decided from its own texts alone."""
        users = self.data.partition == "user" and self.data.splits == "apart"
        return users and self.privacy.placement != "none"

    @property
    def options(self) -> Any:
        """The table of the method itself."""
        return self.own if is_own(self.method) else getattr(self, self.entry.name, Nothing())


def own_names(config: Config) -> list[str]:
    """The things of the user's own that a configuration names: `package.module:NAME`."""
    table = as_table(config)
    named = [table[key]["name"] for key in ("data", "model", "language_model")]
    return [name for name in (config.method, *named) if is_own(name)]


def load(path: Path, settings: Sequence[str] = (), method: str | None = None) -> Config:
    """Read a TOML file, then apply `key=value` settings over it.

    With a `method`, as if the file were one for that method.
    """
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    look_in(path.parent)  # a method of one's own may lie beside the configuration
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        _find_files(table, path.parent)
        return parse(table if method is None else _for_method(table, method), settings)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def _for_method(table: dict[str, Any], method: str) -> dict[str, Any]:
    """Only what is read for it: the file may be another method's."""
    entry = known_methods.method(method)
    kept: dict[str, Any] = {"method": method}
    for name, value in table.items():
        if isinstance(value, dict):
            kept[name] = {k: v for k, v in value.items() if reads.of_kind(entry, f"{name}.{k}")}
        elif name != "method":
            kept[name] = value
    return {name: value for name, value in kept.items() if value != {}}


def loads(text: str, settings: Sequence[str] = ()) -> Config:
    return parse(tomllib.loads(text), settings)


def parse(table: Mapping[str, Any], settings: Sequence[str] = (), find: bool = True) -> Config:
    """What was set and is not read by the method is refused; a file that lexfed wrote itself holds
    every key. `find`: names are looked for where we are; not if somebody else wrote them.
    """
    table = toml.copied(table)
    formats.check(table.pop("format", None), formats.CONFIGURATION, "the configuration")
    resolved = reads.is_resolved(table)
    written = {} if resolved else toml.copied(table)
    if resolved and isinstance(table["data"], dict):  # of before the key was: its users are drawn
        table["data"].setdefault("splits", "together")  # as they were, or it could not go on
    files = table.get("method")
    for setting in settings:
        toml.apply(table, setting)
    if find:
        _find_files(table, Path())
    if table.get("method") != files:
        _leave_own_table(table, files)
    config = None
    keys = [setting.partition("=")[0].strip() for setting in settings]
    if taken := [key for key in keys if key in toml.flat(written)]:  # of the file, and set anew
        config = _read(table)
        back = [key for key in taken if _is_default(config, key)]
        keys = [key for key in keys if key not in back]
    reads.check(_entry(table), written, keys)
    return config or _read(table)


def _is_default(config: Config, key: str) -> bool:
    """Whether a table's key says what it would say if nobody had set it."""
    name, _, last = key.partition(".")
    table = getattr(config, name, None)
    fields = dataclasses.fields(table) if dataclasses.is_dataclass(table) else ()
    return any(one.name == last and getattr(table, last) == one.default for one in fields)


# keys that may name a file
FILES = (
    "data.name", "vocabulary.vectors", "vocabulary.corpus", "fedevocab.vectors", "tokenizer.start",
    "tokenizer.public", "word2vec.start",
)  # fmt: skip


def _find_files(table: dict[str, Any], folder: Path) -> None:
    """Files are looked for beside the configuration, then where we are. What is found is written
    whole, so that the run can be resumed and audited from anywhere.
    """
    for key in FILES:
        name, _, last = key.partition(".")
        inner = table.get(name)
        if not isinstance(inner, dict):
            continue
        value = inner.get(last)
        if isinstance(value, str):
            inner[last] = _found(value, folder)
        elif isinstance(value, list):
            inner[last] = [_found(v, folder) if isinstance(v, str) else v for v in value]


def _found(value: str, folder: Path) -> str:
    path = folder / os.path.expanduser(value)  # a home that is not there stays as it is written
    there = value and value not in CATALOGUE and not is_own(value) and path.exists()
    return str(path.resolve()) if there else value


def _leave_own_table(table: dict[str, Any], method: Any) -> None:
    """Of a file for a method of the user's own, with another method in its place: checked,
    unused.
    """
    if isinstance(method, str) and is_own(method):
        entry = known_methods.method(method)
        toml.read(entry.options, _table(table, entry.name), f"{entry.name}.")


def _entry(table: Mapping[str, Any]) -> Entry:
    return known_methods.method(toml.word(table.get("method", Config.method), "method"))


def changed(config: Config, settings: Sequence[str]) -> Config:
    """The configuration with these settings, which the program makes itself: none of them is
    refused as unread.
    """
    table = tomllib.loads(to_toml(config))
    del table["format"]
    for setting in settings:
        toml.apply(table, setting)
    return _read(table)


def _read(table: dict[str, Any]) -> Config:
    _rename(table)
    entry = _entry(table)
    own_table = table.get(entry.name, {})
    for key, value in entry.defaults(own_table if isinstance(own_table, dict) else {}).items():
        toml.set_if_absent(table, key, value)
    if _sums_are_secure(table):  # then nobody is trusted with who holds which words either
        toml.set_if_absent(table, "agreement.trust", "nobody")
    if isinstance(table.get("data"), dict):
        check_partition(table["data"])
    if not is_own(table.get("method", "")):
        return toml.read(Config, table, "", hidden=("own",))
    if entry.name in Config.__dataclass_fields__:
        raise ConfigError(
            f"a method of your own can't be called '{entry.name}': that is the name of a key"
        )
    toml.check_types(entry.options, f"{entry.name}.")
    own: Any = toml.read(entry.options, _table(table, entry.name), f"{entry.name}.")
    return dataclasses.replace(toml.read(Config, table, "", hidden=("own",)), own=own)


def _sums_are_secure(table: Mapping[str, Any]) -> bool:
    secure = table.get("secure")
    return isinstance(secure, Mapping) and secure.get("sums") is True


def _table(table: dict[str, Any], name: str) -> Mapping[str, Any]:
    """A table, taken out."""
    found = table.pop(name, {})
    if not isinstance(found, Mapping):
        raise ConfigError(f"'{name}' is a table: write [{name}], not {name} = {found!r}")
    return found


def _rename(table: dict[str, Any]) -> None:
    """Keys that lexfed 0.1 wrote under another name."""
    free = table.get("tokenizer_for_free")
    if isinstance(free, dict) and free.keys() & {"heal", "heal_lr"}:
        free.pop("heal_lr", None)
        if free.pop("heal", 0):  # each run before had the key: where it was off, nothing is lost
            raise ConfigError(
                "tokenizer_for_free.heal has become teaching, which is another computation: leave "
                "out heal and heal_lr, and set teach_words"
            )
    privacy = table.get("privacy")
    if isinstance(privacy, dict) and "randomness" in privacy:
        source = privacy.pop("randomness")
        if source == "system":
            table.setdefault("secrets", source)


def as_table(config: Config) -> dict[str, Any]:
    """Every key with its value, as a file would have it."""
    table = dataclasses.asdict(config)
    own = table.pop("own")
    return table | ({config.entry.name: own} if is_own(config.method) else {})


def to_toml(config: Config) -> str:
    """The whole configuration, defaults included: it can be run again."""
    kinds = {field.name: type(getattr(config, field.name)) for field in dataclasses.fields(config)}
    kinds[config.entry.name] = type(config.options)
    table = {
        key: _written(value, kinds[key]) if isinstance(value, dict) else value
        for key, value in as_table(config).items()
    }
    return tomli_w.dumps({"format": formats.CONFIGURATION, **table})


def differences(one: Config, other: Config) -> list[str]:
    """The keys in which two configurations differ, as `table.key`."""
    left, right = toml.flat(as_table(one)), toml.flat(as_table(other))
    return [key for key in {**left, **right} if left.get(key) != right.get(key)]


def fingerprint(table: Mapping[str, Any]) -> str:
    """Of a configuration as its file has it: all that gives a run's state its meaning, so not its
    name and its rounds.

    Of the file, not of what is read from it: a later lexfed that knows more keys finds the same.
    """
    same = {key: value for key, value in table.items() if key != "format"} | {
        "name": "any",
        "rounds": 1,
    }
    return blake2b(tomli_w.dumps(same).encode(), digest_size=16).hexdigest()


def fork_name(table: Mapping[str, Any]) -> str:
    """Of a fork with this configuration: forks that differ in anything but their names have noise
    of their own. In their rounds, too: noise for an epsilon follows from them. It travels, so
    nothing in it hangs from the seed.
    """
    same = {key: value for key, value in table.items() if key not in ("format", "name", "seed")}
    return blake2b(tomli_w.dumps(same).encode(), digest_size=16).hexdigest()


def same_messages(config: Config) -> str:
    """A fingerprint of all that decides which messages are sent: not of how they are scored or
    attacked afterwards.
    """
    table = tomllib.loads(to_toml(config))
    for name in ("audit", "evaluation", "keep"):
        table.pop(name, None)
    return fingerprint(table)


def _written(table: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """As TOML can hold it: what is none is left out, unless something else is the default."""
    usual = {field.name: field.default for field in dataclasses.fields(kind)}
    kept = [key for key, value in table.items() if value is not None or usual[key] is not None]
    return {key: toml.NONE if table[key] is None else table[key] for key in kept}
