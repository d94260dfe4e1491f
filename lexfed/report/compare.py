"""Runs side by side: one table, one page."""

import html
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lexfed.core.figures import LABELS, curve_of, human, shown
from lexfed.core.files import write_atomically
from lexfed.experiment.toml import NONE, flat
from lexfed.records.rundir import RunDir
from lexfed.report.page import STYLE, svg

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
    columns = known(runs, COLUMNS)
    heads = "".join(
        f"<th>{html.escape(head)}</th>" for head in ("run", *(LABELS[key] for key in columns))
    )
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows(runs, columns)
    )
    explained = (
        "Global: each client's model on the common test set, geometric mean. Local: the same "
        "predictions, re-weighted\n"
        "to each client's own label shares. Majority: what always saying one's most frequent class "
        "would score there."
    )
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>lexfed: {len(runs)} runs</title><style>{STYLE}
body {{ max-width: 90rem }} td {{ white-space: nowrap }}
th {{ text-align: left; padding-right: 1.2rem; vertical-align: bottom; font-size: .85rem }}
</style></head><body><h1>{len(runs)} runs side by side</h1>
<p class="sub">{explained}</p>
<p><b>{html.escape(unlike(runs))}</b></p>
<table><tr>{heads}</tr>{body}</table><div class="plots">{"".join(_plots(runs))}</div></body></html>
"""
    write_atomically(path, page.encode())
    return path


CURVES = (
    ("global_accuracy", "Global accuracy on the way, %", 100),
    ("heldout_loss", "Loss on held-out text, on the way", 1),
    ("word_perplexity", "Perplexity per word, on the way", 1),
)


def _plots(runs: Sequence[RunDir]) -> list[str]:
    bars = [_bars(runs)] if known(runs, ["global_accuracy"]) else []
    return bars + [
        _curves(runs, key, title, factor) for key, title, factor in CURVES if known(runs, [key])
    ]


def _bars(runs: Sequence[RunDir]) -> str:
    def draw(axes: Any) -> None:
        for offset, key in ((-0.2, "global_accuracy"), (0.2, "local_accuracy")):
            values = [100 * (run.summary()[key] or 0) for run in runs]
            axes.barh(
                [i + offset for i in range(len(runs))], values, height=0.38, label=LABELS[key]
            )
        axes.set_yticks(range(len(runs)), [run.path.name for run in runs])
        axes.invert_yaxis()
        axes.set_xlim(0, 100)
        axes.legend(frameon=False, fontsize=8, loc="lower right")

    return svg("Accuracy, %", draw, "%")


def _curves(runs: Sequence[RunDir], key: str, title: str, factor: float) -> str:
    def draw(axes: Any) -> None:
        for run in runs:
            points = [
                (r["round"], factor * curve_of(r)[key])
                for r in run.records()
                if key in r["metrics"]
            ]
            if points:
                axes.plot(*zip(*points, strict=True), ".-", label=run.path.name)
        axes.legend(frameon=False, fontsize=8)

    return svg(title, draw, "round")
