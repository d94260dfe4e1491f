"""A table of a paper: every row of CONFIG.rows.json with every seed, then means and spreads.

    python experiments/table.py experiments/fedevocab/table4-sst2.toml [--seeds 0 1 2] [--rows NAME ...] [--workers 2]

Runs go to runs/NAME/ROW-SEED; one that is finished is not run again, one that was killed is resumed. The figures are
written beside the configuration, as CONFIG.results.json, and printed as a Markdown table.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ACCURACIES = ("global_accuracy", "local_accuracy", "local_majority_accuracy", "unseen_accuracy", "macro_f1")
HEADS = ("row", "seeds", "global", "local", "majority", "unseen", "macro F1", "up per client and round", "seconds")


def run(config: Path, settings: list[str], seed: int, out: Path, workers: int) -> dict[str, Any]:
    if not (out / "summary.json").exists():
        if (out / "config.toml").exists():
            arguments = [str(out), "--resume"]
        else:
            arguments = [str(config), "--out", str(out), "--set", f"seed={seed}"]
            arguments += [word for setting in settings for word in ("--set", setting)]
        command = [sys.executable, "-m", "lexfed.cli", "run", *arguments, "--workers", str(workers)]
        print(out.name, flush=True)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def spread(values: list[float]) -> str:
    mean = 100 * statistics.mean(values)
    return f"{mean:.1f} ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else f"{mean:.1f}"


def line(name: str, runs: list[dict[str, Any]]) -> str:
    cells = [name, str(len(runs))]
    for key in ACCURACIES:
        values = [run[key] for run in runs if run[key] is not None]
        cells.append(spread(values) if values else "–")
    sent = statistics.mean(run["bytes_up_per_client_round"] for run in runs)
    cells += [f"{sent / 1e6:.2f} MB", f"{statistics.mean(run['seconds'] for run in runs):.0f}"]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", nargs="+")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    rows: dict[str, list[str]] = json.loads(options.config.with_suffix(".rows.json").read_text())
    folder = Path("runs") / options.config.stem
    for seed in options.seeds:  # all rows of one seed first: a table that is cut short is still a table
        for name, settings in rows.items():
            if not options.rows or name in options.rows:
                run(options.config, settings, seed, folder / f"{name.replace(' ', '_')}-{seed}", options.workers)
    figures = {
        name: [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name.replace(' ', '_')}-[0-9]*/summary.json"))]
        for name in rows
    }
    options.config.with_suffix(".results.json").write_text(json.dumps(figures, indent=1) + "\n")
    print("| " + " | ".join(HEADS) + " |\n|" + "---|" * len(HEADS))
    for name, runs in figures.items():
        if runs:
            print(line(name, runs))


if __name__ == "__main__":
    main()
