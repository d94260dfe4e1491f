"""Run the catalogue: the cheapest first, what was killed is resumed, what is done is skipped.

A run is done when the result file of its scale has its row and seed, wherever it was made: a fresh
clone repeats nothing that was committed.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from experiments import table
from experiments.papers.catalogue import EXPERIMENTS, Catalogue, CatalogueError, Runs
from experiments.papers.price import Price, note_tried, price, told
from experiments.papers.same import likeness

TRIAL_ROUNDS = 3


@dataclass(frozen=True)
class Job:
    runs: Runs
    row: str
    seed: int
    scale: str
    price: Price

    @property
    def folder(self) -> Path:
        """Where `experiments/table.py` would put it, at machine scale."""
        above = Path("runs") if self.scale == "machine" else Path("runs") / self.scale
        return above / self.runs.name

    @property
    def done(self) -> bool:
        return (
            self.runs.results_file(self.scale).is_file() if self.runs.command else bool(self.found)
        )

    @property
    def recorded(self) -> bool:
        """Whether its result names a commit of this history as what ran it."""
        made = self.runs.made if self.runs.command else self.found.get("made", {})
        return bool(made.get("commit")) and table.in_history(made["commit"])

    @property
    def found(self) -> dict[str, Any]:
        runs = self.runs.found(self.scale).get(self.row, [])
        return next((run for run in runs if run["seed"] == self.seed), {})

    @property
    def name(self) -> str:
        return f"{self.runs.name} | {self.row} | {self.seed}"


def chosen(catalogue: Catalogue, only: Iterable[str]) -> list[Runs]:
    """All runs, or those of the entries (or runs) that are named."""
    names: list[str] = []
    for one in only:
        if one in catalogue.entries:
            names += catalogue.entries[one].runs
        elif one in catalogue.runs:
            names.append(one)
        else:
            known = ", ".join(sorted(catalogue.entries))
            raise CatalogueError(f"the catalogue has no '{one}'; it has: {known}")
    return [catalogue.runs[name] for name in dict.fromkeys(names)] or list(catalogue.runs.values())


def jobs(catalogue: Catalogue, scale: str, only: Sequence[str] = ()) -> list[Job]:
    """In order of cost. A fork comes after the run that it is forked from."""
    found = []
    for runs in chosen(catalogue, only):
        if scale not in runs.scales:
            continue
        if runs.command:
            if scale == "machine":
                found.append(Job(runs, "", 0, scale, Price(None, "see its own page")))
            continue
        for row in runs.rows(scale):
            cost = price(runs, row, scale)
            found += [Job(runs, row, s, scale, cost) for s in runs.scales[scale].seeds_of(row)]
    return sorted(found, key=_order)


def _order(job: Job) -> tuple[float, bool, int]:
    base = _forked_from(job)
    prices = [job.price, *([price(job.runs, base, job.scale)] if base else [])]
    dearest = max(float("inf") if one.seconds is None else one.seconds for one in prices)
    return dearest, bool(base), job.seed


def _forked_from(job: Job) -> str:
    return "" if job.runs.command else table.forked_from(job.runs.rows(job.scale)[job.row])


def forget(job: Job) -> None:
    """Its run directory, so that it begins anew; its result stays until there is another."""
    out = job.folder if job.runs.command else table.run_folder(job.folder, job.row, job.seed)
    shutil.rmtree(out, ignore_errors=True)
    table.note_of(out).unlink(missing_ok=True)


def run(job: Job, options: Sequence[str]) -> None:
    """And write what it found into the result file, at once; if it is a fork, also what the row is
    that it was forked from. In the place of an older run it says how it compares.
    """
    if job.runs.command:
        return study(job.runs, job.folder)
    rows, file, kept = job.runs.rows(job.scale), job.runs.results_file(job.scale), job.found
    out = table.run_row(job.runs.path, rows, job.row, job.seed, job.folder, options)
    if kept:
        before = {
            "commit": kept.get("made", {}).get("commit"),
            "now": likeness(kept, table.figures_of(out)),
        }
        print(f"{job.name}: beside the run before, {before['now']}")
        table.note(out, {"before": before})
    known = {**table.rows_of(job.runs.path), **rows}  # what this scale does not run stays
    new = [row for row in (job.row, _forked_from(job)) if row]
    found = table.collected(job.folder, job.runs.path, known, table.read_results(file), new)
    table.write_results(file, found)


def study(runs: Runs, folder: Path) -> None:
    """Its programs write the result file themselves, and go on where they were killed; what they
    were and who ran them stands beside it.
    """
    whole = not table.note_of(folder).is_file()
    table.note_maker(folder, "; ".join(f"python experiments/{line}" for line in runs.command))
    before = os.times()
    for line in runs.command:
        program, *words = line.split()
        subprocess.run([sys.executable, str(EXPERIMENTS / program), *words], check=True)
    if whole:
        table.note_spent(folder, before)
    fingerprint = blake2b("\n".join(runs.command).encode(), digest_size=16).hexdigest()
    made = {"fingerprint": fingerprint, **json.loads(table.note_of(folder).read_text())}
    made["results"] = runs.results_digest()
    runs.made_file.write_text(json.dumps(made, indent=1) + "\n")


def trial(job: Job, options: Sequence[str]) -> None:
    """A few rounds, to know that it works and what a round takes; nothing of it is a result."""
    settings = [*job.runs.rows(job.scale)[job.row], f"rounds={TRIAL_ROUNDS}"]
    if _forked_from(job) or any("switch=" in one for one in settings):
        print(f"{job.name}: not tried, it forks or switches later")
        return
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "trial"
        table.run(job.runs.path, settings, job.seed, out, options)
        note_tried(job.scale, job.runs.name, job.row, out)


def bill(found: Sequence[Job]) -> str:
    """One line for each row, and the sum of what is known."""
    lines, total, unknown = [], 0.0, 0
    rows: dict[tuple[str, str], list[Job]] = {}
    for job in found:
        rows.setdefault((job.runs.name, job.row), []).append(job)
    for (runs, row), several in rows.items():
        left = [job for job in several if not job.done]
        cost = several[0].price
        each = "?" if cost.seconds is None else told(cost.seconds)
        state = f"{len(left)} of {len(several)} to run" if left else "done"
        lines.append(f"{runs} | {row or '(its own command)'} | {state} | {each} each: {cost.how}")
        unknown += len(left) * (cost.seconds is None)
        total += len(left) * (cost.seconds or 0.0)
    lines.append(f"to run: {told(total)}" + f", and {unknown} runs of unknown cost" * bool(unknown))
    return "\n".join(lines)
