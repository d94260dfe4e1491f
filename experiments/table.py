"""A table of a paper: every row of CONFIG.rows.json with every seed, then means and spreads.

    python experiments/table.py experiments/fedevocab/table4-sst2.toml [--seeds 0 1 2] [--rows
    NAME ...] [--workers 2]

Runs go to runs/NAME/ROW-SEED; one that is finished is not run again, one that was killed is
resumed. The figures are
written beside the configuration, as CONFIG.results.json, and printed as a Markdown table. A setting
`from=ROW/kept/000100`
forks the run of that row with the same seed at a round that it kept.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

# what a table shows: of the key's runs, mean and spread over seeds
COLUMNS = {
    "global_accuracy": "global", "local_accuracy": "local", "local_majority_accuracy": "majority",
    "unseen_accuracy": "unseen", "macro_f1": "macro F1",
    "heldout_loss": "held-out loss", "centralised_heldout_loss": "all text in one place",
    "alone_heldout_loss": "best alone", "gain": "share of the gain, %", "better_off": "organisations better off",
    "wordsim353": "WordSim353", "centralised_wordsim353": "in one place", "vocabulary_size": "words",
    "simlex999": "SimLex-999", "analogies": "analogies",
    "single_source_words": "of one alone",
    "word_perplexity": "perplexity per word", "worst_tenth_perplexity": "worst tenth of users",
    "word_accuracy": "word accuracy", "tokens_per_word": "tokens per word", "oov_rate": "unknown words",
    "unigram_kld": "KL divergence", "after_switch": "right after the switch",
}  # fmt: skip
PERCENT = (
    "global_accuracy",
    "local_accuracy",
    "local_majority_accuracy",
    "unseen_accuracy",
    "macro_f1",
    "gain",
    "word_accuracy",
    "oov_rate",
)


def run(config: Path, settings: list[str], seed: int, out: Path, workers: int) -> dict[str, Any]:
    if not (out / "summary.json").exists():
        if (out / "config.toml").exists():
            arguments = [str(out), "--resume"]
        else:
            arguments = [str(config), "--out", str(out), "--set", f"seed={seed}"]
            arguments += [word for setting in settings for word in _option(setting, out, seed)]
        command = [sys.executable, "-m", "lexfed.cli", "run", *arguments, "--workers", str(workers)]
        print(out.name, flush=True)
        code = subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode
        if code and not (out / "summary.json").exists():  # with one it diverged: a figure too
            raise SystemExit(code)
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def _option(setting: str, out: Path, seed: int) -> tuple[str, str]:
    if not setting.startswith("from="):
        return "--set", setting
    row, _, rest = setting.removeprefix("from=").partition("/")
    return "--from", str(out.parent / f"{row.replace(' ', '_')}-{seed}" / rest)


def derived(summary: dict[str, Any]) -> dict[str, Any]:
    """Of word vectors: how much of what centralised training gains over none, and who gained by
    joining.
    """
    if summary.get("after_switch"):
        return {**summary, "after_switch": summary["after_switch"]["word_perplexity"]}
    loss, central = summary.get("heldout_loss"), summary.get("centralised_heldout_loss")
    if loss is None or central is None:
        return summary
    untrained, own = summary["untrained_heldout_loss"], summary["organisations"]
    own = [one for one in own if one["heldout_loss"] is not None]  # who said how it fares
    better = sum(one["heldout_loss"] < one["alone_heldout_loss"] for one in own)
    return {
        **summary,
        "gain": (untrained - loss) / (untrained - central),
        "better_off": f"{better} of {len(own)}",
    }


def cell(key: str, values: list[Any]) -> str:
    if not values:
        return "–"
    if isinstance(values[0], str):
        return ", ".join(dict.fromkeys(values))
    scale, digits = (
        (100, 1)
        if key in PERCENT
        else (1, 0 if isinstance(values[0], int) or values[0] > 100 else 3)
    )
    mean = f"{scale * statistics.mean(values):,.{digits}f}"
    return f"{mean} ± {scale * statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def table(figures: dict[str, list[dict[str, Any]]]) -> str:
    runs = [derived(run) for rows in figures.values() for run in rows]
    keys = [key for key in COLUMNS if any(run.get(key) is not None for run in runs)]
    if "heldout_loss" not in keys:
        keys = [key for key in keys if key != "vocabulary_size"]
    heads = ("row", "seeds", *(COLUMNS[key] for key in keys), "up per client and round", "seconds")
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for name, rows in figures.items():
        if rows:
            values = {
                key: [run[key] for run in map(derived, rows) if run.get(key) is not None]
                for key in keys
            }
            sent = statistics.mean(run["bytes_up_per_client_round"] for run in rows)
            cells = [
                name,
                str(len(rows)),
                *(cell(key, values[key]) for key in keys),
                f"{sent / 1e6:.2f} MB",
            ]
            lines.append(
                "| "
                + " | ".join([*cells, f"{statistics.mean(run['seconds'] for run in rows):.0f}"])
                + " |"
            )
    return "\n".join(lines)


def figures_of(run: Path) -> dict[str, Any]:
    """The summary, and of a language model the way there."""
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    if summary.get("word_perplexity") is None:
        return summary
    records = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    curve = [
        [r["round"], round(r["metrics"]["word_perplexity"], 2)] for r in records if r["metrics"]
    ]
    return {**summary, "curve": curve}


def pairs(figures: dict[str, list[dict[str, Any]]]) -> str:
    """Language models on the same test users: the ratio of two rows' perplexities, and its
    standard error over users.
    """
    from lexfed.metrics.perplexity import TextScore, paired_difference

    rows = {
        name: {run["seed"]: run for run in runs if run.get("users")}
        for name, runs in figures.items()
    }
    lines = []
    for name, runs in rows.items():
        for other in [
            other for other in ("oracle", "wiki", "baseline") if rows.get(other) and other != name
        ]:
            for seed in sorted(runs.keys() & rows[other].keys()):
                mine, theirs = (
                    [TextScore(nll, words, 0, 0, 0) for nll, words in r[seed]["users"]]
                    for r in (runs, rows[other])
                )
                difference, error = paired_difference(mine, theirs)
                percent = 100 * (math.exp(difference) - 1)
                lines.append(
                    f"{name} against {other}, seed {seed}: {percent:+.2f} % ± {100 * error:.2f}, {len(mine)} users"
                )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", nargs="+")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    rows: dict[str, list[str]] = json.loads(options.config.with_suffix(".rows.json").read_text())
    folder = Path("runs") / options.config.stem
    for (
        seed
    ) in options.seeds:  # all rows of one seed first: a table that is cut short is still a table
        for name, settings in rows.items():
            if not options.rows or name in options.rows:
                run(
                    options.config,
                    settings,
                    seed,
                    folder / f"{name.replace(' ', '_')}-{seed}",
                    options.workers,
                )
    figures = {
        name: [
            figures_of(path.parent)
            for path in sorted(folder.glob(f"{name.replace(' ', '_')}-[0-9]*/summary.json"))
        ]
        for name in rows
    }
    options.config.with_suffix(".results.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(table(figures))
    print(pairs(figures))


if __name__ == "__main__":
    main()
