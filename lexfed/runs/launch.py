"""Starting, resuming and forking runs: everything is checked first, and only then is anything
written.
"""

import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from lexfed.core import devices
from lexfed.core.errors import CheckpointError, ConfigError, DivergedError, WorkerDied
from lexfed.core.figures import counted, human
from lexfed.core.importing import SCRIPT
from lexfed.corpus.population import Population
from lexfed.experiment import config
from lexfed.experiment.assembly import Assembly, assemble
from lexfed.experiment.config import Config
from lexfed.federation import Federation, ServerState
from lexfed.privacy.promise import inherited
from lexfed.records import checkpoint, rundir
from lexfed.records.checkpoint import Checkpoint
from lexfed.records.rundir import RunDir
from lexfed.report import page, progress
from lexfed.report import tensorboard as events
from lexfed.runs import hints
from lexfed.runs.session import Run, execute, scored_clients
from lexfed.runtime import ray_cluster
from lexfed.runtime.recording import Recorder
from lexfed.runtime.store import Store

# what gives a state its meaning, beside what a table itself calls `lasting`
STATE_TABLES = ("data", "vocabulary", "model", "tokenizer", "language_model")


@dataclass(frozen=True)
class Manner:
    """What changes no result; a device the last bits of it."""

    workers: int = 0
    record_wire: Path | None = None
    tensorboard: bool = False
    quiet: bool = False  # nothing is printed
    device: str = "cpu"  # where clients compute
    ray: str | None = None  # the address of a cluster whose nodes do the work
    live: bool = False  # the page is shown on loopback while the run goes on


@dataclass(frozen=True)
class Elsewhere:
    """The clients of a deployment: as the server knows them, and what answers for them."""

    people: Population
    federation: Federation


def start(
    path: Path, settings: Sequence[str], out: Path | None, source: Path | None, manner: Manner
) -> RunDir:
    """A new run of a configuration file, or a fork of another run's checkpoint."""
    if path.is_dir():
        raise ConfigError(f"{path} is a directory; to go on with a run: lexfed run {path} --resume")
    return begin(config.load(path, settings), out, source, manner)


def begin(parsed: Config, out: Path | None, source: Path | None, manner: Manner) -> RunDir:
    out = out or rundir.default_path(parsed)
    _refuse_existing(out, manner)
    ours = [path for path in (out, manner.record_wire) if path is not None and not path.exists()]
    _check_manner(parsed, manner)
    # everything that can be wrong with the input shows here
    assembly = assemble(parsed, device=_device(parsed, manner))
    if manner.record_wire is not None:
        _begin_wire(manner.record_wire, parsed)
    kept = _fork(source, assembly, out) if source is not None else None
    if kept is None:
        rundir.create(out, parsed)
    run = Run(assembly, RunDir(out), kept, manner.workers, manner.record_wire, ray=manner.ray)
    with run.directory.lock():
        try:
            return _run(run, manner)
        # the machine's fault: it can go on from here
        except (WorkerDied, OSError, MemoryError, torch.cuda.OutOfMemoryError):
            raise
        except DivergedError:  # all that there is to see is written down
            raise
        except Exception:  # the method's: who mends it starts again, with the same --out
            if _is_empty_handed(run):
                for folder in filter(None, (out, manner.record_wire)):
                    rundir.take_away(folder, whole=folder in ours)
            raise


def _is_empty_handed(run: Run) -> bool:
    """Whether no round was finished, and nothing was released that a ledger must remember."""
    if not (run.directory.checkpoint / checkpoint.MANIFEST).exists():
        return True
    before = run.start.state if run.start is not None else ServerState()
    now = checkpoint.load(run.directory.checkpoint).state
    return now.round == before.round and now.ledger == before.ledger


