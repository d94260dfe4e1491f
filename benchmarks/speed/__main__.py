"""How fast is lexfed beside its peers, on identical work?

    python benchmarks/speed [--repeats 3] [--works one-step variable small] [--envs FOLDER]

lexfed, pfl-research and a bare loop of torch train the same models on the same batches, in turn,
so that all meet the same machine. First it is checked that they agree: one round without noise,
from the same weights, ends in the same weights to 1e-5. Peers live in environments of their own,
which are made here. Results: benchmarks/RESULTS.md, benchmarks/speed.json.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import work as shared

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PEERS = {"pfl": ("torch==2.13.0", "pfl==0.6.0")}
AGREES = 1e-5

# name of a row: script, and its words
Runner = tuple[str, tuple[str, ...]]
RUNNERS: dict[str, Runner] = {
    "lexfed, one process": ("run_lexfed.py", ("run",)),
    "pfl-research, one thread": ("run_pfl.py", ("--threads", "1")),
    "bare loop, one thread": ("run_floor.py", ("--threads", "1")),
    "lexfed, two workers": ("run_lexfed.py", ("run", "--workers", "2")),
    "pfl-research, two threads": ("run_pfl.py", ("--threads", "2")),
}
# what is held against what, by which figure, and what it must not exceed
RATIOS = {
    "one-step": (("cpu", 0.70), ("wall", 0.60)),
    "variable": (("cpu", 0.88), ("wall", 0.60)),
    "small": (("cpu", 0.50),),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=6, help="the first warms up")
    parser.add_argument("--works", nargs="*", choices=shared.WORKS, default=list(shared.WORKS))
    parser.add_argument("--envs", type=Path, default=ROOT / ".bench", help="of the peers")
    parser.add_argument("--without-classifier", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks")
    options = parser.parse_args()
    python = environment(options.envs, "pfl")
    found: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.works:
            folder = Path(scratch) / name
            shared.write(shared.WORKS[name], folder)
            call(sys.executable, "run_lexfed.py", folder, "plan", "--rounds", str(options.rounds))
            apart = agreement(folder, python)
            found[name] = {"agree_to": apart, "runs": measured(folder, python, options.repeats)}
        if not options.without_classifier:
            found["classifier"] = classifier(Path(scratch) / "classifier", options.repeats)
    (options.out / "speed.json").write_text(json.dumps(found, indent=1) + "\n")
    (options.out / "RESULTS.md").write_text(page(found))
    print(page(found))


def environment(envs: Path, peer: str) -> str:
    """The python of a peer's own environment, made if it is not there yet."""
    python = envs / peer / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(envs / peer)], check=True)
    words = [str(python), "-m", "pip", "install", "--quiet", *PEERS[peer]]
    subprocess.run(words, check=True)
    return str(python)


