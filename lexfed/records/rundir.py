"""The run directory: a contract that scripts rely on.

config.toml   resolved, re-runnable           checkpoint/  the server's state and the clients'
                                                           private ones
rounds.jsonl  one line per round              artifacts/   the model and its vocabulary
summary.json  the figures, keys always there  report.html  the same for people
modules.json  where modules of one's own were found, so that a resumed run finds them again
notes.json    what was remarked on uploads before the first round, for the report
"""

import fcntl
import json
import shutil
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from lexfed.core import formats, importing
from lexfed.core.errors import CheckpointError, ConfigError
from lexfed.core.figures import SUMMARY
from lexfed.core.files import OWNERS_FOLDER, naming, only_one, write_atomically
from lexfed.experiment.config import Config, fingerprint, fork_name, load, own_names, to_toml
from lexfed.federation import ServerState
from lexfed.privacy import accounting
from lexfed.runtime.workers import WORKERS_LOCK

Record = dict[str, Any]  # one line of rounds.jsonl
NOTES = "notes.json"
DEPLOYMENT = "deployment.json"  # of a run between organisations: the federation's name, its keys


@dataclass(frozen=True)
class RunDir:
    path: Path

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def clients(self) -> Path:
        return self.checkpoint / "clients"

    def kept(self, round: int) -> Path:
        """The checkpoint of a round that `keep` names, or right before a switch of the tokenizer:
        runs can be forked from it.
        """
        return self.path / "kept" / f"{round:06d}"

    @property
    def artifacts(self) -> Path:
        return self.path / "artifacts"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def config_file(self) -> Path:
        return self.path / "config.toml"

    def config(self) -> Config:
        formats.check_folder(self.path, formats.RUN)
        return load(self.config_file)

    def write_config(self, config: Config) -> None:
        write_atomically(self.config_file, to_toml(config).encode())

    def write_rounds(self, rounds: int) -> None:
        """The same configuration with more rounds. All else in the file stays as it was written."""
        table = tomllib.loads(self.config_file.read_text(encoding="utf-8"))
        write_atomically(self.config_file, tomli_w.dumps({**table, "rounds": rounds}).encode())

    def fingerprint(self) -> str:
        """Of the configuration that the run was made with: its checkpoints carry it."""
        return fingerprint(tomllib.loads(self.config_file.read_text(encoding="utf-8")))

    @property
    def command(self) -> str:
        """What goes on with it."""
        return "lexfed server" if (self.path / DEPLOYMENT).is_file() else "lexfed run"

    def federation(self) -> str:
        """The name for good of a run between organisations."""
        try:
            return str(json.loads((self.path / DEPLOYMENT).read_text())["federation"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{self.path} is no run between organisations") from error

    def fork_name(self) -> str:
        return fork_name(tomllib.loads(self.config_file.read_text(encoding="utf-8")))

    def append(self, record: Record) -> None:
        path = self.path / "rounds.jsonl"
        with naming(path), path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def records(self) -> list[Record]:
        path = self.path / "rounds.jsonl"
        if not path.exists():
            return []
        return [
            json.loads(line)
            for line in path.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]

    def check_ledger(self, state: ServerState, until: int | None = None) -> None:
        """Refuse a state whose ledger holds less than was written down when a round (up to this
        step) was closed: what was released stays released.
        """
        written = [r for r in self.records() if until is None or r["step"] <= until]
        last = accounting.from_json(written[-1].get("ledger", [])) if written else ()
        if accounting.lacks(state.ledger, last):
            raise CheckpointError(
                f"the ledger of the checkpoint in {self.path} holds less than its rounds.jsonl "
                "says was released: restore the checkpoint from a copy"
            )

    def truncate(self, step: int) -> list[Record]:
        """Keep the records up to this step: what came after the checkpoint will happen again."""
        kept = [record for record in self.records() if record["step"] <= step]
        write_atomically(
            self.path / "rounds.jsonl",
            "".join(json.dumps(record) + "\n" for record in kept).encode(),
        )
        return kept

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        write_atomically(
            self.path / "summary.json", (json.dumps(summary, indent=2) + "\n").encode()
        )

    def write_notes(self, notes: Sequence[str]) -> None:
        write_atomically(self.path / NOTES, (json.dumps(notes) + "\n").encode())

    def notes(self) -> list[str]:
        path = self.path / NOTES
        found: list[str] = json.loads(path.read_text()) if path.is_file() else []
        return found

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").is_file()

    def summary(self) -> dict[str, Any]:
        formats.check_folder(self.path, formats.RUN)
        if state := self.unfinished():
            raise ConfigError(
                f"{self.path} is {state}; go on with: {self.command} {self.path} --resume"
            )
        summary: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        summary.setdefault("method_name", summary["method"])  # the first ones had no such key
        return summary

    def unfinished(self) -> str:
        """How far a run has come that has not ended; empty: it has."""
        if self.finished:
            return ""
        if not self.config_file.is_file():
            raise ConfigError(f"{self.path} is not a run directory (no config.toml)")
        records, config = self.records(), self.config()
        # some count passes over the text in place of rounds, and say so in a table of their own
        rounds = getattr(config.options, "epochs", 0) if config.entry.has("counts epochs") else 0
        done = records[-1]["round"] if records else 0
        return f"unfinished: round {done} of {rounds or config.rounds}"

    def so_far(self) -> dict[str, Any]:
        """The summary; of a run that has not ended, what its records say."""
        state = self.unfinished()
        if not state:
            return self.summary()
        records, config = self.records(), self.config()
        scores: Mapping[str, Any] = next((r["metrics"] for r in records[::-1] if r["metrics"]), {})
        return {
            **dict.fromkeys(SUMMARY),
            **scores,
            "name": config.name,
            "method": config.method,
            "method_name": config.entry.name,
            "seed": config.seed if config.secrets == "seed" else None,
            "rounds": records[-1]["round"] if records else 0,
            "clients": 1 if config.entry.has("pooled") else config.data.clients,
            "bytes_up": sum(record["bytes_up"] for record in records),
            "bytes_down": sum(record["bytes_down"] for record in records),
            "seconds": sum(r["seconds"] + r["evaluation_seconds"] for r in records),
            "stopped": state,
        }

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One process at a time; and none before the last worker of a killed one is gone."""
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        self.checkpoint.chmod(OWNERS_FOLDER)  # it may hold users' words
        busy = f"{self.path} is being run by another process"
        with (
            only_one(self.checkpoint / "lock", busy),
            (self.checkpoint / WORKERS_LOCK).open("w") as theirs,
        ):
            fcntl.flock(theirs, fcntl.LOCK_EX)
            fcntl.flock(theirs, fcntl.LOCK_UN)
            for leftover in self.checkpoint.rglob(".*"):  # what a killed process was writing
                leftover.unlink()
            yield


def default_path(config: Config) -> Path:
    return Path("runs") / f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}"


def refuse_existing(path: Path, option: str = "--out") -> None:
    """What would be written over or mixed up. An empty folder is as good as none."""
    if not path.name:
        raise ConfigError(f"{option} {path} has no name of its own: name a folder")
    if RunDir(path).config_file.exists():
        raise ConfigError(
            f"{path} exists already; choose another {option}, or continue it with: "
            f"{RunDir(path).command} {path} --resume"
        )
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} exists already and is a file; choose another {option}")
    if path.exists() and any(path.iterdir()):
        raise ConfigError(f"{path} exists already and is not empty; choose another {option}")


def create(path: Path, config: Config) -> RunDir:
    refuse_existing(path)
    run, new = RunDir(path), not path.exists()
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        run.checkpoint.mkdir()  # of two that start at once, one makes it
    except FileExistsError as error:
        raise ConfigError(f"{path} exists already; choose another --out") from error
    except OSError as error:
        raise ConfigError(f"{path} can't be made: {error.strerror}") from error
    try:
        formats.mark(path, "run directory", formats.RUN)
        run.write_config(config)
        importing.remember(path, own_names(config))
    except OSError:  # a full disk: half a run could neither go on nor be started again
        take_away(path, whole=new)
        raise
    return run


def take_away(folder: Path, whole: bool) -> None:
    """What was written there; and the folder, if it was not the user's own."""
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if whole:
        folder.rmdir()
