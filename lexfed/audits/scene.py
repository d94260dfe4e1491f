"""What is attacked: uploads as a configuration makes them, the public files beside them, and the
truth for scoring.
"""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from lexfed.audits import secure_view
from lexfed.audits.closed_form import front_ends
from lexfed.audits.closed_form import phrases as canaries
from lexfed.audits.closed_form.attackers import Public
from lexfed.audits.closed_form.front_ends import FrontEnd
from lexfed.audits.score import Cell
from lexfed.audits.transcript import Recorded
from lexfed.audits.uploads import Upload, uploads
from lexfed.core.errors import ConfigError
from lexfed.core.seeds import derive, root
from lexfed.corpus.population import Client, Population
from lexfed.experiment.assembly import Assembly
from lexfed.experiment.config import Config
from lexfed.federation import Federation, ServerState, plain, tapped
from lexfed.runtime.simulation import simulate, site_of
from lexfed.runtime.store import Store
from lexfed.vocabulary.splitting import words
from lexfed.vocabulary.tables import vectors
from lexfed.vocabulary.tables.one_position import brought_to, joined
from lexfed.vocabulary.tables.rotation import rotated
from lexfed.vocabulary.tables.vectors import PublicTable
from lexfed.wire import ClientId, Message, Verb


@dataclass(frozen=True)
class Scene:
    """What is attacked, and the truth it is scored with."""

    about: Mapping[str, Any]
    assembly: Assembly
    uploads: Sequence[Upload]
    # with all their texts: the sentences that are not the client's come from here
    everyone: Population
    # what organisations and server said to come to one word list
    agreement: Sequence[Recorded] = ()
    # phrases that were planted, by client
    canaries: Mapping[ClientId, str] = field(default_factory=dict)

    def client(self, upload: Upload) -> Client:
        """Who sent it; of a sum, all of them as one."""
        people = self.assembly.population
        return people.together(upload.cohort) if upload.cohort else people.client(upload.client)

    def show(self, cell: Cell, client: Client, read: Sequence[str]) -> None:
        """Keep a client's texts, as far as it reads them, beside the words that were guessed: if
        somebody asked for examples.
        """
        config = self.assembly.config
        if len(cell.examples) < config.audit.examples:
            texts = [" ".join(words(text)[: config.train.max_length]) for text in client.train]
            cell.examples.append({"texts": texts[:2], "read": list(read)})

    @cached_property
    def public(self) -> Public:
        """The files that every attacker has."""
        config, shared = self.assembly.config, self.assembly.tokenizer
        tokens = () if shared is None else tuple(shared.vocabulary.tokens)
        tables = public_tables(config)
        if not tables:
            return Public(tokens=tokens)
        # as clients have it: whitening is that of these words
        if getattr(config.options, "vocabulary", "") == "public":
            tables = [table.head(config.vocabulary.size - 1) for table in tables]
        # whoever has a table can whiten it
        seen = [rotated(table, None, whiten=config.defences.whiten) for table in tables]
        known = joined(seen, config.audit.candidates)
        return Public(known.words, torch.from_numpy(known.vectors), tokens)

    @cached_property
    def front_end(self) -> FrontEnd | None:
        return front_ends.build(self.assembly, self.public)

    @property
    def repeated(self) -> list[list[Upload]]:
        """All uploads of each client that sent more than one."""
        by_client: dict[tuple[ClientId, ...], list[Upload]] = {}
        for upload in self.uploads:
            by_client.setdefault((upload.client, *upload.cohort), []).append(upload)
        return [several for several in by_client.values() if len(several) > 1]


def public_tables(config: Config) -> list[PublicTable]:
    """The files that clients started from: those of their own choice, or everybody's. Tables in one
    position are read together.
    """
    choices = getattr(config.options, "vectors", ()) if config.entry.has("own words") else ()
    names = list(dict.fromkeys(name for name in choices if name != "random"))
    if not choices and config.vocabulary.vectors is not None:
        names = [config.vocabulary.vectors]
    tables = [vectors.load(name) for name in names]
    if getattr(config.options, "align", False):
        return [tables[0], *(brought_to(tables[0], other) for other in tables[1:])]
    if len(tables) > 1:
        raise ConfigError(
            "an audit reads one public table: name one in fedevocab.vectors, and audit the others "
            "in turn"
        )
    return tables


