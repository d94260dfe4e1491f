"""A method is two halves: handlers by verb on the client, a generator on the server. An entry gives
it its name.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Protocol

from lexfed.core.errors import ConfigError, WireError, nearest
from lexfed.core.params import ParameterSplit
from lexfed.core.seeds import Seed
from lexfed.corpus.population import Client, Population
from lexfed.federation.state import ClientState, ServerState, Steps
from lexfed.federation.sums import Federation
from lexfed.privacy.accounting import Ledger
from lexfed.wire import Message, Verb

# A reply of None: the client does not answer. A state that comes back as the same object is not
# written again.
Answer = tuple[Message | None, ClientState]
Handler = Callable[[Message, Client, ClientState], Answer]
Layer = Callable[[Verb, Handler], Handler]  # put around every handler of a method
ServerProgram = Callable[[Federation, Seed, ServerState], Steps]


class Study(Protocol):
    """What an experimenter does with a method's states: score them, write them down, sum them
    up.
    """

    def score(self, federation: Federation, state: ServerState, last: bool) -> Mapping[str, Any]:
        """Figures of a state; at the last round all of them, on the way what is cheap."""

    def due(self, state: ServerState) -> bool:
        """Whether all figures of this state are wanted, though it is not the last (a switch of the
        tokenizer).
        """

    def artifacts(self, state: ServerState, folder: Path) -> None:
        """What the run leaves for others to use."""

    def summary(self, records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Figures of all records together."""


@dataclass(frozen=True)
class Method:
    """Client half, server half, the names that may never travel, and how many rounds there are."""

    client: Mapping[Verb, Handler]
    server: ServerProgram
    split: ParameterSplit  # ALL_SHARED: nothing is private; nobody should forget to say so
    rounds: int
    study: Study | None = None  # default: that of the method's kind
    # what its ledger will hold at its end; default: a release a round, of all clients
    planned: Callable[[], Ledger] | None = None
    # why training from a state on is of no use, as far as the server itself can see; None: it is
    diverged: Callable[[ServerState], str | None] | None = None
    # what comes next and is no round, in words, where it takes long; None: nothing of that kind
    ahead: Callable[[ServerState], str | None] | None = None
    # what the server has done by itself from one state to the next, in words, for who looks on
    happened: Callable[[ServerState, ServerState], str | None] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.client, Mapping) or not all(
            isinstance(verb, Verb) and callable(handler) for verb, handler in self.client.items()
        ):
            raise ConfigError("Method.client must be a dict: a handler for each lexfed.Verb")
        names = [verb.name for verb in self.client]
        if len(set(names)) < len(names):
            raise ConfigError(f"two verbs of a method have one name: {', '.join(sorted(names))}")
        if not callable(self.server):
            raise ConfigError(
                "Method.server must be a generator function of (federation, seed, state)"
            )
        if not isinstance(self.split, ParameterSplit):
            raise ConfigError(
                "Method.split must be a ParameterSplit: ALL_SHARED if nothing is private"
            )
        if type(self.rounds) is not int or self.rounds < 0:
            raise ConfigError(f"Method.rounds must be a whole number, not {self.rounds!r}")

    def verb(self, name: str) -> Verb:
        """The verb of this name: what crosses a process border is its name."""
        for verb in self.client:
            if verb.name == name:
                return verb
        raise WireError(f"unknown verb '{name}'")


# What is true of a method, and decides what can be done with it.
TRAITS: Mapping[str, str] = {
    "own words": "clients keep their words and word tables: there is no common word list",
    "alone": (
        "nothing is averaged that noise, defences or robust rules could work on; everyone takes "
        "part"
    ),
    "pooled": "one client holds everybody's text",
    "one model": "all clients use the very model that is released",
    "part of the texts": "an upload speaks of some of the client's texts, and nobody is told which",
    "self-audit": "clients can attack their own uploads before they send them",
    "counts epochs": "its rounds are epochs of its own table, so a resumed run can't have more",
    "word list": "organisations agree on a word list first",
    "rows": (
        "uploads are rows of tables, of which every round makes its share: they have no median, "
        "and no noise per user"
    ),
    "threads": "its handlers hold no lock and share memory: workers are threads, not processes",
}
Trait = Literal[
    "own words", "alone", "pooled", "one model", "part of the texts", "self-audit",
    "counts epochs", "word list", "rows", "threads",
]  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """What methods of one kind are built from, and which keys of the common tables are read for
    them.

    `parts(tables, people, entry)` turns tables into what `Entry.build` takes; it may replace the
    population (`parts.people`), and brings the kind's study (`parts.study`) and promise
    (`parts.promise`), and the names of the model's parameters (`parts.names`).
    """

    name: str
    parts: Callable[[Any, Population, "Entry"], Any]
    reads: tuple[str, ...]  # "table", or "table.key"
    labels: bool = False  # texts have labels, which are learned
    # its parts have a task whose `device` says where clients compute; else that is the CPU
    on_devices: bool = False
    # why a table or key that is not read can't be used here
    tells: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Nothing:
    """The table of a method that has no options."""


def _none_of_its_own(table: Mapping[str, Any]) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True)
class Entry:
    """A method as a configuration names it: `method = "name"`, or `method =
    "package.module:METHOD"` for one's own.
    """

    name: str  # also of its own table
    kind: Kind
    build: Callable[[Any, Any], Method]  # parts, options
    options: type = Nothing
    traits: frozenset[Trait] = frozenset()
    ignores: tuple[str, ...] = ()  # keys that its kind reads and this method does not
    # of keys that nobody set, by what its own table says: {"train.epochs": 2}
    defaults: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _none_of_its_own

    def __post_init__(self) -> None:
        """What can't be meant is refused where it is written."""
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise ConfigError(
                f"a method's name is a plain word, also of its table, not {self.name!r}"
            )
        if not isinstance(self.kind, Kind):
            raise ConfigError(
                f"the kind of method '{self.name}' must be lexfed.CLASSIFIER or another Kind, not "
                f"{self.kind!r}"
            )
        if not callable(self.build):
            raise ConfigError(
                f"the build of method '{self.name}' must be a function of (parts, options)"
            )
        _check_options(self.name, self.options)
        _check_traits(self.name, self.traits)

    def has(self, trait: Trait) -> bool:
        return trait in self.traits


def _check_options(method: str, kind: object) -> None:
    frozen = getattr(kind, "__dataclass_params__", None)
    if not isinstance(kind, type) or frozen is None or not frozen.frozen:
        what = kind.__name__ if isinstance(kind, type) else repr(kind)
        raise ConfigError(
            f"the options of method '{method}' must be a frozen dataclass: write "
            f"@dataclass(frozen=True) above class {what}"
        )
    for key in fields(kind):
        if key.default is MISSING and key.default_factory is MISSING:
            raise ConfigError(f"{method}.{key.name} has no default: every key of a table has one")


def _check_traits(method: str, traits: object) -> None:
    if not isinstance(traits, Set):
        raise ConfigError(
            f"the traits of method '{method}' must be a set, such as frozenset({{\"own words\"}}), "
            f"not {traits!r}"
        )
    for trait in traits:
        if trait not in TRAITS:
            raise ConfigError(
                f"method '{method}' has an unknown trait '{trait}'; {nearest(str(trait), TRAITS)}"
            )
