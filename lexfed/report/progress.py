"""A run as it happens: a bar on a terminal, a line per round elsewhere."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from lexfed.core.figures import human, size
from lexfed.records.rundir import Record

SHOWN = {"global_accuracy": "accuracy", "heldout_loss": "held-out", "word_perplexity": "perplexity"}


def show(
    records: Iterator[Record], rounds: int, done: int, console: Console, clients: int = 0
) -> None:
    """Consume a run's records. `done` rounds were there before; `clients` are scored at the end."""
    if console.is_terminal:
        _show_bar(records, rounds, done, console)
    else:
        _show_lines(records, rounds, console, clients)


def _show_bar(records: Iterator[Record], rounds: int, done: int, console: Console) -> None:
    columns = (
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=rounds, completed=done, figures="starting")
        sent, scores = 0, dict[str, Any]()
        for record in records:
            sent += record["bytes_up"] + record["bytes_down"]
            scores |= record["metrics"]
            progress.update(
                task, completed=record["round"], figures=_figures(record["loss"], scores, sent)
            )


def _show_lines(records: Iterator[Record], rounds: int, console: Console, clients: int) -> None:
    pace, sent = Pace(clients=clients), 0
    for record in records:
        sent += record["bytes_up"] + record["bytes_down"]
        pace.note(record)
        figures = _figures(record["loss"], record["metrics"], sent)
        console.print(
            f"round {record['round']}/{rounds}  {figures}{pace.left(rounds - record['round'])}",
            soft_wrap=True,
            highlight=False,
        )


@dataclass
class Pace:
    """How long a round takes, and how long a client's score: at the end all clients are scored, and
    that may take longer than a round.
    """

    seconds: list[float] = field(default_factory=list)
    evaluation: float = 0.0
    scored: int = 0
    clients: int = 0  # that are scored at the end

    def note(self, record: Record) -> None:
        self.seconds.append(record["seconds"])
        if record["metrics"].get("scored_clients"):
            self.evaluation += record["evaluation_seconds"]
            self.scored += int(record["metrics"]["scored_clients"])

    def left(self, rounds: int) -> str:
        if rounds <= 0:
            return ""
        training = rounds * sum(self.seconds) / len(self.seconds)
        scoring = self.clients * self.evaluation / self.scored if self.scored else 0.0
        unknown = "" if self.scored or not self.clients else " and the scoring of all clients"
        return f"  {training + scoring:.0f} s{unknown} left"


def _figures(loss: float | None, scores: Mapping[str, Any], sent: int) -> str:
    parts = [f"loss {loss:.3f}"] if loss is not None else []  # under noise nobody tells it
    parts += [
        f"{name} {human(key, scores[key])}"
        for key, name in SHOWN.items()
        if scores.get(key) is not None
    ]
    return "  ".join([*parts, f"sent {size(sent)}"])