def _check_manner(parsed: Config, manner: Manner) -> None:
    if manner.tensorboard:
        events.require()
    if manner.ray is not None:
        _check_ray(parsed, manner)
    threads = parsed.entry.has("threads")
    elsewhere = "nodes" if manner.ray is not None else "workers" if manner.workers else ""
    # what is defined in the script that runs, no other process can import
    mine = [name for name in config.own_names(parsed) if name.startswith(f"{SCRIPT}:")]
    if elsewhere and mine and not threads:
        raise ConfigError(
            f"{elsewhere} can't import '{mine[0]}' from the script; put it into a file of its own "
            f"and import it, or leave out the {elsewhere}"
        )


def _device(parsed: Config, manner: Manner) -> torch.device:
    """Where this run's clients compute."""
    if manner.ray is not None:  # the nodes have none, and one place is enough
        return devices.CPU
    kind = parsed.entry.kind
    if kind.on_devices:
        return devices.chosen(manner.device)
    if manner.device not in ("cpu", "auto"):
        raise ConfigError(
            f"--device {manner.device}: {kind.name} are trained on the CPU; leave out --device"
        )
    return devices.CPU


def _check_ray(parsed: Config, manner: Manner) -> None:
    if manner.workers:
        raise ConfigError("--ray and --workers are two answers to one question: leave one out")
    if manner.device not in ("cpu", "auto"):
        raise ConfigError("the nodes of a Ray cluster compute on their processors: leave --device")
    if parsed.entry.has("threads"):
        raise ConfigError(
            f"{parsed.entry.name} can't be run with --ray: an organisation holds whole tables, "
            "which would cross with every block; its workers are threads of one machine, --workers"
        )
    if parsed.secrets == "system":
        raise ConfigError(
            "secrets = 'system' keeps the clients' secrets on this machine: leave out --ray"
        )
    ray_cluster.require()


def _begin_wire(folder: Path, parsed: Config) -> None:
    about = {"method": parsed.method, "data": parsed.data.name}
    Recorder(folder).begin({**about, "configuration": config.same_messages(parsed)})


def _refuse_existing(out: Path, manner: Manner) -> None:
    rundir.refuse_existing(out)
    if manner.record_wire is not None:
        rundir.refuse_existing(manner.record_wire, "--record-wire")
        if manner.record_wire.resolve() == out.resolve():
            raise ConfigError("--record-wire and --out must be different directories")


def resume(
    path: Path, settings: Sequence[str], manner: Manner, clients: Elsewhere | None = None
) -> RunDir:
    """Go on where a run stopped. Only its number of rounds may change, and only upward."""
    directory = RunDir(path)
    if not (path / "config.toml").is_file():
        raise ConfigError(f"{path} is not a run directory (no config.toml)")
    with directory.lock():
        before = directory.config()
        parsed = config.load(path / "config.toml", settings)
        _check_growth(before, parsed)
        _check_manner(parsed, manner)
        device = _device(parsed, manner)
        kept = (
            checkpoint.load(directory.checkpoint)
            if (directory.checkpoint / checkpoint.MANIFEST).exists()
            else None
        )
        if kept is not None and kept.experiment != directory.fingerprint():
            raise CheckpointError(f"the checkpoint in {directory.checkpoint} is of another run")
        if kept is not None:
            directory.check_ledger(kept.state)
        kept = None if kept is None else _with_whole_ledger(kept, before)
        people, federation = (clients.people, clients.federation) if clients else (None, None)
        assembly = assemble(parsed, people, device)
        directory.write_rounds(parsed.rounds)
        if manner.record_wire is not None:
            _begin_wire(manner.record_wire, parsed)
        run = Run(
            assembly, directory, kept, manner.workers, manner.record_wire, federation, manner.ray
        )
        return _run(run, manner)


def _check_growth(before: Config, after: Config) -> None:
    changed = [key for key in config.differences(before, after) if key != "rounds"]
    if changed:
        raise ConfigError(
            f"a resumed run keeps its configuration, but {changed[0]} was changed; fork it with "
            "--from"
        )
    if after.rounds < before.rounds:
        raise ConfigError(f"rounds can only grow on resume: {before.rounds} -> {after.rounds}")
    if after.rounds > before.rounds and after.entry.has("counts epochs"):
        raise ConfigError(
            f"{after.entry.name} counts epochs, not rounds: fork it with --from and "
            f"{after.entry.name}.epochs"
        )