def call(python: str, script: str, folder: Path, *words: str) -> dict[str, object]:
    """One run of one runner; what its last line says."""
    ours = {"PYTHONPATH": str(ROOT)} if python == sys.executable else {"PYTHONPATH": ""}
    done = subprocess.run(
        [python, str(HERE / script), str(folder), *words],
        env={**os.environ, **ours},
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if python != sys.executable else None,
        text=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return dict(json.loads(lines[-1])) if lines else {}


def _call(python: str, runner: Runner, folder: Path, *words: str) -> dict[str, object]:
    script, own = runner
    return call(sys.executable if script == "run_lexfed.py" else python, script, folder, *own,
                *words)  # fmt: skip


def agreement(folder: Path, python: str) -> float:
    """The largest difference between the weights of any two, after a round without noise."""
    weights = []
    for number, runner in enumerate(RUNNERS.values()):
        file = folder / f"agree-{number}.npz"
        _call(python, runner, folder, "--agree", str(file))
        with np.load(file) as after:
            weights.append({name: after[name] for name in after})
    apart = max(
        float(np.abs(one[name] - other[name]).max()) for one in weights[:1] for other in weights[1:]
        for name in one
    )  # fmt: skip
    with np.load(folder / "start.npz") as start:
        moved = max(float(np.abs(weights[0][name] - start[name]).max()) for name in start)
    if not apart < AGREES < moved:
        sys.exit(f"{folder.name}: results are {apart:g} apart, after a step of {moved:g}")
    return apart


def measured(folder: Path, python: str, repeats: int) -> dict[str, list[dict[str, object]]]:
    runs: dict[str, list[dict[str, object]]] = {name: [] for name in RUNNERS}
    for _ in range(repeats):
        for name, runner in RUNNERS.items():
            runs[name].append(_call(python, runner, folder))
            print(json.dumps(runs[name][-1]), flush=True)
    return runs


CLASSIFIER: dict[str, tuple[str, ...]] = {
    "lexfed, one process": ("lexfed",),
    "bare loop, one thread": ("floor",),
    "lexfed, two workers": ("lexfed", "--workers", "2"),
}


def classifier(folder: Path, repeats: int) -> dict[str, object]:
    """The second work (`classify.py`): lexfed says what the batches are, so it runs first."""
    call(sys.executable, "classify.py", folder, "write")
    runs: dict[str, list[dict[str, object]]] = {name: [] for name in CLASSIFIER}
    for _ in range(repeats):
        for name, words in CLASSIFIER.items():
            runs[name].append(call(sys.executable, "classify.py", folder, *words))
            print(json.dumps(runs[name][-1]), flush=True)
    weights = [
        dict(np.load(folder / f"cls-{who}.npz")) for who in ("lexfed-0", "lexfed-2", "floor")
    ]
    apart = max(
        float(np.abs(weights[0][name] - other[name]).max())
        for other in weights[1:]
        for name in other
    )
    if not apart < AGREES:
        sys.exit(f"classifier: results are {apart:g} apart")
    return {"agree_to": apart, "runs": runs}


# --- the page -------------------------------------------------------------------------------------


def page(found: dict[str, dict[str, object]]) -> str:
    lines = [
        "# Speed beside the peers",
        "",
        "Written by `make bench`. Users' texts by Zipf's law, an LSTM with a tied softmax, cohorts "
        "of 50 by Poisson's law, clip, noise and Adam at the server. Every row trains on the same "
        "batches from the same weights; runners take turns, and figures are medians of their "
        "repeats. Absolute times are this machine's; ratios carry.",
        "",
        f"Machine: {os.cpu_count()} cores, {platform.machine()}, Python "
        f"{platform.python_version()}.",
    ]
    for name, one in found.items():
        if name == "classifier":
            lines += _of_classifier(one)
            continue
        work = shared.WORKS[name]
        texts = "1 to 64, 8 in the mean" if work.variable else str(work.texts)
        lines += [
            "",
            f"## {name}: {work.vocabulary:,} tokens, width {work.width}, {texts} texts a user",
            "",
            f"After one round without noise all weights agree to {one['agree_to']:.1e}.",
            "",
            "| runner | CPU ms per local step | s per round | memory MB |",
            "|---|---|---|---|",
        ]
        middle = {who: _median(runs) for who, runs in one["runs"].items()}  # type: ignore[attr-defined]
        lines += [
            f"| {who} | {row['cpu']:.2f} | {row['wall']:.3f} | {row['memory']:.0f} |"
            for who, row in middle.items()
        ]
        lines += ["", *_ratios(name, middle)]
    return "\n".join(lines) + "\n"


def _of_classifier(one: dict[str, object]) -> list[str]:
    runs: dict[str, list[dict[str, float]]] = one["runs"]  # type: ignore[assignment]
    middle = {who: _median(some) for who, some in runs.items()}
    sent = {who: some[0]["bytes_up_per_client"] for who, some in runs.items()}
    ours, floor = "lexfed, one process", "bare loop, one thread"
    return [
        "",
        "## classifier: BiLSTM 100/64, 20,000 words, 10 of 100 clients a round, FedAvg",
        "",
        f"After one round all weights agree to {one['agree_to']:.1e}.",
        "",
        "| runner | CPU ms per local step | s per round | memory MB | upload KB |",
        "|---|---|---|---|---|",
        *(
            f"| {who} | {row['cpu']:.2f} | {row['wall']:.3f} | {row['memory']:.0f} | "
            f"{sent[who] / 1e3:,.0f} |"
            for who, row in middle.items()
        ),
        "",
        f"- CPU per local step, {ours} to {floor}: "
        f"**{middle[ours]['cpu'] / middle[floor]['cpu']:.2f}** (aim: at most 0.80)",
        f"- upload to dense single precision: **{sent[ours] / sent[floor]:.2f}** "
        "(aim: at most 0.17)",
    ]


def _median(runs: list[dict[str, float]]) -> dict[str, float]:
    keys = {"cpu": "cpu_ms_per_step", "wall": "wall_s_per_round", "memory": "peak_mb"}
    return {ours: statistics.median(run[key] for run in runs) for ours, key in keys.items()}


def _ratios(name: str, rows: dict[str, dict[str, float]]) -> list[str]:
    pairs = {
        "cpu": ("lexfed, one process", "pfl-research, one thread", "CPU per local step"),
        "wall": ("lexfed, two workers", "pfl-research, two threads", "wall per round"),
    }
    lines = []
    for figure, most in RATIOS[name]:
        ours, theirs, what = pairs[figure]
        ratio = rows[ours][figure] / rows[theirs][figure]
        lines.append(f"- {what}, {ours} to {theirs}: **{ratio:.2f}** (aim: at most {most:.2f})")
    return lines


if __name__ == "__main__":
    main()
