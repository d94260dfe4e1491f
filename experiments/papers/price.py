"""What a run will cost, before it is begun.

    measured     the same row was run at this scale: its median CPU seconds (by the clock, where
                 an older run recorded no others)
    tried        a few rounds of it were (`--try`): the seconds of a round times the rounds, and
                 what came before and after them
    scaled       the row, or another of the same runs, was measured at another scale: its seconds
                 times the ratio of all that work grows with (WORK), as the two configurations have it

Seconds are of the machine that measured them. Ray, a GPU or more workers make a run shorter; by how
much is not told.
"""

import json
import statistics
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import table
from experiments.papers.catalogue import HERE, SCALES, Runs
from lexfed.experiment.config import load, to_toml

TRIED = HERE / "seconds.json"  # scale -> runs -> row -> what `--try` measured

# what the work of a run grows with, besides the parameters of its model
WORK = (
    "rounds", "cohort.size", "train.epochs", "train.max_length", "data.limit",
    "tokenizer.words_per_user", "word2vec.epochs", "word2vec.steps", "word2vec.dimension",
)  # fmt: skip


@dataclass(frozen=True)
class Price:
    seconds: float | None  # None: nothing like it was ever measured
    how: str


def price(runs: Runs, row: str, scale: str, tried: Mapping[str, Any] | None = None) -> Price:
    known = [spent(run) for run in runs.found(scale).get(row, [])]
    if known:
        return Price(statistics.median(known), f"measured, {len(known)} seeds")
    trials = (read_tried() if tried is None else tried).get(scale, {}).get(runs.name, {})
    return _tried(runs, row, scale, trials) if trials else _scaled(runs, row, scale)


def _tried(runs: Runs, row: str, scale: str, trials: Mapping[str, Any]) -> Price:
    """Of this row, or else of the dearest other one that was tried."""
    like = row if row in trials else max(trials, key=lambda name: float(trials[name]["round"]))
    trial, rounds = trials[like], _table(runs, like, scale).get("rounds", 1)
    seconds = trial["around"] + rounds * trial["round"]
    how = f"{rounds} rounds of {trial['round']:.2f} s, tried"
    if like == row:
        return Price(seconds, how)
    factor, why = ratio(_table(runs, like, scale), _table(runs, row, scale))
    return Price(seconds * factor, f"{factor:.1f} x '{like}', {how} ({why})")


def spent(run: Mapping[str, Any]) -> float:
    """CPU seconds; of a run that did not record them, its seconds by the clock."""
    return float(run.get("made", {}).get("cpu_seconds", run["seconds"]))


def _scaled(runs: Runs, row: str, scale: str) -> Price:
    """From the nearest measured scale; of this row, or else of the dearest other one. Quick runs
    spend their seconds on starting, and say nothing of others.
    """
    near = sorted(runs.scales, key=lambda one: abs(SCALES.index(one) - SCALES.index(scale)))
    for other in [one for one in near if "quick" not in (one, scale)]:
        found = {name: several for name, several in runs.found(other).items() if several}
        if not found:
            continue
        costs = {n: statistics.median(spent(run) for run in r) for n, r in found.items()}
        like = row if row in costs else max(costs, key=lambda name: costs[name])
        factor, why = ratio(_table(runs, like, other), _table(runs, row, scale))
        seconds = costs[like] * factor
        return Price(seconds, f"{factor:,.1f} x {costs[like]:.0f} s of '{like}', {other} ({why})")
    trials = read_tried().get("machine", {}).get(runs.name, {})
    if scale == "paper" and trials:
        base = _tried(runs, row, "machine", trials)
        factor, why = ratio(_table(runs, row, "machine"), _table(runs, row, scale))
        return Price((base.seconds or 0.0) * factor, f"{factor:,.1f} x {base.how} ({why})")
    return Price(None, "never measured: try it with --try")


def ratio(measured: Mapping[str, Any], wanted: Mapping[str, Any]) -> tuple[float, str]:
    """How much more work, and which keys say so."""
    factor, why = 1.0, []
    for key in WORK:
        before, after = _value(measured, key), _value(wanted, key)
        if before and after and before != after:
            factor *= after / before
            why.append(f"{key} {before:g} to {after:g}")
    small, large = parameters(measured), parameters(wanted)
    if small and large and small != large:
        factor *= large / small
        why.append(f"{small / 1e6:.2f} to {large / 1e6:.2f} M parameters")
    names = [table.get("model", {}).get("name") for table in (measured, wanted)]
    if names[0] != names[1]:
        why.append(f"{names[0]} to {names[1]}, whose sizes are not counted")
    return factor, "; ".join(why) or "the same work"


def parameters(table: Mapping[str, Any]) -> float:
    """That every token meets: of the BiLSTM's body, or of a language model. Of others 0: not known."""
    if table.get("method") == "tokenizer_for_free":
        width, layers, size = (
            _value(table, key) or 0.0
            for key in ("language_model.width", "language_model.layers", "tokenizer.size")
        )
        return size * width + layers * 8 * width**2
    hidden, embedding = (_value(table, f"model.{key}") or 0.0 for key in ("hidden", "embedding"))
    bilstm = table.get("model", {}).get("name") == "bilstm"
    return 8 * hidden * (hidden + embedding) if bilstm else 0.0


def _value(table: Mapping[str, Any], key: str) -> float | None:
    group, _, name = key.rpartition(".")
    found = table.get(group, {}).get(name) if group else table.get(name)
    return float(found) if isinstance(found, int | float) else None


def _table(runs: Runs, row: str, scale: str) -> dict[str, Any]:
    """The configuration as the run would write it."""
    settings = [one for one in runs.rows(scale).get(row, []) if not one.startswith("from=")]
    return tomllib.loads(to_toml(load(runs.path, settings)))


def read_tried() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(TRIED.read_text()) if TRIED.is_file() else {}
    return found


def note_tried(scale: str, runs: str, row: str, folder: Path) -> None:
    """CPU seconds of a round, and those around the rounds, of a run that was cut short. The clock
    says how they are parted.
    """
    lines = [json.loads(one) for one in (folder / "rounds.jsonl").read_text().splitlines()]
    figures = table.figures_of(folder)
    busy = spent(figures) / figures["seconds"]
    inside = [busy * line["seconds"] for line in lines]
    around = round(spent(figures) - sum(inside), 1)
    found = read_tried()
    about = {"round": round(statistics.median(inside), 3), "around": around, "rounds": len(lines)}
    found.setdefault(scale, {}).setdefault(runs, {})[row] = about
    TRIED.write_text(json.dumps(found, indent=1) + "\n")


def told(seconds: float) -> str:
    for unit, size, most in (("s", 1, 120), ("min", 60, 180), ("h", 3600, 72)):
        if seconds / size < most:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:,.0f} days"
