"""What is measured: in each part, runners take turns on one work, after they were seen to agree.

A part's result is plain JSON: `runs` (of each runner one entry a repeat), `memory` (of each runner,
from a run of its own that was looked at from outside), `agree_to`.
"""

import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import work as shared
from peers import HERE, Environments, said
from watching import EVERY, Line, Watched

AGREES = 1e-5
Part = dict[str, Any]


@dataclass(frozen=True)
class Runner:
    """Somebody who does the work, in an environment."""

    peer: str
    words: tuple[str, ...]  # a script of this folder, and what it is told beside the folder
    read: Callable[[Watched], dict[str, float]] = said


@dataclass(frozen=True)
class Measuring:
    envs: Environments
    folder: Path  # of the work
    repeats: int
    rounds: int | None = None  # None: as the work has it

    def play(
        self, runner: Runner, *more: object, every: float | None = None
    ) -> tuple[Watched, dict[str, float]]:
        script, *words = runner.words
        place = [script] if script == "-m" else [HERE / script, self.folder]
        seen = self.envs.run(runner.peer, [*place, *words, *more], every)
        return seen, {**runner.read(seen), "whole_s": seen.wall_s}

    def in_turn(
        self, runners: Mapping[str, Runner], told: Callable[[Runner], Sequence[object]]
    ) -> Part:
        """Timed repeats in turn; then one run of each whose memory is looked at."""
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in runners}
        memory: dict[str, dict[str, float]] = {}
        for _ in range(self.repeats):
            for name, runner in runners.items():
                runs[name].append(self.play(runner, *told(runner))[1])
                print(f"  {name}: {json.dumps(runs[name][-1])}", flush=True)
        for name, runner in runners.items():
            seen, _ = self.play(runner, *told(runner), every=EVERY)
            memory[name] = {"peak_pss_mb": seen.peak_pss_mb, "processes": seen.processes}
            print(f"  {name}: {json.dumps(memory[name])}", flush=True)
        return {"runs": runs, "memory": memory}


def apart(weights: Sequence[Mapping[str, np.ndarray]], start: Mapping[str, np.ndarray]) -> float:
    """The largest difference between the first and any other. The names must be the same ones, and
    something must have moved: else they agree about nothing.
    """
    first, *others = weights
    if any(other.keys() != first.keys() for other in others):
        sys.exit("the runners have different parameters: " + ", ".join(sorted(first)))
    most = max(float(np.abs(first[n] - other[n]).max()) for other in others for n in first)
    moved = max(float(np.abs(first[name] - start[name]).max()) for name in start)
    if not most < AGREES < moved:
        sys.exit(f"results are {most:g} apart, after a step of {moved:g}")
    return most


