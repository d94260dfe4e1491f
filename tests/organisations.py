"""Organisations for tests: keys, desks, and a carrier that brings letters to them without a
network. Where a test wants a simulation's bits, its texts and secrets are put in here.
"""

import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lexfed.core.seeds import derive, public_identity, root
from lexfed.corpus.organisations import Keys
from lexfed.corpus.population import Data, Population
from lexfed.deployment.driving import drive, prepared
from lexfed.experiment import config as configuration
from lexfed.experiment.assembly import assemble
from lexfed.experiment.config import Config
from lexfed.records.rundir import RunDir
from lexfed.runs.launch import Manner
from lexfed.runtime.correspondence import Arrived, Times
from lexfed.runtime.simulation import site_of
from lexfed.runtime.store import Store
from lexfed.secure.identity import Roster, write_identity, write_roster
from lexfed.site import site_log
from lexfed.site.desk import Desk, Joined, Open
from lexfed.site.policy import Policy
from lexfed.site.site_file import Door, SiteFile

SERVER = derive(root(7), "server")
OPENED: list[Desk] = []  # desks whose logs are open
QUICK = Times(patience=120.0, grace=0.3, start=20.0, again=0.0, look=0.0, poll=0.0)


def simulated(config: Config) -> Open:
    """Join with the simulation's own texts and secrets, whatever the terms say of both."""

    def open_with(mine: SiteFile, terms: bytes, folder: Path) -> Joined:
        assembly = assemble(config)
        return Joined(terms, assembly, site_of(assembly, Store(folder / "store")))

    return open_with


def site(folder: Path, me: int, identities: Sequence[bytes], policy: Policy, **more) -> SiteFile:  # type: ignore[no-untyped-def]
    """An organisation with these keys."""
    folder.mkdir(parents=True, exist_ok=True)
    peers = dict(enumerate(map(public_identity, identities)))
    keys = Keys(derive(root(me), "site"), identities[me], derive(root(9), "common"))
    given = {"data": Data(), "door": Door(), **more}
    return SiteFile(
        folder=folder, policy=policy, server=public_identity(SERVER), peers=peers, me=me,
        keys=keys, **given,
    )  # fmt: skip


def desk(mine: SiteFile, open_with: Open | None = None) -> Desk:
    log = site_log.opened(mine.folder / "site.log")
    logging.raiseExceptions = True
    made = Desk(mine, log) if open_with is None else Desk(mine, log, open_with)
    OPENED.append(made)
    return made


@dataclass
class Local:
    """A carrier to desks in this process. `fate` may lose or change what passes."""

    desks: dict[int, Desk]  # by node
    fate: Callable[[int, bytes, bytes, Desk], Arrived | None] | None = None
    arrived: dict[str, Arrived] = field(default_factory=dict)
    tickets: "itertools.count[int]" = field(default_factory=itertools.count)

    def nodes(self) -> Sequence[int]:
        return list(self.desks)

    def send(self, node: int, head: bytes, body: bytes) -> str | None:
        ticket = str(next(self.tickets))
        found = self.desks.get(node)
        if found is None:
            self.arrived[ticket] = Arrived(ticket)
            return ticket
        if self.fate is not None:
            done = self.fate(node, head, body, found)
            if done is not None:
                self.arrived[ticket] = replace(done, ticket=ticket)
                return ticket
        self.arrived[ticket] = Arrived(ticket, *found.answer(head, body))
        return ticket

    def collect(self, tickets: Sequence[str]) -> Sequence[Arrived]:
        return [self.arrived.pop(ticket) for ticket in tickets if ticket in self.arrived]


def server_keys(folder: Path, identities: Sequence[bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_identity(folder / "identity.pem", SERVER)
    clients = dict(enumerate(map(public_identity, identities)))
    write_roster(folder / "peers.json", Roster(clients, public_identity(SERVER)))
    return folder


def identities_of(people: Population) -> list[bytes]:
    return [people.identity_of(client) for client in range(len(people))]


def like_the_simulation(config: Config, folder: Path, times: Times = QUICK) -> RunDir:
    """The run of a simulation's configuration, by letter to one desk for each client."""
    people = assemble(config).population
    identities = identities_of(people)
    policy = Policy(methods=(config.method,), clients=1)
    desks = {
        100 + client: desk(
            site(folder / f"site{client}", client, identities, policy), simulated(config)
        )
        for client in range(len(people))
    }
    run = folder / "run"
    # every client is an organisation: nobody is there only to be scored
    config = configuration.changed(config, ["data.unseen=0"])
    prepared(config, server_keys(folder / "keys", identities), run, times)
    try:
        return drive(Local(desks), run, Manner(quiet=True))
    finally:
        close(desks.values())


def close(desks: Iterable[Desk]) -> None:
    for each in desks:
        for handler in each.log.handlers:
            handler.close()


def close_all() -> None:
    close(OPENED)
    OPENED.clear()


def loaded(path: Path, *settings: str) -> Config:
    return configuration.load(path, settings)
