"""The whole account of a run or a configuration: what is released, to whom, whether it is charged,
what is promised, and what would make it stronger.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lexfed.core.errors import ConfigError
from lexfed.core.figures import counted
from lexfed.experiment import config as configuration
from lexfed.experiment.assembly import Assembly, assemble
from lexfed.experiment.config import Config
from lexfed.privacy import accounting
from lexfed.privacy.accounting import Bare, Ledger, Release
from lexfed.privacy.planning import sound_delta
from lexfed.privacy.promise import Promise, Statement
from lexfed.records import checkpoint
from lexfed.records.rundir import RunDir

TO_WHOM = {
    "public": "who gets the model",
    "server": "the server (sums alone), and who gets the model",
    "everybody": "the server, and who gets the model",
}
HEADS = ["released", "to whom", "times", "charged", "epsilon, alone (RDP)"]


@dataclass(frozen=True)
class Account:
    title: str
    rows: Sequence[Sequence[str]]
    statement: Statement | None  # None: the configuration promises nothing
    advice: Sequence[str]


def of(path: Path, settings: Sequence[str] = ()) -> Account:
    """Of a run directory: what it has released. Of a configuration: what it will have at its
    end.
    """
    if not path.is_dir():
        return _of(assemble(configuration.load(path, settings)), None, f"{path}, at its end")
    if settings:
        raise ConfigError("--set changes a configuration, not a run that was made")
    directory = RunDir(path)
    if not directory.config_file.is_file():
        raise ConfigError(f"{path} is not a run directory (no config.toml)")
    state = checkpoint.load(directory.checkpoint).state
    directory.check_ledger(state)
    title = f"{path}, after {counted(state.round, 'round')}"
    return _of(assemble(directory.config()), (state.ledger, state.forks), title)


def _of(assembly: Assembly, past: tuple[Ledger, Sequence[str]] | None, title: str) -> Account:
    config, promise = assembly.config, assembly.promise
    ledger, forks = past or (assembly.planned(), ())
    statement = None if promise is None else promise.statement(ledger, forks)
    delta = config.agreement.delta if promise is None else promise.delta
    unit = "user" if promise is None else promise.unit
    return Account(
        title,
        [*(_row(release, delta, unit) for release in ledger), *_beside(assembly)],
        statement,
        list(_advice(config, promise, statement)),
    )


def _row(release: Release, delta: float, unit: str) -> list[str]:
    bare = isinstance(release.event, Bare)
    cost = "none" if bare else _epsilon(release, delta, unit)
    what = release.what or "noisy sums"
    group = f" ({release.group})" if release.group else ""
    times = f"{release.count:,}"
    return [f"{what}{group}", TO_WHOM[release.against], times, "no" if bare else "yes", cost]


def _epsilon(release: Release, delta: float, unit: str) -> str:
    """`unit`: what a user is here."""
    value = accounting.epsilon((replace(release, group=""),), release.unit, delta, "rdp")
    return f"{value:.3g} per {unit if release.unit == 'user' else release.unit}"


def _beside(assembly: Assembly) -> list[list[str]]:
    """What is told without noise, and is no entry of the ledger."""
    rows = []
    if assembly.tokenizer is not None:
        rows.append(["the word list", "all clients and the server", "1", "no", "–"])
    if assembly.scored:
        who = "the experimenter of this simulation"
        rows.append(["figures of evaluation", who, "", "no", "–"])
    return rows


def _advice(config: Config, promise: Promise | None, statement: Statement | None) -> "list[str]":
    if promise is None or statement is None:
        return ["set [privacy]: without noise nothing is promised to anybody"]
    lines = []
    if any("word list" in taint for taint in statement.taints):
        lines.append(
            "take the word list from public text (vocabulary.corpus) or a public table "
            "(vocabulary.vectors)"
        )
    if any("tokenizer" in taint for taint in statement.taints):
        lines.append("learn the tokenizer from public text that is not the users' own")
    if config.privacy.placement == "central":
        lines.append(
            "privacy.placement = 'distributed' within secure sums would hold against the server "
            "too; 'local' without them, for more noise"
        )
    users = config.privacy.population or config.data.clients
    if config.privacy.delta > sound_delta(users):
        lines.append(
            f"privacy.delta = {config.privacy.delta:g} is large for {users:,} users: choose one "
            f"below {sound_delta(users):.0e}"
        )
    if config.secrets == "seed":
        lines.append(
            "this is a simulation: who has the seed can take the noise off again. In a deployment "
            "set secrets = 'system'"
        )
    return lines
