"""A run, opened to be used: the model it released, its clients, and what they keep. Nothing is
written.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from lexfed.core.errors import CheckpointError, ConfigError, nearest
from lexfed.core.seeds import fresh
from lexfed.corpus.population import Client, Population
from lexfed.experiment.assembly import Assembly, assemble
from lexfed.federation import ClientState, ServerState
from lexfed.federation.server_optimizer import released
from lexfed.records import checkpoint
from lexfed.records.rundir import RunDir
from lexfed.runtime.store import SECRET, Store
from lexfed.site import site_file
from lexfed.site.desk import joined

Who = int | str  # a client's number, or its name
ASK = 1  # the number of the ask in which a run scores its clients: what is used is what was scored


def directory_of(path: Path) -> RunDir:
    directory = RunDir(path)
    if not directory.config_file.is_file():
        raise ConfigError(f"{path} is not a run directory (no config.toml)")
    return directory


def state_of(directory: RunDir, folder: Path | None = None) -> ServerState:
    """The state at the run's end, or of another checkpoint of it, with the model that is given
    away.
    """
    kept = checkpoint.load(folder or directory.checkpoint)
    if kept.experiment != directory.fingerprint():
        raise CheckpointError(
            f"the checkpoint in {folder or directory.checkpoint} is of another run"
        )
    return replace(kept.state, params=released(kept.state.params, kept.state.opt_state))


@dataclass(frozen=True)
class Opened:
    directory: RunDir
    assembly: Assembly
    state: ServerState
    # of a run between organisations: the one whose folder was named, and where its state lies
    me: int | None = None
    store: Path | None = None

    @property
    def people(self) -> Population:
        return self.assembly.population

    @property
    def clients(self) -> int:
        """Those who trained, and those who never did."""
        return len(self.people) + self.people.unseen

    def client(self, number: int) -> tuple[Client, ClientState]:
        """A client, and what it keeps."""
        if not 0 <= number < self.clients:
            raise ConfigError(f"there is no client {number}: they are numbered {self.numbers()}")
        if self.me is not None and number != self.me:
            raise ConfigError(f"this site is client {self.me}: it has nothing of the others")
        store, people = Store(self.store or self.directory.clients), self.people
        if self.assembly.config.secrets == "system":  # who predicts must not make a new one
            if not (store.root / SECRET).is_file():
                where = "; name an organisation's folder with --site" if not people.here else ""
                raise CheckpointError(f"{store.root} does not hold the clients' secret{where}")
            people = replace(people, secret=store.secret())
        return people.client(number), store.load(number, (self.state.step, ASK))

    def number(self, who: "Who | None") -> int | None:
        """The client that is meant: by its number, or by the name that the data has for it."""
        if who is None:
            return self.me
        names, word = self.people.names, str(who)
        if word.isdecimal() and int(word) < self.clients:
            return int(word)
        if word in names:
            return names.index(word)
        close = f"; {nearest(word, names)}" if names else ""
        raise ConfigError(f"there is no client {who}: they are numbered {self.numbers()}{close}")

    def called(self, client: int | None) -> str:
        """The name that the data has for it, as it stands behind its number."""
        names = self.people.names
        return f" ({names[client]})" if names and client is not None else ""

    def newcomer(self) -> tuple[Client, ClientState]:
        """Somebody who never took part, and has no texts."""
        real = self.assembly.config.secrets == "system"
        people = replace(self.people, secret=fresh()) if real else self.people
        return people.newcomer(), ClientState()

    def numbers(self) -> str:
        return f"0 to {self.clients - 1}" if self.clients > 1 else "0"


def opened(path: Path, site: Path | None = None) -> Opened:
    """`site`: an organisation's folder, for a run between organisations: its own part of it."""
    directory = directory_of(path)
    state = state_of(directory)
    if site is not None:
        return _at_home(directory, state, site)
    return Opened(directory, assemble(directory.config()), state)


def _at_home(directory: RunDir, state: ServerState, site: Path) -> Opened:
    """With the organisation's own texts and table, under the terms that it joined."""
    mine = site_file.load(site if site.suffix == ".toml" else site / "site.toml")
    folder = mine.folder / "federations" / directory.federation()
    if not (folder / "terms.toml").is_file():
        raise ConfigError(f"{site} did not take part in {directory.path}")
    found = joined(mine, (folder / "terms.toml").read_bytes(), folder)
    return Opened(directory, found.assembly, state, mine.me, folder / "store")
