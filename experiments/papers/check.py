"""Does a run give the same again (same.py)? What a fork was forked from is run first."""

from collections.abc import Sequence
from pathlib import Path

from experiments import table
from experiments.papers.driver import Job
from experiments.papers.same import differences, likeness


def check(job: Job, options: Sequence[str], folder: Path) -> tuple[bool, str]:
    """Run it anew below this folder, beside what was committed. Forks share what they are forked
    from.
    """
    (kept,) = [one for one in job.runs.found(job.scale)[job.row] if one["seed"] == job.seed]
    rows, below = job.runs.rows(job.scale), folder / job.runs.name
    again = table.figures_of(table.run_row(job.runs.path, rows, job.row, job.seed, below, options))
    return not differences(kept, again), f"{job.name}: {likeness(kept, again)}"