def loaded(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as found:
        return {name: found[name] for name in found}


# --- language models ------------------------------------------------------------------------------

LANGUAGE = {
    "lexfed, one process": Runner("lexfed", ("run_lexfed.py", "run")),
    "pfl-research, one thread": Runner("pfl", ("run_pfl.py", "--threads", "1")),
    "bare loop, one thread": Runner("pfl", ("run_floor.py", "--threads", "1")),
    "lexfed, two workers": Runner("lexfed", ("run_lexfed.py", "run", "--workers", "2")),
    "pfl-research, two threads": Runner("pfl", ("run_pfl.py", "--threads", "2")),
}


def language(name: str, measuring: Measuring) -> Part:
    folder = measuring.folder
    shared.write(shared.WORKS[name], folder)
    rounds = ("--rounds", measuring.rounds or 6)
    measuring.play(Runner("lexfed", ("run_lexfed.py", "plan")), *rounds)
    weights = []
    for number, runner in enumerate(LANGUAGE.values()):
        measuring.play(runner, "--agree", folder / f"agree-{number}.npz")
        weights.append(loaded(folder / f"agree-{number}.npz"))
    agree_to = apart(weights, loaded(folder / "start.npz"))

    def told(runner: Runner) -> Sequence[object]:
        return rounds if runner.peer == "lexfed" else ()  # the others do what is planned

    return {"agree_to": agree_to, **measuring.in_turn(LANGUAGE, told)}


# --- the classifier -------------------------------------------------------------------------------

ROUND = re.compile(r"round (\d+)/\d+ ")


def from_outside(seen: Watched) -> dict[str, float]:
    """The rounds of `lexfed run` as its lines appear: each is printed when the round is over, its
    checkpoint written and its record too.
    """
    ends: dict[int, Line] = {}
    for line in seen.lines:
        if found := ROUND.match(line.text):
            ends.setdefault(int(found[1]), line)  # the last round has a line before it is scored
    first, *others = (ends[number] for number in sorted(ends))
    before = (first, *others)
    wall = [after.wall_s - line.wall_s for line, after in zip(before, others, strict=False)]
    began = next(line for line in seen.lines if " to train on" in line.text)
    return {
        "wall_s_per_round": float(np.median(wall)) if wall else float("nan"),
        "cpu_s_of_rounds": before[-1].cpu_s - first.cpu_s,
        "start_s": began.wall_s,
        "start_cpu_s": began.cpu_s,
        "first_round_s": first.wall_s,
    }


OUT = "{out}"
CLASSIFIER = {
    "lexfed, one process": Runner("lexfed", ("classify.py", "lexfed")),
    "bare loop, one thread": Runner("lexfed", ("classify.py", "floor")),
    "lexfed run, two workers": Runner(
        "lexfed", ("-m", "lexfed.cli", "run", "{config}", "--workers", "2", "--out", OUT),
        from_outside,
    ),
    "Flower simulation, two workers": Runner("flower", ("run_flower.py",)),
}  # fmt: skip


class Classifying(Measuring):
    """`lexfed run` is told by a file and writes a directory; the others are told a folder."""

    def play(
        self, runner: Runner, *more: object, every: float | None = None
    ) -> tuple[Watched, dict[str, float]]:
        out = self.folder / "run"
        if OUT not in runner.words:
            return super().play(runner, *more, every=every)
        shutil.rmtree(out, ignore_errors=True)
        known = {OUT: str(out), "{config}": str(self.folder / "classify.toml")}
        words = tuple(known.get(word, word) for word in runner.words)
        seen, found = super().play(Runner(runner.peer, words, runner.read), *more, every=every)
        return seen, {**found, **_of_run(out), **_by_step(self.folder, found, out)}


def _of_run(out: Path) -> dict[str, float]:
    """What the run directory says of bytes and of the model."""
    records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    summary = json.loads((out / "summary.json").read_text())
    clients = sum(record["clients"] for record in records)
    return {
        "bytes_up_per_client": sum(record["bytes_up"] for record in records) / clients,
        "server_s_per_round": float(
            np.median([record["seconds"] for record in records[1:] or records])
        ),
        "accuracy": summary["global_accuracy"],
    }


def _by_step(folder: Path, found: Mapping[str, float], out: Path) -> dict[str, float]:
    """The processor time of the rounds after the first, over the local steps in them."""
    import classify

    played = len((out / "rounds.jsonl").read_text().splitlines())
    steps = classify.steps(folder, played)
    return {"cpu_ms_per_step": 1e3 * found["cpu_s_of_rounds"] / steps} if steps else {}


def classifier(measuring: Measuring) -> Part:
    """lexfed says what the batches are, so it runs first."""
    import classify
    from safetensors.numpy import load_file

    folder = measuring.folder
    classifying = Classifying(measuring.envs, folder, measuring.repeats, measuring.rounds)
    rounds = measuring.rounds or classify.ROUNDS
    classify.write(folder)

    def told(runner: Runner, number: int = rounds) -> Sequence[object]:
        return ("--set", f"rounds={number}") if OUT in runner.words else ("--rounds", number)

    one, floor, cli, flower = CLASSIFIER.values()
    classifying.play(one, *told(one))
    classifying.play(floor, *told(floor, 1))
    classifying.play(cli, *told(cli, 1))
    classifying.play(flower, "--agree", folder / "cls-flower.npz")
    weights = [loaded(folder / f"cls-{who}.npz") for who in ("lexfed", "floor", "flower")]
    weights.append(load_file(folder / "run" / "artifacts" / "model.safetensors"))
    agree_to = apart(weights, loaded(folder / "cls-start.npz"))
    found = classifying.in_turn(CLASSIFIER, told)
    return {"agree_to": agree_to, "rounds": rounds, "dense": classify.dense_bytes(), **found}


# --- start-up -------------------------------------------------------------------------------------

START_UP = {"lexfed run": Runner("lexfed", ("start_up.py",))}


def start_up(measuring: Measuring) -> Part:
    runs = []
    for number in range(measuring.repeats):
        folder = measuring.folder / str(number)
        here = Measuring(measuring.envs, folder, 1)
        runs.append(here.play(START_UP["lexfed run"])[1])
        print(f"  lexfed run: {json.dumps(runs[-1])}", flush=True)
    return {"runs": {"lexfed run": runs}}
