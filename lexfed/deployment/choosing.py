"""`lexfed server --choose`: a federation for each combination of values, and the best of them, by
what the sites score on texts that they hold out for choosing.

    DIR/1/, DIR/2/, ...   the candidates' runs: each is a federation of its own
    DIR/choice.json       the values and the score of each, and which is best
    DIR/chosen.toml       the configuration with the best values, scored on test texts again

The same command again goes on: who is finished is not run again. Every candidate costs the sites
its exchanges, and their books count them all. Under a promise nothing is chosen: nobody is scored.
"""

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lexfed.core.errors import ConfigError, LexfedError
from lexfed.core.figures import LABELS, chosen_by, human
from lexfed.core.files import write_atomically
from lexfed.deployment.driving import deployed
from lexfed.experiment import config as configuration
from lexfed.experiment import terms
from lexfed.experiment.config import Config
from lexfed.records import checkpoint, rundir
from lexfed.records.rundir import DEPLOYMENT, RunDir

CHOICE, CHOSEN = "choice.json", "chosen.toml"
Prepare = Callable[[Config, Path], object]  # a new run's directory
Train = Callable[[Path], object]  # from where that run is to its end
Say = Callable[[str], None]


@dataclass(frozen=True)
class Candidate:
    values: Mapping[str, str]  # by key, as they were typed
    config: Config


@dataclass(frozen=True)
class Result:
    """How a candidate ended."""

    figure: str | None = None  # by which is chosen
    better: str = ""
    score: float | None = None
    stopped: str | None = None


def candidates(
    path: Path, settings: Sequence[str], choices: Sequence[str], clients: int
) -> list[Candidate]:
    """All combinations of `key=value,value`, each looked at as a configuration."""
    asked = [_values(choice) for choice in choices]
    keys = [key for key, _ in asked]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise ConfigError(f"--choose names {twice[0]} twice: put all its values into one")
    found = []
    for values in itertools.product(*(values for _, values in asked)):
        chosen = dict(zip(keys, values, strict=True))
        set_so = [f"{key}={value}" for key, value in chosen.items()]
        config = deployed(path, [*settings, *set_so], clients)
        config = configuration.changed(config, ["evaluation.split=validation"])
        terms.of(config)  # refuses what only a simulation can do
        found.append(Candidate(chosen, config))
    _check(found)
    return found


def _values(choice: str) -> tuple[str, list[str]]:
    key, _, text = choice.partition("=")
    key, values = key.strip(), [value.strip() for value in text.split(",")]
    if not key or not all(values):
        raise ConfigError(f"--choose wants key=value,value, not '{choice}'")
    if key.partition(".")[0] == "evaluation":
        raise ConfigError(f"{key} says how candidates are scored: it can't be chosen")
    return key, values


def _check(found: Sequence[Candidate]) -> None:
    for (i, one), (j, other) in itertools.combinations(enumerate(found, 1), 2):
        if one.config == other.config:
            raise ConfigError(f"candidates {i} and {j} are the same: leave one out")
    if any(candidate.config.privacy.placement != "none" for candidate in found):
        raise ConfigError(
            "options can't be chosen under [privacy]: nobody is asked for scores there, as no "
            "noise covers them; choose in a simulation on public texts"
        )


def choose(
    found: Sequence[Candidate], out: Path, prepare: Prepare, train: Train, say: Say
) -> Candidate:
    """The best of these candidates, after each was run to its end by `train`."""
    if not (out / CHOICE).is_file():
        rundir.refuse_existing(out)
        out.mkdir(parents=True, exist_ok=True)
    for number, candidate in enumerate(found, 1):
        _check_folder(out / str(number), candidate)
    results = [_result(out / str(number)) for number, _ in enumerate(found, 1)]
    _write(out, found, results, None)
    for number, candidate in enumerate(found, 1):
        said = ", ".join(f"{key} = {value}" for key, value in candidate.values.items())
        say(f"candidate {number} of {len(found)}: {said}")
        results[number - 1] = _run(candidate, out / str(number), prepare, train)
        _write(out, found, results, None)
    best = _best(results, out)
    config = configuration.changed(found[best].config, ["evaluation.split=test"])
    write_atomically(out / CHOSEN, configuration.to_toml(config).encode())
    _write(out, found, results, best)
    for line in _table(found, results, best):
        say(line)
    return found[best]


def _check_folder(folder: Path, candidate: Candidate) -> None:
    directory = RunDir(folder)
    if directory.config_file.is_file():
        for key in configuration.differences(directory.config(), candidate.config):
            raise ConfigError(f"{folder} is of another choice: its {key} differs; choose another")


def _run(candidate: Candidate, folder: Path, prepare: Prepare, train: Train) -> Result:
    begun = (RunDir(folder).checkpoint / checkpoint.MANIFEST).exists()
    if folder.exists() and not begun and not (folder / DEPLOYMENT).is_file():
        rundir.take_away(folder, whole=True)  # killed before it was whole
    if not folder.exists():
        prepare(candidate.config, folder)
    if not RunDir(folder).finished:
        try:
            train(folder)
        except LexfedError:
            if not RunDir(folder).finished:  # one that diverged has an end, too
                raise
    return _result(folder)


def _result(folder: Path) -> Result:
    if not RunDir(folder).finished:
        return Result()
    summary = RunDir(folder).summary()
    figure = chosen_by(summary)
    score = None if figure is None else float(summary[figure.key])
    sound = score is not None and math.isfinite(score) and summary["stopped"] != "diverged"
    return Result(
        figure.key if figure else None,
        figure.better if figure else "",
        score if sound else None,
        summary["stopped"],
    )


def _best(results: Sequence[Result], out: Path) -> int:
    """The first of the best."""
    scored = [n for n, result in enumerate(results) if result.score is not None]
    if not scored:
        raise LexfedError(f"no candidate has a score to choose by; see the runs in {out}")
    if len({results[n].figure for n in scored}) > 1:
        raise LexfedError(f"the candidates have different figures: compare the runs in {out}")

    def loss(number: int) -> float:
        result = results[number]
        score = result.score or 0.0
        return -score if result.better == "higher" else score

    return min(scored, key=loss)


def _write(
    out: Path, found: Sequence[Candidate], results: Sequence[Result], best: int | None
) -> None:
    shown = next((result for result in results if result.score is not None), Result())
    told = [
        {"number": n, "values": dict(one.values), "score": result.score, "stopped": result.stopped}
        for n, (one, result) in enumerate(zip(found, results, strict=True), 1)
    ]
    choice: dict[str, Any] = {
        "figure": shown.figure,
        "better": shown.better or None,
        "best": None if best is None else best + 1,
        "candidates": told,
    }
    write_atomically(out / CHOICE, (json.dumps(choice, indent=2) + "\n").encode())


def _table(found: Sequence[Candidate], results: Sequence[Result], best: int) -> Iterator[str]:
    figure = results[best].figure or ""
    keys = list(found[0].values)
    rows = [["", *keys, LABELS.get(figure, figure), ""]]
    for number, (candidate, result) in enumerate(zip(found, results, strict=True)):
        score = human(figure, result.score)
        word = "best" if number == best else "" if result.score is not None else result.stopped
        rows.append([str(number + 1), *(candidate.values[key] for key in keys), score, word or ""])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
