"""A run as it happens: a bar on a terminal, a line per round elsewhere."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lexfed.core.figures import human, size
from lexfed.records.rundir import Record

SHOWN = {"global_accuracy": "accuracy", "heldout_loss": "held-out", "word_perplexity": "perplexity"}


@dataclass(frozen=True)
class Scoring:
    """A round is over and its scores begin: that may take longer than the round."""

    round: int
    clients: int  # 0: not client by client
    last: bool = True

    def __str__(self) -> str:
        return f"scoring {self.clients:,} clients" if self.clients else "scoring"


@dataclass(frozen=True)
class Ahead:
    """Work of the server's own that begins now and takes longer than a round."""

    round: int
    work: str


@dataclass(frozen=True)
class Happened(Ahead):
    """Work of the server's own that is over: a line that stays."""


Events = Iterator[Record | Scoring | Ahead]


def show(
    events: Events, rounds: int, done: int, console: Console, clients: int = 0, sent: int = 0
) -> None:
    """Consume what a run tells. `done` rounds were there before, in which so much was `sent`;
    `clients` are scored at the end.
    """
    if console.is_terminal:
        _show_bar(events, rounds, done, console, clients, sent)
    else:
        _show_lines(events, rounds, console, clients, sent)


def _show_bar(
    events: Events, rounds: int, done: int, console: Console, clients: int, sent: int
) -> None:
    columns = (
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=rounds, completed=done, figures="starting", left="")
        pace, scores = Pace(clients=clients), dict[str, Any]()
        for record in events:
            if isinstance(record, Scoring):
                progress.update(task, figures=str(record), left=pace.scoring(record))
                continue
            if isinstance(record, Happened):
                progress.console.print(_line(record, rounds), soft_wrap=True, highlight=False)
                continue
            if isinstance(record, Ahead):
                progress.update(task, figures=record.work, left="")
                continue
            sent += record["bytes_up"] + record["bytes_down"]
            scores |= record["metrics"]
            pace.note(record)
            progress.update(
                task,
                completed=record["round"],
                figures=_figures(record["loss"], scores, sent),
                left=pace.left(rounds - record["round"]).strip(),
            )


def _show_lines(events: Events, rounds: int, console: Console, clients: int, sent: int) -> None:
    pace = Pace(clients=clients)
    for record in events:
        if isinstance(record, Ahead):
            console.print(_line(record, rounds), soft_wrap=True, highlight=False)
            continue
        if isinstance(record, Scoring):
            if record.last:
                line = f"round {record.round}/{rounds}  {record}  {pace.scoring(record)}"
                console.print(line.rstrip(), soft_wrap=True, highlight=False)
            continue
        sent += record["bytes_up"] + record["bytes_down"]
        pace.note(record)
        figures = _figures(record["loss"], record["metrics"], sent)
        console.print(
            f"round {record['round']}/{rounds}  {figures}{pace.left(rounds - record['round'])}",
            soft_wrap=True,
            highlight=False,
        )


def _line(work: Ahead, rounds: int) -> str:
    return f"round {work.round}/{rounds}  {work.work}"


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
        steady = self.seconds[1:]  # in the first one, workers start
        if rounds <= 0 or not steady:
            return ""
        training = rounds * sum(steady) / len(steady)
        scoring = self.clients * self.evaluation / self.scored if self.scored else 0.0
        unknown = "" if self.scored or not self.clients else " and the scoring of all clients"
        return f"  {training + scoring:.0f} s{unknown} left"

    def scoring(self, now: Scoring) -> str:
        each = self.evaluation / self.scored if self.scored else 0.0
        return f"{now.clients * each:.0f} s left" if now.last and each and now.clients else ""


def _figures(loss: float | None, scores: Mapping[str, Any], sent: int) -> str:
    parts = [f"loss {loss:.3f}"] if loss is not None else []  # under noise nobody tells it
    parts += [
        f"{name} {human(key, scores[key])}"
        for key, name in SHOWN.items()
        if scores.get(key) is not None
    ]
    return "  ".join([*parts, f"sent {size(sent)}"])
