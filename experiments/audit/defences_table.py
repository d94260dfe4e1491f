"""One table of what a defence costs and what it leaves to whom, from what the two commands of
defences-sst2.toml wrote.

    python experiments/audit/defences_table.py              # reads the files beside it, prints
    Markdown

    defences-sst2.results.json      utility: table.py, a list of runs for each row
    defences-sst2.audit.json        attacks: audit.json of the configuration, and with
    model.dropout = 0.0
    defences-sst2.audit-0.json

Every cell has a 95 % interval: of accuracies and of their differences from the undefended run of
the same seed by Student's
t over seeds, of attacks by drawing uploads again (`lexfed audit`).
"""

import json
import statistics
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
T = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}  # the 97.5 % point of Student's t, by the number of seeds
ATTACKERS = ("public files", "0.5 d known words", "1 d known words", "a colluding client")

# a defence as [audit] writes it -> its row of utilities; and the same without dropout, where it was
# trained
ROWS = {
    "none": "none",
    "defences.rotation=shared": "rotation",
    "defences.rotation=shared; defences.whiten=true": "rotation, whitened",
    "defences.rotation=shared; defences.whiten=true; defences.normalise=true": "rotation, whitened, one length",
    "defences.private_layers=first": "first layer private",
    "defences.embedding_dropout=0.2": "embedding dropout 0.2",
    "defences.minimum_words=500": "at least 500 words",
    "privacy.placement=local; privacy.clip=5.0; privacy.noise=0.003": "local noise 0.003",
    "self_audit.limit=0.1": "self-audit 0.1",
}


def interval(values: list[float]) -> str:
    """In points: the mean, and half of the interval."""
    if len(values) < 2:
        return f"{100 * values[0]:.1f}" if values else "–"
    half = T[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return f"{100 * statistics.mean(values):.1f} ± {100 * half:.1f}"


def utilities(results: dict[str, list[dict[str, Any]]]) -> str:
    lines = [
        "| defence | seeds | global | against none, same seeds | local |",
        "|---|---|---|---|---|",
    ]
    accuracy = {
        row: {run["seed"]: run["global_accuracy"] for run in runs} for row, runs in results.items()
    }
    for row, runs in results.items():
        base = accuracy["no dropout" if row.startswith("no dropout") else "none"]
        gaps = [value - base[seed] for seed, value in accuracy[row].items() if seed in base]
        figures = [
            interval([run[key] for run in runs]) for key in ("global_accuracy", "local_accuracy")
        ]
        gap = "" if row in ("none", "no dropout") else interval(gaps)
        lines.append(f"| {row} | {len(runs)} | {figures[0]} | {gap} | {figures[1]} |")
    return "\n".join(lines)


def found(rows: list[dict[str, Any]], key: str, **wanted: Any) -> str:
    row = next(
        (row for row in rows if all(row[name] == value for name, value in wanted.items())), None
    )
    if row is None or row[key] is None:
        return "nothing to read" if row is not None and row["nothing_to_read"] else "nobody sent"
    low, high = row["recall_interval" if key == "recall_at_n" else "auc_interval"] or (
        row[key],
        row[key],
    )
    sent = "" if row["uploads"] == 15 else f", {row['uploads']} of 15 sent"
    return f"{row[key]:.2f} ({low:.2f}–{high:.2f}{sent})"


def words(rows: list[dict[str, Any]], optimizer: str) -> str:
    sizes = sorted({row["sentences"] for row in rows})
    heads = [f"{size} texts" for size in sizes]
    lines = [
        "| defence | attacker has | " + " | ".join(heads) + " |",
        "|---" * (2 + len(sizes)) + "|",
    ]
    prior = [f"{_prior(rows, size):.2f}" for size in sizes]
    lines.append("| | word frequencies alone (prior) | " + " | ".join(prior) + " |")
    for setting, name in ROWS.items():
        met = {
            row["attacker"] for row in rows if row["attack"] == "span" and row["defence"] == setting
        }
        for attacker in [one for one in ATTACKERS if one in met] or [ATTACKERS[0]]:
            about = {
                "attack": "span",
                "defence": setting,
                "attacker": attacker,
                "optimizer": optimizer,
            }
            cells = [found(rows, "recall_at_n", sentences=size, **about) for size in sizes]
            lines.append(f"| {name} | {attacker} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _prior(rows: list[dict[str, Any]], size: int) -> float:
    values = [
        row["prior_recall_at_n"]
        for row in rows
        if row["attack"] == "span" and row["sentences"] == size
    ]
    return statistics.mean(value for value in values if value is not None)


def membership(rows: list[dict[str, Any]], optimizer: str) -> str:
    sizes = sorted({row["sentences"] for row in rows})
    lines = [
        "| defence | " + " | ".join(f"{size} texts" for size in sizes) + " |",
        "|---" * (1 + len(sizes)) + "|",
    ]
    for setting, name in ROWS.items():
        about = {
            "attack": "sentences",
            "defence": setting,
            "attacker": ATTACKERS[0],
            "optimizer": optimizer,
        }
        lines.append(
            f"| {name} | "
            + " | ".join(found(rows, "auc", sentences=size, **about) for size in sizes)
            + " |"
        )
    return "\n".join(lines)


def main() -> None:
    print("Utility\n\n" + utilities(json.loads((HERE / "defences-sst2.results.json").read_text())))
    for file, dropout in (
        ("defences-sst2.audit-0.json", "without dropout"),
        ("defences-sst2.audit.json", "dropout 0.5"),
    ):
        rows = json.loads((HERE / file).read_text())
        for optimizer in ("sgd", "adam"):
            print(f"\nWords found, {optimizer}, {dropout}\n\n" + words(rows, optimizer))
            print(
                f"\nIs this sentence the client's? AUC, {optimizer}, {dropout}\n\n"
                + membership(rows, optimizer)
            )


if __name__ == "__main__":
    main()
