"""From repeats to figures: medians, their spread, and what is held against what. Pure functions."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Run = Mapping[str, Any]


@dataclass(frozen=True)
class Spread:
    """A median, and the least and most of the repeats."""

    middle: float
    least: float
    most: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def spreads(runs: Sequence[Run], key: str) -> Spread | None:
    """None: this runner does not have that figure."""
    known = [float(run[key]) for run in runs if run.get(key) is not None]
    return spread(known) if known else None


@dataclass(frozen=True)
class Aim:
    """A figure of ours beside somebody's, and what their ratio must not exceed."""

    part: str
    what: str
    key: str
    ours: str
    theirs: str
    most: float


_ONE, _TWO = "lexfed, one process", "lexfed, two workers"
_PFL_ONE, _PFL_TWO = "pfl-research, one thread", "pfl-research, two threads"
_RUN, _FLOWER = "lexfed run, two workers", "Flower simulation, two workers"
DENSE = "dense single precision"
_CPU, _WALL = "CPU per local step", "wall per round"

AIMS = (
    Aim("one-step", _CPU, "cpu_ms_per_step", _ONE, _PFL_ONE, 0.70),
    Aim("one-step", _WALL, "wall_s_per_round", _TWO, _PFL_TWO, 0.60),
    Aim("variable", _CPU, "cpu_ms_per_step", _ONE, _PFL_ONE, 0.88),
    Aim("variable", _WALL, "wall_s_per_round", _TWO, _PFL_TWO, 0.60),
    Aim("small", _CPU, "cpu_ms_per_step", _ONE, _PFL_ONE, 0.50),
    Aim("classifier", "median round", "wall_s_per_round", _RUN, _FLOWER, 0.33),
    Aim("classifier", "whole run", "whole_s", _RUN, _FLOWER, 0.27),
    Aim("classifier", "peak memory of all processes", "peak_pss_mb", _RUN, _FLOWER, 0.60),
    Aim("classifier", "CPU of the rounds", "cpu_ms_per_step", _ONE, "bare loop, one thread", 0.80),
    Aim("classifier", "upload of a client", "bytes_up_per_client", _RUN, DENSE, 0.17),
)
START_UP_AIM = 1.5  # seconds of CPU beyond `import torch`


@dataclass(frozen=True)
class Ratio:
    aim: Aim
    value: Spread

    @property
    def met(self) -> bool:
        return self.value.middle <= self.aim.most


def of_runner(part: Mapping[str, Any], runner: str, key: str) -> list[float]:
    """A figure of a runner, repeat by repeat; memory is looked at in a run of its own."""
    if runner == DENSE:
        return [float(part["dense"])]
    if key == "peak_pss_mb":
        found = part.get("memory", {}).get(runner)
        return [float(found[key])] if found else []
    return [float(run[key]) for run in part["runs"].get(runner, ()) if run.get(key) is not None]


def ratio(part: Mapping[str, Any], aim: Aim) -> Ratio | None:
    """Median to median. The spread is that of the repeats, each beside its neighbour: runners take
    turns, so both have met the same machine.
    """
    ours, theirs = (of_runner(part, who, aim.key) for who in (aim.ours, aim.theirs))
    if not ours or not theirs:
        return None
    middle = statistics.median(ours) / statistics.median(theirs)
    pairs = [a / b for a, b in zip(ours, theirs, strict=len(theirs) > 1)]
    return Ratio(aim, Spread(middle, min(*pairs, middle), max(*pairs, middle)))


def ratios(found: Mapping[str, Mapping[str, Any]]) -> list[Ratio]:
    known = (ratio(found[aim.part], aim) for aim in AIMS if aim.part in found)
    return [one for one in known if one is not None]