def _fork(source: Path, assembly: Assembly, out: Path) -> Checkpoint:
    """Copy records and client states up to another run's checkpoint; what a killed round left
    behind it is not copied.
    """
    origin, folder = _origin(source)
    with origin.lock():
        kept = checkpoint.load(folder)
        # a kept round is older than the run's last record
        origin.check_ledger(kept.state, kept.state.step if folder != origin.checkpoint else None)
        for key in config.differences(origin.config(), assembly.config):
            # what gives the state its meaning must be the same in both
            if _gives_meaning(key, assembly.config):
                raise CheckpointError(f"{source} is of another experiment: its {key} differs")
        if origin.config().apart != assembly.config.apart:
            raise CheckpointError(
                f"{source} is of other users: with [privacy] they are drawn otherwise than without"
            )
        newest = checkpoint.load(origin.checkpoint).state.step
        if origin.config().secure.sums and kept.state.step < newest:
            raise CheckpointError(
                f"{source} is older than its run's last secure sum, and no client opens a sum "
                "twice: fork the run from where it is"
            )
        if kept.state.round >= assembly.method.rounds:
            raise CheckpointError(
                f"{source} has {kept.state.round} rounds already: ask for more than that"
            )
        unfinished = rundir.create(out.with_name(f".{out.name}.fork"), assembly.config)
        try:
            ours = _copied(origin, kept, Store(folder / "clients"), unfinished)
            unfinished.path.rename(out)  # a fork is there as a whole, or not at all
        except BaseException:
            shutil.rmtree(unfinished.path)
            raise
    return ours


def _gives_meaning(key: str, parsed: Config) -> bool:
    name, _, last = key.partition(".")
    table = parsed.options if name == parsed.entry.name else getattr(parsed, name, None)
    lasts = last in getattr(table, "lasting", ())
    return lasts or key in ("method", "seed", "secrets") or name in STATE_TABLES


def _copied(origin: RunDir, kept: Checkpoint, clients: Store, target: RunDir) -> Checkpoint:
    for record in origin.records():
        if record["step"] <= kept.state.step:
            target.append(record)
    clients.copy_before(kept.state.step, Store(target.clients))
    fingerprint = target.fingerprint()
    state = replace(
        _with_whole_ledger(kept, origin.config()).state,
        forks=(*kept.state.forks, target.fork_name()),  # its noise is its own
    )
    ours = Checkpoint(state, kept.closes_round, kept.tally, fingerprint)
    checkpoint.save(target.checkpoint, ours)
    return ours


def _origin(source: Path) -> tuple[RunDir, Path]:
    """The run that is forked, and the folder of the checkpoint that is meant."""
    kept_round = source.parent.name == "kept"
    inner = source.name == "checkpoint"
    origin = RunDir(source.parents[1] if kept_round else source.parent if inner else source)
    if not (origin.path / "config.toml").is_file():
        raise CheckpointError(
            f"{source} is not a run: --from wants a run directory, its checkpoint/ or its "
            "kept/ROUND"
        )
    return origin, source if kept_round else origin.checkpoint


def _with_whole_ledger(kept: Checkpoint, settings: Config) -> Checkpoint:
    """What an earlier lexfed did not write into the ledger of a run with these settings."""
    state = kept.state
    ledger = inherited(state.ledger, settings.privacy, settings.rounds, state.round)
    return replace(kept, state=replace(state, ledger=ledger))


