"""An audit for people: one row per attack and cell, the threat model, and what to make of it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lexfed.audits.closed_form.attackers import THREATS
from lexfed.core.files import write_atomically
from lexfed.report import audit_charts, frame
from lexfed.report.frame import Tab, heading, paragraph, table

Row = Mapping[str, Any]

COLUMNS: Mapping[str, str] = {
    "method": "method", "defence": "defence", "sees": "server sees", "attacker": "attacker has",
    "sentences": "texts",
    "optimizer": "optimizer", "recall_at_n": "words found", "recall_interval": "95 %",
    "prior_recall_at_n": "prior", "rare_recall": "rare words", "ptlr": "with digits", "auc": "AUC",
    "auc_interval": "95 %", "tpr_at_1pct_fpr": "TPR at 1 %", "tpr_at_01pct_fpr": "TPR at 0.1 %",
    "precision": "precision", "recall": "recall", "exposure": "exposure",
    "correlation": "correlation", "nothing_to_read": "nothing to read",
    "dp_limit": "allowed at 1 %", "epsilon_measured": "epsilon measured, at least",
    "epsilon": "epsilon", "accuracy": "accuracy",
    "majority": "always the majority", "round": "round", "rouge_1": "ROUGE-1",
    "rouge_2": "ROUGE-2", "rouge_l": "ROUGE-L",
}  # fmt: skip
TITLES = {
    "rows": "Rows of a shared table that moved are words",
    "span": "Words in the span of the first matrix that travels",
    "norms": "Words by the length of their vectors",
    "sentences": "Is this sentence of the client's?",
    "labels": "How frequent is each class?",
    "inversion": "Texts whose gradient the upload is (gradient inversion)",
    "output rows": (
        "Rows of the output that moved are words: those that come next, or beside, and words drawn "
        "against them"
    ),
    "agreement": "Which words of an agreed list does one organisation alone hold?",
    "canaries": "Planted phrases among 10,000 others (exposure in bits; by chance 1.44)",
    "gender": "Which gender is the user?",
    "age": "How old is the user? (below 20, below 30, older)",
    "threshold": "Was this text trained on? By its loss",
    "lira": "Was this text trained on? By a likelihood ratio (LiRA)",
    "epsilon": "Is the printed epsilon true? Probes sent through the rounds (95 %)",
    "lira offline": "Was this text trained on? By models that have not seen it (offline LiRA)",
}


def sections(rows: Sequence[Row]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """A title, heads and cells for each attack; what says nothing in all of its rows is left
    out.
    """
    ran = [row for row in rows if row.get("not_run") is None]
    for attack in dict.fromkeys(row["attack"] for row in ran):
        own = [row for row in ran if row["attack"] == attack]
        shown = [key for key in COLUMNS if any(row.get(key) is not None for row in own)]
        shown = [
            key for key in shown if key != "attacker" or len({row["attacker"] for row in own}) > 1
        ]
        shown = [key for key in shown if key != "nothing_to_read" or any(row[key] for row in own)]
        if "recall_at_n" in shown:  # of a ranking: precision and recall are those of its first n
            shown = [key for key in shown if key not in ("precision", "recall")]
        name = TITLES.get(attack, attack)  # an attribute of users may be called anything
        title = name if "attacker" in shown else f"{name} (attacker: {own[0]['attacker']})"
        yield (
            title,
            [COLUMNS[key] for key in shown],
            [[cell(key, row.get(key)) for key in shown] for row in own],
        )
    yield from _not_run([row for row in rows if row.get("not_run") is not None])


def _not_run(rows: Sequence[Row]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Once for each reason, with the methods and defences that it stands for."""
    where: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        parts = [cell(key, row[key]) for key in ("method", "defence") if row[key] is not None]
        where.setdefault((row["attack"], row["not_run"]), []).append(", ".join(parts))
    if where:
        yield (
            "What did not run, and why",
            ["attack", "why", "where"],
            [[*key, "; ".join(dict.fromkeys(filter(None, cells)))] for key, cells in where.items()],
        )


def cell(key: str, value: Any) -> str:
    if value is None:
        return "–"
    if key.endswith("_interval"):
        return f"{value[0]:.2f}–{value[1]:.2f}"
    if key == "defence":
        return audit_charts.defence(value)
    digits = 3 if key.startswith("tpr_") or key == "dp_limit" else 2  # chance is 0.01, or 0.001
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def threats(rows: Sequence[Row]) -> list[str]:
    """Who the attackers are; and that an attack which fails is no proof."""
    met = dict.fromkeys(row["attacker"] for row in rows if row["attacker"] is not None)
    lines = [f"{name}: {THREATS[name]}" for name in met if name in THREATS]
    words = (
        "Words found: of a client's n distinct words, those among the first n guesses; the prior "
        "needs no upload."
    )
    chance = (
        "By chance: AUC 0.5, TPR as large as the share of others accused (0.01 at 1 %, 0.001 at "
        "0.1 %)."
    )
    return [
        *lines,
        *epsilons(rows),
        words,
        chance,
        "An attack that finds nothing is no proof: another one may.",
    ]


def epsilons(rows: Sequence[Row]) -> Iterator[str]:
    """What was measured beside what is printed."""
    for row in rows:
        low, high = row.get("epsilon_measured"), row["epsilon"]
        if low is None:
            continue
        printed = "nothing printed" if high is None else f"printed at most {high:.2f}"
        verdict = ": the promise is broken" if high is not None and low > high else ""
        where = ", ".join(cell(key, row[key]) for key in ("method", "defence"))
        yield f"epsilon measured at least {low:.2f} (95 %), {printed}{verdict} ({where})"


def headline(about: Mapping[str, str]) -> list[str]:
    """What the audit is of."""
    return [f"{key}: {value}" for key, value in about.items()]


def write(folder: Path, rows: Sequence[Row], about: Mapping[str, str]) -> Path:
    path = folder / "audit.html"
    write_atomically(path, page(rows, about).encode())
    return path


def page(rows: Sequence[Row], about: Mapping[str, str]) -> str:
    tables = "".join(heading(title) + table(heads, cells) for title, heads, cells in sections(rows))
    remarks = "".join(f"<li>{frame.escape(line)}</li>" for line in threats(rows))
    lead = f'<p class="sub">{"<br>".join(map(frame.escape, headline(about)))}</p>'
    tabs = (
        Tab("What was read", _pictures(rows)),
        Tab("Texts", audit_charts.texts(rows)),
        Tab("Every attack", tables),
        Tab("Threat model", f"<ul>{remarks}</ul>"),
    )
    return frame.document("What uploads give away", lead, tabs)


def _pictures(rows: Sequence[Row]) -> str:
    ran = [row for row in rows if row.get("not_run") is None]
    grids = "".join(
        audit_charts.grid(TITLES.get(attack, attack), [r for r in ran if r["attack"] == attack])
        for attack in dict.fromkeys(row["attack"] for row in ran)
    )
    drawn = frame.figures([*audit_charts.found(ran), *audit_charts.curves(ran)])
    no_proof = paragraph("An attack that finds nothing is no proof: another one may.")
    return grids + drawn + no_proof if grids or drawn else ""
