"""Figures in prose: references into result files, so that nobody types a number.

    {{fedevocab/table4-sst2 > fedavg > global_accuracy}}

is experiments/fedevocab/table4-sst2.results.json, its row `fedavg`, the mean over its runs. A file
may also be named from the repository's folder (`benchmarks/secure`). A step goes into an object by
its key, or, as `key=value; key=value`, chooses from a list. After `|` comes the form: `spread`
(mean ± spread), `each` (every seed), `minus ROW` (the mean difference, seed by seed), `median`,
`percent`, `share` (all, none, or so many %), `MB`, `thousands`, or a format such as `.2f`.
Accuracies and shares are told in percent. What does not exist is refused.
"""

import json
import re
import statistics
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from experiments import table

REFERENCE = re.compile(r"\{\{((?!table |claim |when |overview|standing|repeated)[^{}]+?)\}\}", re.S)


class UnknownFigureError(Exception):
    """A figure that is not there, in a sentence."""


def resolved(text: str, root: Path) -> str:
    return REFERENCE.sub(lambda found: looked_up(" ".join(found[1].split()), root), text)


def looked_up(reference: str, root: Path) -> str:
    path, _, form = (part.strip() for part in reference.partition(" | "))
    name, *steps = (step.strip() for step in path.split(" > "))
    found = _walk(_read(_file(name, root)), steps, reference)
    key = steps[-1] if steps else ""
    if form.startswith("minus "):
        other = [form.removeprefix("minus ").strip(), *steps[1:]]
        return _minus(found, _walk(_read(_file(name, root)), other, reference), key, reference)
    values = [value for _, value in found]
    if any(isinstance(value, dict | list) for value in values):
        raise UnknownFigureError(f"{reference}: not a figure")
    return _shown(values, key, form, reference)


def _file(name: str, root: Path) -> Path:
    tried = (f"experiments/{name}.results.json", f"experiments/{name}.json", f"{name}.json")
    for one in tried:
        if (root / one).is_file():
            return root / one
    raise UnknownFigureError(f"there is no result file called '{name}'")


@cache
def _parsed(path: Path, modified: int) -> Any:
    return json.loads(path.read_text())


def _read(path: Path) -> Any:
    return _parsed(path, path.stat().st_mtime_ns)


Found = list[tuple[Any, Any]]  # a seed, or a place in a list, and what lies there


def _walk(start: Any, steps: Sequence[str], reference: str) -> Found:
    found: Found = [(None, start)]
    for step in steps:
        found = [one for where, value in found for one in _into(where, value, step, reference)]
    return found


def _into(where: Any, value: Any, step: str, reference: str) -> Found:
    if isinstance(value, list) and all(isinstance(one, dict) for one in value):
        if "=" in step:
            return _chosen(value, step, reference)
        return [
            next(iter(_into(one.get("seed", number), one, step, reference)))
            for number, one in enumerate(value)
        ]
    if isinstance(value, list) and step.isdigit() and int(step) < len(value):
        return [(where, value[int(step)])]
    known = table.derived(value) if isinstance(value, dict) else {}
    if known.get(step) is None:
        raise UnknownFigureError(f"{reference}: there is no '{step}'")
    return [(where, known[step])]


def _chosen(value: list[dict[str, Any]], step: str, reference: str) -> Found:
    wanted = dict(part.strip().split("=", 1) for part in step.split("; "))
    found = [
        (one.get("seed", number), one)
        for number, one in enumerate(value)
        if all(str(one.get(key)) == said for key, said in wanted.items())
    ]
    if not found:
        raise UnknownFigureError(f"{reference}: nothing with {step}")
    return found


def _minus(mine: Found, theirs: Found, key: str, reference: str) -> str:
    other = dict(theirs)
    gaps = [value - other[seed] for seed, value in mine if seed in other]
    if not gaps:
        raise UnknownFigureError(f"{reference}: no seed that both rows have")
    scale, digits = _scale(key, gaps)
    return f"{scale * statistics.mean(gaps):+,.{digits}f}"


FORMS: dict[str, Callable[[list[float], str], str]] = {
    "": lambda values, key: _number(statistics.mean(values), key),
    "spread": lambda values, key: table.cell(key, values),
    "each": lambda values, key: ", ".join(_number(value, key) for value in values),
    "median": lambda values, key: _number(statistics.median(values), key),
    "percent": lambda values, _: f"{100 * statistics.mean(values):.1f}",
    "share": lambda values, _: _share(statistics.mean(values)),
    "MB": lambda values, _: f"{statistics.mean(values) / 1e6:.2f} MB",
    "thousands": lambda values, _: f"{statistics.mean(values):,.0f}",
}


def _shown(values: list[Any], key: str, form: str, reference: str) -> str:
    if any(isinstance(value, str) for value in values):
        return ", ".join(dict.fromkeys(str(value) for value in values))
    if re.fullmatch(r"\.\df", form):
        return f"{statistics.mean(values):{form}}"
    if form not in FORMS:
        raise UnknownFigureError(f"{reference}: unknown form '{form}'")
    return FORMS[form](values, key)


def _share(value: float) -> str:
    return {0.0: "none", 1.0: "all"}.get(value, f"{100 * value:.0f} %")


def _number(value: float, key: str) -> str:
    scale, digits = _scale(key, [value])
    return f"{scale * value:,.{digits}f}"


def _scale(key: str, values: Sequence[float]) -> tuple[int, int]:
    if key in table.PERCENT:
        return 100, 1
    return 1, 0 if isinstance(values[0], int) or abs(values[0]) > 100 else 3