def _run(run: Run, manner: Manner) -> RunDir:
    console = Console(quiet=manner.quiet)
    settings, people, method = run.assembly.config, run.assembly.population, run.assembly.method
    done = run.start.state.round if run.start else 0
    console.print(
        f"{run.assembly.entry.name} on {settings.data.name}: {counted(len(people), 'client')}, "
        + (f"{_texts(people)}, " if people.here else "each with its own texts, ")
        + counted(method.rounds, "round")
        + (f", {done} done" if done else "")
        + _where(run.assembly.device, manner),
        highlight=False,
        soft_wrap=True,
    )
    told = not done and people.here
    for hint in _noted(run, manner.quiet) if told else ():
        console.print(f"note: {hint}", highlight=False, soft_wrap=True, markup=False)
    try:
        scored, sent = scored_clients(run.assembly), _sent(run.directory, done)
        if manner.ray is not None:  # it takes seconds in which nothing else is said
            doing = "starting Ray" if manner.ray == "local" else f"reaching Ray at {manner.ray}"
            console.print(f"{doing} ...", highlight=False, soft_wrap=True, markup=False)
        with _watched(run, manner, console):
            progress.show(_records(run, manner), method.rounds, done, console, scored, sent)
    except KeyboardInterrupt:
        words = ["lexfed", "run", str(run.directory.path), "--resume"]
        words += ["--record-wire", str(manner.record_wire)] if manner.record_wire else []
        words += ["--device", manner.device] if manner.device != "cpu" else []
        words += ["--ray", manner.ray] if manner.ray else []
        console.print(f"stopped; go on with: {shlex.join(words)}", highlight=False, soft_wrap=True)
        raise
    for line in _ending(run.directory):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    page.write(run.directory)
    _refuse_diverged(run.directory)
    return run.directory


def _noted(run: Run, quiet: bool) -> list[str]:
    """What is remarked on before the first round. The report repeats what is said of uploads; what
    was counted in texts of users who were promised something stays on the screen.
    """
    kept = list(hints.of_uploads(run.assembly)) if run.assembly.promise is None else []
    if kept:
        run.directory.write_notes(kept)
    return [] if quiet else list(hints.before(run.assembly))


def _texts(people: Population) -> str:
    """How many train, and how many only score: also those of users who never train."""
    train = len(people.seen_text)
    held = people.held_out + len(people.train) - train
    return f"{train:,} texts to train on, {held:,} held out"


def _where(device: torch.device, manner: Manner) -> str:
    """Said where it is not the usual place, or was not chosen by the user."""
    return f", on {device}" if device != devices.CPU or manner.device == "auto" else ""


def _sent(directory: RunDir, done: int) -> int:
    before = (record for record in directory.records() if record["round"] <= done)
    return sum(record["bytes_up"] + record["bytes_down"] for record in before)


@contextmanager
def _watched(run: Run, manner: Manner, console: Console) -> Iterator[None]:
    """With its page on loopback, where somebody wants to look on."""
    if not manner.live:
        yield
        return
    from lexfed.report.live import live  # a web server: loaded when needed

    with live(run.directory) as address:
        console.print(f"live: open {address}", highlight=False, soft_wrap=True, markup=False)
        yield


def _refuse_diverged(directory: RunDir) -> None:
    """A run that diverged is no result: whoever started it hears so, from the exit code too."""
    summary = directory.summary()
    if summary["stopped"] == "diverged":
        why = summary["reason"] or "no longer numbers; lower train.lr or server.lr"
        raise DivergedError(f"diverged: {why}. Round {summary['rounds']}, the one before, is kept.")


def _ending(directory: RunDir) -> Iterator[str]:
    """What a user should know when a run has ended, beside its figures."""
    summary = directory.summary()
    if summary["stopped"] == "budget":
        yield f"the privacy budget is spent: {summary['reason']}."
    if summary["refused"]:
        yield f"replies that were refused: {human('refused', summary['refused'])}"
    if summary["privacy"]:
        yield summary["privacy"]
        yield from (f"It holds if {note}." for note in summary["promise"]["notes"])
    for hint in hints.after(summary, directory.records()):
        yield f"note: {hint}"


def _records(run: Run, manner: Manner) -> progress.Events:
    records = execute(run)
    return (
        events.with_events(records, run.directory.path / "tensorboard")
        if manner.tensorboard
        else records
    )
