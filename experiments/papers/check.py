"""Does a run give the same bits again? What a fork was forked from is run first.

On the same processor and build of torch every figure and every number of the model must be the
same. On another one the last bits of a sum may differ: there figures are compared to five digits,
the model is not, and the answer says so.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import table
from experiments.papers.driver import Job

MOVES = ("seconds", "device", "made")  # from run to run, by nature
DIGITS = 5


def check(job: Job, options: Sequence[str], folder: Path) -> tuple[bool, str]:
    """Run it anew below this folder, beside what was committed. Forks share what they are forked
    from.
    """
    (kept,) = [one for one in job.runs.found(job.scale)[job.row] if one["seed"] == job.seed]
    rows, below = job.runs.rows(job.scale), folder / job.runs.name
    again = table.figures_of(table.run_row(job.runs.path, rows, job.row, job.seed, below, options))
    differ, same = differences(kept, again), same_machine(kept, again)
    how = "bit for bit" if same else f"to {DIGITS} digits (another processor or torch made it)"
    return not differ, f"{job.name}: " + (f"differs in {', '.join(differ)}" if differ else how)


def told_again(kept: Mapping[str, Any], again: Mapping[str, Any]) -> str:
    """Of a run that was done anew, how it compares with the one whose place it takes."""
    if not kept:
        return ""
    if differ := differences(kept, again):
        return f"another result than before: {', '.join(differ)}"
    return "the same again, " + (
        "bit for bit" if same_machine(kept, again) else f"to {DIGITS} digits"
    )


def same_machine(kept: Mapping[str, Any], again: Mapping[str, Any]) -> bool:
    """As far as is known: the oldest runs did not say what they ran on."""
    then, now = kept.get("made", {}), again.get("made", {})
    return all(key in then and then[key] == now.get(key) for key in ("torch", "cpu"))


def differences(kept: Mapping[str, Any], again: Mapping[str, Any]) -> list[str]:
    exact = same_machine(kept, again)
    names = sorted((kept.keys() | again.keys()) - set(MOVES))
    found = [name for name in names if not same(kept.get(name), again.get(name), exact)]
    if exact and kept["made"]["model"] != again["made"]["model"]:
        found.append("the model")
    return found


def same(one: Any, other: Any, exact: bool) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[k], other[k], exact) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(same(a, b, exact) for a, b in pairs)
    if not exact and isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=10.0**-DIGITS)
    return bool(one == other)
