"""Vocabulary work alone: an agreement in simulation, without training; a vocabulary read from a
file or a run.
"""

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from lexfed.agreement import word_list
from lexfed.agreement.offers import OFFER, read_offers
from lexfed.agreement.organisation import handlers
from lexfed.agreement.preview import Preview, preview
from lexfed.agreement.proposals import DISCLOSE, PROPOSE, listed
from lexfed.agreement.protocol import VOCABULARY, Agreement, agreed
from lexfed.core.errors import CheckpointError, ConfigError, DataError
from lexfed.core.files import require_folder, write_atomically
from lexfed.core.params import ALL_SHARED
from lexfed.core.seeds import Seed, derive, root
from lexfed.corpus import population
from lexfed.experiment.assembly import chance, liars
from lexfed.experiment.config import Config
from lexfed.federation import Federation, Method, ServerState, Steps, tapped
from lexfed.records import checkpoint
from lexfed.records.rundir import RunDir
from lexfed.report.revealed import Revealed, reveal
from lexfed.runtime.simulation import Site, simulate
from lexfed.runtime.store import Store
from lexfed.vocabulary import scan
from lexfed.vocabulary.tables import vectors
from lexfed.vocabulary.word import Vocabulary
from lexfed.wire import ClientId, Message, Verb

PUBLIC = "hashed:1"  # the words of the embedded film reviews


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
        return (yield from agreed(federation, state, options, seed, old))

    said = Said(options)
    with tempfile.TemporaryDirectory(prefix="lexfed-") as folder:
        site = Site(
            Method(handlers(options), server, ALL_SHARED, rounds=0),
            people,
            Store(Path(folder)),
            (*liars(config, people), *chance(config, people)),
        )
        federation = tapped(simulate(site), up=said.note)
        *_, state = server(federation, derive(root(config.seed), "server"), ServerState())
    vocabulary = word_list.from_bytes(state.blobs[VOCABULARY])
    counts = [
        scan.count(people.client(k).train, longest=options.longest) for k in range(len(people))
    ]
    revealed = reveal(vocabulary, counts, options, said.proposed, said.in_the_clear())
    return Outcome(vocabulary, state, replace(revealed, names=people.names))


@dataclass(frozen=True)
class Foreseen:
    previews: list[Preview]
    public: int  # words of the public list that they are held against
    names: tuple[str, ...]  # of the organisations, where the data has some


def foresee(config: Config) -> Foreseen:
    """What each organisation would reveal, from its own text alone."""
    people = population.build(config.data, derive(root(config.seed), "data"))
    public = vectors.load(config.vocabulary.vectors or PUBLIC).words
    clients = map(people.client, range(len(people)))
    previews = [preview(client, config.agreement, public) for client in clients]
    return Foreseen(previews, len(public), people.names)


@dataclass
class Said:
    """What the server was told, from the messages themselves."""

    options: Agreement
    proposed: dict[ClientId, int] = field(default_factory=dict)
    told: dict[ClientId, set[str]] = field(default_factory=dict)
    offers: dict[ClientId, Message] = field(default_factory=dict)

    def note(self, verb: Verb, client: ClientId, request: Message, reply: Message) -> None:
        if verb is OFFER:
            self.proposed[client] = len(reply.arrays["tags"])
            self.offers[client] = reply
            return
        words = listed(reply.blobs.get("words", b""))
        self.told.setdefault(client, set()).update(name.decode() for name in words)
        if verb in (PROPOSE, DISCLOSE):
            self.proposed[client] = max(
                self.proposed.get(client, 0), len(reply.arrays.get("hashes", words))
            )

    def in_the_clear(self) -> dict[ClientId, set[str]]:
        """Each organisation's words that came so, or that the server can open."""
        opened = read_offers(self.offers, self.options.terms)
        told = {client: set(words) for client, words in self.told.items()}
        for client, numbers in opened.numbers.items():
            told.setdefault(client, set()).update(opened.words[tag] for tag in numbers)
        return told


def read(path: Path) -> Vocabulary:
    """The vocabulary of a file that `write` made, or of a run directory."""
    if not path.exists():
        raise ConfigError(f"there is no file {path}")
    if not path.is_dir():
        return word_list.from_bytes(path.read_bytes(), str(path))
    return _of_run(RunDir(path))


def _of_run(run: RunDir) -> Vocabulary:
    finished = run.artifacts / "vocabulary.json"
    if finished.is_file():
        return word_list.from_bytes(finished.read_bytes(), str(finished))
    try:
        kept = checkpoint.load(run.checkpoint).state.blobs.get(VOCABULARY, b"")
    except CheckpointError:
        kept = b""
    if kept:
        return word_list.from_bytes(kept, str(run.checkpoint))
    plain = run.artifacts / "vocabulary.txt"  # of a run whose words were not agreed on but given
    if not plain.is_file():
        raise DataError(f"{run.path} holds no common vocabulary")
    tokens = tuple(plain.read_text(encoding="utf-8").split("\n")[:-1])
    return Vocabulary(tokens, (0,) * len(tokens))


def check_target(path: Path) -> None:
    require_folder(path)
    if path.exists():
        raise ConfigError(
            f"{path} exists already, and others may count on its ids; choose another --out"
        )


def write(path: Path, vocabulary: Vocabulary) -> None:
    write_atomically(path, word_list.to_bytes(vocabulary))
