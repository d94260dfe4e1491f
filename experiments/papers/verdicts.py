"""Does a claim of a paper hold here? Computed from comparisons between rows of a result file.

Rows are compared seed by seed, so that both met the same clients. A comparison

    holds       in every seed, and by more than the spread of the differences over seeds
    in part     in the mean, but not in every seed, or by less than that spread
    does not    the mean says otherwise

With one seed there is no spread: the 95 % interval of the figure itself (texts and clients drawn)
takes its place, of perplexities that of the difference over test users; without one, a single seed
shows a claim in part at best. So does a row of which a seed has no figure (it diverged). A claim of
several comparisons holds if all do, does not if none does, and else holds in part; it is not judged
before all of them have been run.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from experiments import table

HOLDS, PART, NOT = "holds", "in part", "does not"
MANY = 4  # comparisons that are told one by one


@dataclass(frozen=True)
class Comparison:
    """left (> or <) times * right + plus, of one figure."""

    left: str
    than: Literal[">", "<"]
    right: str
    figure: str
    times: float = 1.0
    plus: float = 0.0
    runs: str = ""  # where the rows are; default: the entry's first runs
    right_figure: str = ""  # default: the same
    right_runs: str = ""  # default: the same


@dataclass(frozen=True)
class Claim:
    id: str
    says: str  # the paper's claim, in a sentence
    comparisons: tuple[Comparison, ...]


@dataclass(frozen=True)
class Outcome:
    word: str  # holds, in part, does not
    differences: tuple[float, ...]  # by seed; above zero speaks for the claim
    pairs: tuple[tuple[float, float], ...]  # what was compared, by seed
    about: Comparison


@dataclass(frozen=True)
class Verdict:
    word: str  # of the claim; empty: not all of it has been run
    outcomes: tuple[Outcome, ...]
    missing: int  # comparisons that have not been run


def value(run: Mapping[str, Any], figure: str) -> float | None:
    found = table.derived(dict(run)).get(figure)
    number = None if found is None or isinstance(found, str) else float(found)
    return number if number is not None and math.isfinite(number) else None


def paired(
    left: Sequence[Mapping[str, Any]], right: Sequence[Mapping[str, Any]], about: Comparison
) -> list[tuple[float, float]]:
    """The two figures, of every seed that both have."""
    first, second = (
        _by_seed(left, about.figure),
        _by_seed(right, about.right_figure or about.figure),
    )
    pairs = [(first[seed], second[seed]) for seed in sorted(first.keys() & second.keys())]
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def _by_seed(runs: Sequence[Mapping[str, Any]], figure: str) -> dict[int, float | None]:
    return {run["seed"]: value(run, figure) for run in runs}


def outcome(
    left: Sequence[Mapping[str, Any]], right: Sequence[Mapping[str, Any]], about: Comparison
) -> Outcome | None:
    """None: there is no seed that both rows have."""
    sign = 1.0 if about.than == ">" else -1.0
    pairs = paired(left, right, about)
    gaps = [sign * (a - about.times * b - about.plus) for a, b in pairs]
    if not gaps:
        return None
    beyond = yardstick(gaps, left, right, about)
    first, second = (
        _by_seed(left, about.figure),
        _by_seed(right, about.right_figure or about.figure),
    )
    whole = len(pairs) == len(first.keys() & second.keys())  # else a seed of it has no figure
    mean = statistics.mean(gaps)
    if mean <= 0:
        word = NOT
    elif whole and min(gaps) > 0 and beyond is not None and mean > beyond:
        word = HOLDS
    else:
        word = PART
    return Outcome(word, tuple(gaps), tuple(pairs), about)


def yardstick(
    gaps: Sequence[float],
    left: Sequence[Mapping[str, Any]],
    right: Sequence[Mapping[str, Any]],
    about: Comparison,
) -> float | None:
    """What a difference must exceed; None: nothing tells."""
    if len(gaps) > 1:
        return statistics.stdev(gaps)
    if about.figure == "word_perplexity":
        return over_users(left, right)
    intervals = [run.get(f"{about.figure}_interval") for run in (*left, *right)]
    return max((float(one) for one in intervals if one is not None), default=None)


def over_users(
    left: Sequence[Mapping[str, Any]], right: Sequence[Mapping[str, Any]]
) -> float | None:
    """Half of the 95 % interval of a difference of perplexities, of the same test users."""
    first, second = (
        {run["seed"]: run for run in runs if run.get("users")} for runs in (left, right)
    )
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    pair = table.of_users(first[seeds[0]], second[seeds[0]])
    return None if pair is None else 1.96 * pair[1] * float(second[seeds[0]]["word_perplexity"])


def verdict(
    claim: Claim, rows: Callable[[str, str], Sequence[Mapping[str, Any]]], runs: str
) -> Verdict:
    """`rows`: the runs of a row, by the name of the catalogue's runs and of the row."""
    found = []
    for one in claim.comparisons:
        where = one.runs or runs
        left, right = rows(where, one.left), rows(one.right_runs or where, one.right)
        found.append(outcome(left, right, one))
    outcomes = tuple(one for one in found if one is not None)
    words = {one.word for one in outcomes}
    missing = len(found) - len(outcomes)
    word = "" if missing else words.pop() if len(words) == 1 else PART
    return Verdict(word, outcomes, missing)


def evidence(found: Verdict) -> str:
    """What was compared, and the difference seed by seed, in words; of more than can be read, how
    many hold.
    """
    words = [one.word for one in found.outcomes]
    if len(words) > MANY:
        held, partly = words.count(HOLDS), words.count(PART)
        also = f", {partly} in part" * bool(partly)
        return f"{held} of {len(words)} comparisons hold" + "s" * (held == 1) + also
    said = [_compared(one) for one in found.outcomes]
    if found.missing:
        said.append(f"{found.missing} of {found.missing + len(found.outcomes)} not run yet")
    return "; ".join(said)


def _compared(one: Outcome) -> str:
    scale, unit = _unit(one.about.figure)
    left, right = ([scale * pair[n] for pair in one.pairs] for n in (0, 1))
    gaps = [a - b for a, b in zip(left, right, strict=True)]
    size = statistics.mean(map(abs, right))
    digits = 1 if unit == " points" else 0 if size >= 100 else 2 if unit else 3
    mean, base = (f"{statistics.mean(of):,.{digits}f}" for of in (left, right))
    spread = f" ± {statistics.stdev(gaps):.{digits}f}" if len(gaps) > 1 else ""
    seeds = f"{len(gaps)} seed" + "s" * (len(gaps) > 1)
    where = f"{one.about.runs}: " if one.about.runs else ""
    return f"{where}{mean} against {base}: {statistics.mean(gaps):+,.{digits}f}{spread}{unit} ({seeds})"


def _unit(figure: str) -> tuple[float, str]:
    if figure in table.PERCENT:
        return 100.0, " points"
    return (1e-6, " MB") if figure.startswith("bytes") else (1.0, "")
