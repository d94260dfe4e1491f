"""Vocabulary work alone: an agreement in simulation, without training; a vocabulary read from a file or a run."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from lexfed import checkpoint
from lexfed.assembly import Assembly
from lexfed.config import Config
from lexfed.corpus import population
from lexfed.errors import CheckpointError, ConfigError, DataError
from lexfed.federation import Federation, Method, Requests, ServerState, Steps, once
from lexfed.files import write_atomically
from lexfed.methods.agreement import agree, handlers
from lexfed.methods.proposals import listed
from lexfed.params import ALL_SHARED
from lexfed.report.vocabulary import Revealed, reveal
from lexfed.rundir import RunDir
from lexfed.runtime.simulation import Site, simulate
from lexfed.runtime.store import Store
from lexfed.seeds import Seed, derive, root
from lexfed.vocabulary import agreed, scan, word
from lexfed.vocabulary.word import Vocabulary, WordTokenizer
from lexfed.wire import ClientId, Message, Verb


@dataclass(frozen=True)
class Outcome:
    vocabulary: Vocabulary
    state: ServerState
    revealed: Revealed


def run(config: Config, old: Vocabulary | None = None) -> Outcome:
    """Agree as the configuration says, and find out what each organisation gave away."""
    options = config.agreement
    people = population.build(config.data, derive(root(config.seed), "data"))

    def server(federation: Federation, seed: Seed, state: ServerState) -> Steps:
        return (yield from once(state, "agree", lambda s: agree(federation, s, options, seed, old)))

    method = Method(handlers(options), server, ALL_SHARED, rounds=0)
    assembly = Assembly(config, people, method, WordTokenizer(word.of_list((), size=1)))
    heard = Heard()
    with tempfile.TemporaryDirectory(prefix="lexfed-") as folder:
        federation = heard.layer(simulate(Site(assembly, Store(Path(folder)))))
        (state,) = server(federation, derive(root(config.seed), "server"), ServerState())
    vocabulary = agreed.from_bytes(state.vocabulary)
    counts = [scan.count(people.client(k).train, longest=options.longest) for k in range(len(people))]
    return Outcome(vocabulary, state, reveal(vocabulary, counts, options, heard.proposed, heard.told))


@dataclass
class Heard:
    """What the server was told, from the messages themselves."""

    proposed: dict[ClientId, int] = field(default_factory=dict)
    told: dict[ClientId, set[str]] = field(default_factory=dict)

    def layer(self, federation: Federation) -> Federation:
        def ask(verb: Verb, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
            for client, reply in federation.ask(verb, requests):
                self._note(verb, client, reply)
                yield client, reply

        return replace(federation, ask=ask)

    def _note(self, verb: Verb, client: ClientId, reply: Message) -> None:
        words = listed(reply.blobs.get("words", b""))
        self.told.setdefault(client, set()).update(name.decode() for name in words)
        if verb != "spell":
            self.proposed[client] = max(self.proposed.get(client, 0), len(reply.arrays.get("hashes", words)))


def read(path: Path) -> Vocabulary:
    """The vocabulary of a file that `write` made, or of a run directory."""
    if not path.exists():
        raise ConfigError(f"there is no file {path}")
    if not path.is_dir():
        return agreed.from_bytes(path.read_bytes(), str(path))
    return _of_run(RunDir(path))


def _of_run(run: RunDir) -> Vocabulary:
    finished = run.artifacts / "vocabulary.json"
    if finished.is_file():
        return agreed.from_bytes(finished.read_bytes(), str(finished))
    try:
        kept = checkpoint.load(run.checkpoint).state.vocabulary
    except CheckpointError:
        kept = b""
    if kept:
        return agreed.from_bytes(kept, str(run.checkpoint))
    plain = run.artifacts / "vocabulary.txt"  # of a run whose words were not agreed on but given
    if not plain.is_file():
        raise DataError(f"{run.path} holds no vocabulary that all know")
    tokens = tuple(plain.read_text(encoding="utf-8").split("\n")[:-1])
    return Vocabulary(tokens, (0,) * len(tokens))


def refuse_existing(path: Path | None) -> None:
    if path is not None and path.exists():
        raise ConfigError(f"{path} exists already, and others may count on its ids; choose another --out")


def write(path: Path, vocabulary: Vocabulary) -> None:
    write_atomically(path, agreed.to_bytes(vocabulary))
