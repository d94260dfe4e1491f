"""What an audit found, as pictures: how much each attacker read behind each defence."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lexfed.report import charts
from lexfed.report.frame import Chart, escape, heading, marked, matrix, paragraph

Row = Mapping[str, Any]
MOST = 120  # words that are shown of a guess

# what an attack is measured by, the first that it has: its key, what it is called
MEASURES = {
    "recall_at_n": "words found",
    "auc": "AUC; by chance 0.5",
    "accuracy": "accuracy",
    "rouge_l": "ROUGE-L",
    "recall": "recall",
}


def place(row: Row) -> str:
    """Where an attack was tried: method, defence, and what of it the server sees."""
    parts = [row["method"], defence(row["defence"]), row.get("sees")]
    return ", ".join(str(part) for part in parts if part is not None)


def defence(name: Any) -> str:
    return str(name).replace("defences.", "").replace("privacy.", "")


def measure(rows: Sequence[Row]) -> str | None:
    return next((key for key in MEASURES if any(row.get(key) is not None for row in rows)), None)


def grid(title: str, rows: Sequence[Row]) -> str:
    """Defence by attacker, the worst case of each over texts, optimizers and rounds."""
    key = measure(rows)
    if key is None:
        return ""
    known = [row for row in rows if row.get(key) is not None]
    attackers = list(dict.fromkeys(row["attacker"] for row in known))
    table: dict[str, list[float | None]] = {}
    for name in dict.fromkeys(map(place, rows)):
        own = [row for row in known if place(row) == name]
        table[name] = [
            max((row[key] for row in own if row["attacker"] == attacker), default=None)
            for attacker in attackers
        ]
    reads = f"{MEASURES[key]}: the darker, the more is read; the worst case of each cell."
    shades = matrix("method and defence", attackers, table)
    return f"<h3>{escape(title)}</h3>" + paragraph(reads, "reads") + shades


def found(rows: Sequence[Row]) -> Iterator[Chart]:
    """Words found with their intervals, beside what the frequency of words alone would tell."""
    own = [row for row in rows if row.get("recall_at_n") is not None][:40]
    if not own:
        return
    intervals, priors = {}, {}
    for row in own:
        parts = [place(row), row["attack"], row["attacker"]]
        parts += [f"{row['sentences']} texts"] if row.get("sentences") else []
        name = ", ".join(map(str, parts))
        low, high = row.get("recall_interval") or (row["recall_at_n"],) * 2
        intervals[name] = (low, row["recall_at_n"], high)
        if row.get("prior_recall_at_n") is not None:
            priors[name] = row["prior_recall_at_n"]
    yield charts.ranges(
        "Words found",
        "The share of a client's words that an attacker names, with 95 % intervals; the tick is "
        "what word frequency alone tells, without any upload.",
        intervals,
        "share of the client's words",
        priors,
    )


def curves(rows: Sequence[Row]) -> Iterator[Chart]:
    series = {
        ", ".join(map(str, (place(row), row["attack"], row["attacker"]))): [
            (rate, max(share, 1e-3)) for rate, share in row["roc"]
        ]
        for row in rows
        if row.get("roc")
    }
    if series:
        yield charts.lines(
            "Who was there? (ROC, both axes logarithmic)",
            "The share of members found against the share of others wrongly accused; an attack is "
            "strong where it lies above the dotted line of chance at the left.",
            dict(list(series.items())[:8]),
            "members found",
            "others accused",
            log=True,
            straight=True,
        )


def texts(rows: Sequence[Row]) -> str:
    """Clients' texts with the words marked that the attacker named: of each attack, where clients
    have the fewest texts.
    """
    shown: dict[tuple[str, ...], Row] = {}
    for row in rows:
        key = (place(row), row["attack"], str(row["attacker"]))
        if row.get("examples") and (row["sentences"] or 0) <= (
            shown.get(key, row)["sentences"] or 0
        ):
            shown[key] = row
    if not shown:
        return ""
    told = (
        "These are clients' own texts, shown because audit.examples asks for them. Marked: words "
        "that were written and read; in the second column, those of the texts shown here."
    )
    parts = [
        example_of(", ".join(key), one["texts"], one["read"])
        for key, row in shown.items()
        for one in row["examples"]
    ]
    return paragraph(told, "warning") + "".join(parts)


def example_of(title: str, written: Sequence[str], read: Sequence[str]) -> str:
    """Texts, and beside them the words that somebody read: what both have is marked."""
    named, true = set(read), {word for text in written for word in text.split()}
    left = "".join(marked((word, word in named) for word in text.split()) for text in written)
    more = f" and {len(read) - MOST:,} more" if len(read) > MOST else ""
    right = marked([*((word, word in true) for word in read[:MOST]), (more, False)])
    return (
        f'{heading(title)}<div class="pair"><div><h3>What the client wrote</h3>{left}</div>'
        f"<div><h3>What the attacker names</h3>{right}</div></div>"
    )
