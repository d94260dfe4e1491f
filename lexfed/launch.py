"""Starting, resuming and forking runs: everything is checked first, and only then is anything written."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from lexfed import checkpoint, config, rundir
from lexfed.assembly import assemble
from lexfed.checkpoint import Checkpoint
from lexfed.config import Config
from lexfed.errors import CheckpointError, ConfigError
from lexfed.report import page, progress
from lexfed.report.tensorboard import with_events
from lexfed.rundir import Record, RunDir
from lexfed.runtime.store import Store
from lexfed.session import Run, execute


@dataclass(frozen=True)
class How:
    """What changes no result."""

    workers: int = 0
    record_wire: Path | None = None
    tensorboard: bool = False


def start(path: Path, settings: Sequence[str], out: Path | None, source: Path | None, how: How) -> RunDir:
    """A new run, or a fork of another run's checkpoint."""
    if path.is_dir():
        raise ConfigError(f"{path} is a directory; to go on with a run: lexfed run {path} --resume")
    parsed = config.load(path, settings)
    out = out or rundir.default_path(parsed)
    rundir.refuse_existing(out)
    if how.record_wire is not None:
        rundir.refuse_existing(how.record_wire)
    fork = _open_fork(source, parsed) if source is not None else None
    assembly = assemble(parsed)  # everything that can be wrong with the input shows here
    directory = rundir.create(out, parsed)
    if fork is not None:
        _copy_fork(*fork, directory)
    return _run(Run(assembly, directory, fork[1] if fork else None, how.workers, how.record_wire), how)


def resume(path: Path, settings: Sequence[str], how: How) -> RunDir:
    """Go on where a run stopped. Only its number of rounds may change, and only upward."""
    directory = RunDir(path)
    if not (path / "config.toml").is_file():
        raise ConfigError(f"{path} is not a run directory (no config.toml)")
    before = directory.config()
    parsed = config.load(path / "config.toml", settings)
    changed = [key for key in config.differences(before, parsed) if key != "rounds"]
    if changed:
        raise ConfigError(f"a resumed run keeps its configuration, but {changed[0]} was changed; fork it with --from")
    if parsed.rounds < before.rounds:
        raise ConfigError(f"rounds can only grow on resume: {before.rounds} -> {parsed.rounds}")
    kept = checkpoint.load(directory.checkpoint) if (directory.checkpoint / checkpoint.MANIFEST).exists() else None
    assembly = assemble(parsed)
    directory.write_config(parsed)
    return _run(Run(assembly, directory, kept, how.workers, how.record_wire), how)


def _open_fork(source: Path, parsed: Config) -> tuple[RunDir, Checkpoint]:
    """The run to fork. What gives its state a meaning must be the same in both."""
    run = RunDir(source.parent if source.name == "checkpoint" else source)
    if not (run.path / "config.toml").is_file():
        raise CheckpointError(f"{source} is not a run: --from wants a run directory or its checkpoint/")
    kept = checkpoint.load(run.checkpoint)
    for key in config.differences(run.config(), parsed):
        if key == "method" or key.split(".")[0] in ("data", "vocabulary", "model"):
            raise CheckpointError(f"{source} is of another experiment: its {key} differs")
    return run, kept


def _copy_fork(source: RunDir, kept: Checkpoint, target: RunDir) -> None:
    """Records and client states up to the checkpoint; what a killed round left behind it is not copied."""
    for record in source.records():
        if record["round"] <= kept.state.round:
            target.append(record)
    Store(source.clients).copy_before(kept.state.step, Store(target.clients))
    checkpoint.save(target.checkpoint, kept)


def _run(run: Run, how: How) -> RunDir:
    console = Console()
    settings, people, method = run.assembly.config, run.assembly.population, run.assembly.method
    done = run.start.state.round if run.start else 0
    console.print(
        f"{settings.method} on {settings.data.name}: {len(people)} clients, {len(people.seen_text):,} texts, "
        f"{method.rounds} rounds" + (f", {done} done" if done else ""),
        highlight=False,
        soft_wrap=True,
    )
    try:
        progress.show(_events(run, how), method.rounds, done, console)
    except KeyboardInterrupt:
        console.print(f"stopped; go on with: lexfed run {run.directory.path} --resume", highlight=False, soft_wrap=True)
        raise
    if run.directory.summary()["stopped"] == "diverged":
        console.print("diverged: the loss is no longer a number; lower train.lr or server.lr. The last good round is kept.")
    page.write(run.directory)
    return run.directory


def _events(run: Run, how: How) -> Iterator[Record]:
    records = execute(run)
    return with_events(records, run.directory.path / "tensorboard") if how.tensorboard else records
