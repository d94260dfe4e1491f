"""Runs side by side: one table, one page."""

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lexfed.core.figures import LABELS, curve_of, human, shown
from lexfed.core.files import write_atomically
from lexfed.experiment.toml import NONE, flat
from lexfed.records.rundir import RunDir
from lexfed.report import charts, frame
from lexfed.report.frame import Chart, Tab, paragraph, table

COLUMNS = shown("c")


def known(runs: Sequence[RunDir], columns: Sequence[str]) -> tuple[str, ...]:
    """The columns that have a meaning for one of these runs at least."""
    return tuple(key for key in columns if any(run.summary().get(key) is not None for run in runs))


def rows(runs: Sequence[RunDir], columns: Sequence[str] = COLUMNS) -> list[list[str]]:
    """A row per run, first the run's name; the columns are keys of summary.json."""
    return [
        [run.path.name, *(human(key, run.summary().get(key)) for key in columns)] for run in runs
    ]


# beside the [data] table: what decides which texts a run was trained and scored on
_SCORED_ON = ("seed", "evaluation.split", "evaluation.limit")


def unlike(runs: Sequence[RunDir]) -> str:
    """What makes their figures no match: they are of other texts. Empty: nothing."""
    tables = [_settings(run) for run in runs]
    keys = dict.fromkeys(key for table in tables for key in table)
    said = []
    for key in keys:
        values = list(dict.fromkeys(str(table.get(key, NONE)) for table in tables))
        if len(values) > 1:
            said.append(f"{key} ({', '.join(values)})")
    return f"these runs are not of the same texts: they differ in {', '.join(said)}" if said else ""


def _settings(run: RunDir) -> dict[str, Any]:
    """From the file itself: a method of one's own need not be there to be compared."""
    table = flat(tomllib.loads(run.config_file.read_text(encoding="utf-8")))
    return {k: v for k, v in table.items() if k in _SCORED_ON or k.startswith("data.")}


def write(runs: Sequence[RunDir], path: Path) -> Path:
    write_atomically(path, page(runs).encode())
    return path


def page(runs: Sequence[RunDir]) -> str:
    columns = known(runs, COLUMNS)
    lead = paragraph(_explained(runs)) + paragraph(unlike(runs), "warning")
    listed = table(("run", *(LABELS[key] for key in columns)), rows(runs, columns))
    drawn = frame.figures([*_scores(runs), *_curves(runs), *_traffic(runs)])
    return frame.document(f"{len(runs)} runs side by side", lead, [Tab("Runs", listed + drawn)])


def _explained(runs: Sequence[RunDir]) -> str:
    if not known(runs, ["global_accuracy"]):
        return ""
    return (
        "Global: each client's model on the common test set, geometric mean. Local: the same "
        "predictions, re-weighted to each client's own label shares. Majority: what always saying "
        "one's most frequent class would score there."
    )


def _scores(runs: Sequence[RunDir]) -> Iterator[Chart]:
    for name, beside in (
        ("global", "test_majority_accuracy"),
        ("local", "local_majority_accuracy"),
    ):
        intervals, marks = {}, {}
        for run in runs:
            summary = run.summary()
            score = summary.get(f"{name}_accuracy")
            if score is None:
                continue
            half = summary.get(f"{name}_accuracy_interval") or 0.0
            intervals[run.path.name] = (100 * (score - half), 100 * score, 100 * (score + half))
            if summary.get(beside) is not None:
                marks[run.path.name] = 100 * summary[beside]
        if intervals:
            yield charts.ranges(
                f"{name.capitalize()} accuracy",
                "Right is better; bars are 95 % intervals: runs whose bars overlap may be equally "
                "good. The tick is the majority class alone.",
                intervals,
                "%",
                marks,
            )


CURVES = (
    ("global_accuracy", "Global accuracy on the way", "%", 100),
    ("heldout_loss", "Loss on held-out text, on the way", "loss", 1),
    ("word_perplexity", "Perplexity per word, on the way", "perplexity", 1),
)


def _curves(runs: Sequence[RunDir]) -> Iterator[Chart]:
    for key, title, unit, factor in CURVES:
        series = {
            run.path.name: [
                (record["round"], factor * curve_of(record)[key])
                for record in run.records()
                if record["metrics"].get(key) is not None
            ]
            for run in runs
        }
        if any(series.values()):
            better = "Higher" if unit == "%" else "Lower"
            reads = f"{better} is better; one line per run, of the same clients throughout."
            yield charts.lines(title, reads, series, unit)


def _traffic(runs: Sequence[RunDir]) -> Iterator[Chart]:
    sent = {
        run.path.name: {
            label: run.summary()[key] / 1e6
            for key, label in (("bytes_up", "clients to server"), ("bytes_down", "to clients"))
            if run.summary().get(key)
        }
        for run in runs
    }
    if any(sent.values()):
        reads = "Left is cheaper; the axis is logarithmic: a step is ten times as much."
        yield charts.dots("Sent in all", reads, sent, "MB", log=True)
