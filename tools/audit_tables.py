"""Tables of attacks, defences, liars and secure sums, from their result files."""

from collections.abc import Callable
from typing import Any

from experiments.audit import defences_table as _defences
from tools.result_files import markdown, results

Results = dict[str, list[dict[str, Any]]]


def defences() -> str:
    """What each costs, and what an attacker with public files then reads."""
    runs: Results = results("audit/defences-sst2.results")
    rows = results("audit/defences-sst2.audit-0")
    base = {run["seed"]: run["global_accuracy"] for run in runs["none"]}
    sizes = sorted({row["sentences"] for row in rows})
    prior = [f"{_defences._prior(rows, size):.2f}" for size in sizes]
    lines = [["(word frequencies alone, no upload)", "–", *prior]]
    for setting, name in _defences.ROWS.items():
        gaps = [run["global_accuracy"] - base[run["seed"]] for run in runs[name]]
        about = {"attack": "span", "defence": setting, "attacker": "public files",
                 "optimizer": "sgd"}  # fmt: skip
        read = [_defences.found(rows, "recall_at_n", sentences=size, **about) for size in sizes]
        cost = "–" if setting == "none" else _defences.interval(gaps)
        lines.append([f"`{setting}`", cost, *(cell.partition(" (")[0] for cell in read)])
    heads = ("defence", "points of accuracy", *(f"read of {size} texts" for size in sizes))
    return markdown(heads, lines)


def defence_cost() -> str:
    return str(_defences.utilities(results("audit/defences-sst2.results"))) + "\n"


def words_found(file: str, optimizer: str) -> str:
    return str(_defences.words(results(f"audit/defences-sst2.{file}"), optimizer)) + "\n"


def sentences_told(file: str, optimizer: str) -> str:
    return str(_defences.membership(results(f"audit/defences-sst2.{file}"), optimizer)) + "\n"


# --- who wrote this, who lies ---------------------------------------------------------------------

ATTRIBUTE_DEFENCES = {
    "undefended": "none",
    "100 words a user instead of 800": "tokenizer.words_per_user=100",
    "local noise, z = 0.01": "privacy.placement=local; privacy.clip=0.5; privacy.noise=0.01",
    "local noise, z = 0.1": "privacy.placement=local; privacy.clip=0.5; privacy.noise=0.1",
    "local noise, z = 1": "privacy.placement=local; privacy.clip=0.5; privacy.noise=1.0",
}
READS = {
    "whole upload": "knows half of the users",
    "output bias": "knows half of the users, reads the bias",
}


def attributes() -> str:
    """AUC with its 95 % interval over users, from the first round's uploads."""
    cells = {
        (row["attack"], row["defence"], row["attacker"]): row
        for row in results("audit/attributes.results")
        if row["round"] == 1
    }

    def auc(attack: str, defence: str, attacker: str) -> str:
        row = cells[(attack, defence, attacker)]
        low, high = row["auc_interval"]
        return f"{row['auc']:.2f} ({low:.2f}–{high:.2f})"

    asked = [(attack, read) for attack in ("gender", "age") for read in READS]
    rows = [[name, *(auc(attack, defence, READS[read]) for attack, read in asked)]
            for name, defence in ATTRIBUTE_DEFENCES.items()]  # fmt: skip
    return markdown(("", *(f"{attack}: {read}" for attack, read in asked)), rows)


RULES = ("mean", "norm bound", "trimmed mean", "median")
LIES = {
    "nobody lies": "nobody",
    "2 of 10 send -10 times their update": "2 scaled",
    "4 of 10 train on flipped labels": "4 flipped",
}


def malice() -> str:
    """Global accuracy, seed by seed."""
    runs: Results = results("audit/malice.results")

    def cell(who: str, rule: str) -> str:
        return " / ".join(f"{100 * run['global_accuracy']:.1f}" for run in runs[f"{who}, {rule}"])

    return markdown(
        ("", *RULES), [[name, *(cell(who, rule) for rule in RULES)] for name, who in LIES.items()]
    )


# --- secure sums ----------------------------------------------------------------------------------


def secure() -> str:
    rows = [
        [f"{row['sum']}, {row['clients']:,} clients", f"{row['up_per_client'] / 1e6:.1f} MB",
         f"{row['client_cpu']:.2f}", f"{row['server_cpu']:.1f}"]
        for row in results("benchmarks/secure") if row["clients"] in (50, 1000)
    ]  # fmt: skip
    return markdown(("", "up per client", "client, CPU s", "server, CPU s"), rows)


def combined() -> str:
    """Private words, secure sums and noise together."""
    runs: Results = results("combined/private-secure-dp.results")
    rows = []
    for name, (run,) in runs.items():
        epsilon, half = run.get("epsilon_this_run"), run["global_accuracy_interval"]
        told = "none" if epsilon is None else f"{epsilon:.1f}"
        score = f"{100 * run['global_accuracy']:.1f} (half an interval: {100 * half:.1f})"
        rows.append([name, score, told, "–" if epsilon is None else f"{run['delta']:g}"])
    return markdown(("run", "global, %", "epsilon of this run", "at delta"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "defence cost": defence_cost,
    "words, SGD without dropout": lambda: words_found("audit-0", "sgd"),
    "words, as trained": lambda: words_found("audit", "adam"),
    "sentences, as trained": lambda: sentences_told("audit", "adam"),
    "attributes": attributes,
    "malice": malice,
    "secure": secure,
    "combined": combined,
}