@dataclass(frozen=True)
class Findings:
    """Of one scene, a cell for every attack and attacker."""

    about: Mapping[str, Any]
    seed: int
    cells: dict[tuple[Any, ...], Cell] = field(default_factory=dict)

    def cell(self, attack: str, attacker: str | None, **more: Any) -> Cell:
        about = {"attack": attack, "attacker": attacker, **self.about, **more}
        one = self.cells.setdefault(tuple(about.values()), Cell(about))
        one.seeds.add(self.seed)
        return one

    def not_run(self, attack: str, why: str) -> None:
        """Said instead of a figure: who reads of no leak must know what was tried."""
        self.cell(attack, None, not_run=why)


Figures = Mapping[str, float | None]
Attack = Callable[[Scene, Findings], None]


def timed(cell: Cell, work: Callable[[], Figures | None]) -> None:
    """Do it, and write down what it found: None where there was nothing to read."""
    started = time.perf_counter()
    figures = work()
    cell.seconds += time.perf_counter() - started
    if figures is None:
        cell.nothing += 1
    else:
        cell.figures.append(figures)


def act(about: Mapping[str, Any], assembly: Assembly) -> list[Scene]:
    """Run the first rounds for real, and keep what crossed the wire."""
    torch.set_num_threads(1)
    config = assembly.config
    everyone, sentences = assembly.population, about["sentences"]
    people = everyone if sentences is None else everyone.trimmed(sentences)
    if config.audit.canaries > len(everyone):
        raise ConfigError(
            f"audit.canaries is {config.audit.canaries}, but there are {len(everyone)} clients; "
            "lower it"
        )
    phrases = canaries.phrases(config)
    assembly = replace(assembly, population=canaries.planted(people, phrases))
    heard: list[Recorded] = []
    with tempfile.TemporaryDirectory() as folder:
        site = site_of(assembly, Store(Path(folder)))
        listen = (
            partial(secure_view.listened, config.secure, site.population.pinned)
            if config.secure.sums
            else listened
        )
        federation = _asked(config, listen(simulate(site), heard))
        server = assembly.method.server(
            federation, derive(root(config.seed), "server"), ServerState()
        )
        for state in server:
            if state.round >= config.audit.rounds:
                break
    return [
        replace(scene, everyone=everyone, canaries=phrases)
        for scene in seen(about, assembly, heard, config.audit.clients)
    ]


def seen(
    about: Mapping[str, Any],
    assembly: Assembly,
    messages: Sequence[Recorded],
    clients: int | None = None,
) -> list[Scene]:
    """What these messages show; of so many clients, if not of all. Where sums are secure, the
    masked uploads and the sums are two scenes.
    """
    lists = [one for one in messages if one.verb.kind == "list"]
    views: dict[str | None, list[Upload]] = {}
    if assembly.config.secure.sums:
        views = secure_view.views(messages, assembly)
    else:
        views[None] = list(uploads(messages))
    scenes = []
    for sees, found in views.items():
        attacked = set(list(dict.fromkeys(upload.client for upload in found))[:clients])
        some = [upload for upload in found if upload.client in attacked]
        told = about if sees is None else {**about, "sees": sees}
        scenes.append(Scene(told, assembly, some, assembly.population, lists))
    return scenes


def _asked(config: Config, federation: Federation) -> Federation:
    """Several rounds are those of the same clients, and who has a canary is asked: nobody else
    takes part then.

    All organisations that are to agree on a word list do take part, whatever is attacked.
    """
    again = (
        config.audit.rounds > 1 or config.audit.canaries
    ) and config.cohort.sampling != "everyone"
    groups = getattr(config.options, "groups", 1)  # rounds are held with one of them at a time
    some = config.audit.clients * groups
    return replace(federation, clients=federation.clients[:some]) if again else federation


def listened(federation: Federation, heard: list[Recorded]) -> Federation:
    """Sums are made of replies that pass this tap too."""

    def note(verb: Verb, client: ClientId, request: Message, reply: Message) -> None:
        clock = (int(request.meta["round"]), int(request.meta["step"]), int(request.meta["ask"]))
        heard.append(Recorded(*clock, client, "down", verb, request))
        heard.append(Recorded(*clock, client, "up", verb, reply))

    tap = tapped(federation, up=note)
    return replace(tap, total=plain(tap.ask))
