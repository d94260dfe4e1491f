"""The run directory: a contract that scripts rely on.

config.toml   resolved, re-runnable           checkpoint/  the server's state and the clients'
                                                           private ones
rounds.jsonl  one line per round              artifacts/   the model and its vocabulary
summary.json  the figures, keys always there  report.html  the same for people
modules.json  where modules of one's own were found, so that a resumed run finds them again
"""

import fcntl
import json
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from lexfed.core import formats, importing
from lexfed.core.errors import ConfigError
from lexfed.core.files import OWNERS_FOLDER, write_atomically
from lexfed.experiment.config import Config, fingerprint, load, own_names, to_toml
from lexfed.runtime.workers import WORKERS_LOCK

Record = dict[str, Any]  # one line of rounds.jsonl


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

    def append(self, record: Record) -> None:
        with (self.path / "rounds.jsonl").open("a") as file:
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

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").is_file()

    def summary(self) -> dict[str, Any]:
        formats.check_folder(self.path, formats.RUN)
        if not self.finished:
            raise ConfigError(f"{self.path} holds no finished run (no summary.json)")
        summary: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        summary.setdefault("method_name", summary["method"])  # the first ones had no such key
        return summary

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One process at a time; and none before the last worker of a killed one is gone."""
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        self.checkpoint.chmod(OWNERS_FOLDER)  # it may hold users' words
        with (
            (self.checkpoint / "lock").open("w") as ours,
            (self.checkpoint / WORKERS_LOCK).open("w") as theirs,
        ):
            try:
                fcntl.flock(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigError(f"{self.path} is being run by another process") from error
            fcntl.flock(theirs, fcntl.LOCK_EX)
            fcntl.flock(theirs, fcntl.LOCK_UN)
            for leftover in self.checkpoint.rglob(".*"):  # what a killed process was writing
                leftover.unlink()
            yield


def default_path(config: Config) -> Path:
    return Path("runs") / f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}"


def refuse_existing(path: Path) -> None:
    if path.exists():
        raise ConfigError(
            f"{path} exists already; choose another --out, or continue it with: lexfed run {path} "
            "--resume"
        )


def create(path: Path, config: Config) -> RunDir:
    refuse_existing(path)
    run = RunDir(path)
    try:
        run.path.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"{path} can't be made: {error.strerror}") from error
    formats.mark(path, "run directory", formats.RUN)
    run.write_config(config)
    importing.remember(path, own_names(config))
    return run
