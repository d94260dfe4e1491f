"""A run as it happens: a bar on a terminal, a line per round elsewhere."""

import time
from collections.abc import Iterator, Mapping
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


def show(records: Iterator[Record], rounds: int, done: int, console: Console) -> None:
    """Consume a run's records. `done` rounds were there before."""
    if console.is_terminal:
        _show_bar(records, rounds, done, console)
    else:
        _show_lines(records, rounds, console)


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


def _show_lines(records: Iterator[Record], rounds: int, console: Console) -> None:
    started, sent = time.perf_counter(), 0
    for number, record in enumerate(records, 1):
        sent += record["bytes_up"] + record["bytes_down"]
        figures = _figures(record["loss"], record["metrics"], sent)
        left = (time.perf_counter() - started) / number * (rounds - record["round"])
        console.print(
            f"round {record['round']}/{rounds}  {figures}  {left:.0f} s left",
            soft_wrap=True,
            highlight=False,
        )


def _figures(loss: float | None, scores: Mapping[str, Any], sent: int) -> str:
    parts = [f"loss {loss:.3f}" if loss is not None else "no loss to tell"]
    parts += [
        f"{name} {human(key, scores[key])}"
        for key, name in SHOWN.items()
        if scores.get(key) is not None
    ]
    return "  ".join([*parts, f"sent {size(sent)}"])
