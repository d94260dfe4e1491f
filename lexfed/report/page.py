"""The page of one run."""

import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lexfed.core.figures import LABELS, client_name, counted, human, shown
from lexfed.core.files import write_atomically
from lexfed.privacy.accounting import from_json
from lexfed.privacy.promise import NOTHING
from lexfed.records.rundir import RunDir
from lexfed.report import frame, run_charts
from lexfed.report.frame import Tab, code, heading, paragraph, table
from lexfed.report.used import used

Summary = Mapping[str, Any]


def write(run: RunDir, path: Path | None = None) -> Path:
    target = path or run.report
    write_atomically(target, page(run).encode())
    return target


def page(run: RunDir) -> str:
    summary, records = run.so_far(), run.records()
    # as it was written: the method may be gone
    settings = tomllib.loads(run.config_file.read_text(encoding="utf-8"))
    drawn = run_charts.curves(records, settings.get("evaluation", {}).get("clients"))
    tabs = (
        Tab("Results", frame.figures(drawn) + _switch(summary) + _all(summary)),
        Tab("Clients", _clients(summary)),
        Tab("Words", _words(summary, run.artifacts)),
        Tab("Texts it writes", _samples(summary)),
        Tab("Privacy", _privacy(summary, settings.get("privacy", {}))),
        Tab("Configuration", _configuration(run)),
    )
    lead = paragraph(_headline(summary)) + frame.cards(
        (LABELS[key], human(key, summary[key]))
        for key in shown("k")
        if summary.get(key) is not None
    )
    lead += "".join(paragraph(f"Note: {note}.") for note in run.notes())
    return frame.document(f"{summary['name']}: {summary['method_name']}", lead, tabs)


def _headline(summary: Summary) -> str:
    clients, rounds, state = (summary[key] for key in ("clients", "rounds", "stopped"))
    ended = f"; {state}" if str(state).startswith("unfinished") else ""
    return (
        f"{counted(clients, 'client')}, {counted(rounds, 'round')}, seed {summary['seed']}{ended}"
    )


def _all(summary: Summary) -> str:
    rows = [
        (LABELS[key], human(key, summary[key])) for key in LABELS if summary.get(key) is not None
    ]
    return heading("All figures") + table(("figure", "value"), rows, "") + _explained(summary)


def _explained(summary: Summary) -> str:
    """What the figures mean."""
    if summary.get("global_accuracy") is not None:
        return paragraph(
            "Global: each client's model on the common test set, geometric mean over clients. "
            "Local: the same predictions, re-weighted to each client's own label shares. Majority: "
            "what always saying one's most frequent class would score there."
        )
    if summary.get("word_perplexity") is not None:
        return paragraph(
            "Scored on users who never train, on the same words whatever the tokenizer: the "
            "likelihood of a text is shared out among its words, its end included. Word accuracy: "
            "all tokens of a word right, its boundaries told. KL divergence: of the users' words "
            "from the text that the tokenizer was learned from."
        )
    return ""


def _switch(summary: Summary) -> str:
    before, after = summary.get("before_switch"), summary.get("after_switch")
    if not before or not after:
        return ""
    keys = [key for key in before if key != "round" and before[key] is not None]
    heads = (
        "",
        f"before (round {before['round']})",
        "right after",
        f"at the end (round {summary['rounds']})",
    )
    rows = [
        (LABELS[key], *(human(key, part.get(key)) for part in (before, after, summary)))
        for key in keys
    ]
    return heading("The switch of the tokenizer") + table(heads, rows)


# --- clients -------------------------------------------------------------------------------------


def _clients(summary: Summary) -> str:
    drawn = frame.figures(run_charts.clients(summary))
    return drawn + _organisations(summary) + _held_back(summary)


def _held_back(summary: Summary) -> str:
    """How often each client kept its upload to itself; those who never did are counted together."""
    counts = summary.get("held_back")
    if not counts:
        return ""
    held = [
        (client_name(summary, client), str(times))
        for client, times in enumerate(counts["by_client"])
        if times
    ]
    never = len(counts["by_client"]) - len(held)
    rows = [*held, (f"{never} others", "0")]
    return heading("Uploads held back") + table(("client", "times"), rows)


def _organisations(summary: Summary) -> str:
    """Who did not say how it fares is left out."""
    organisations: Sequence[Mapping[str, Any]] = summary.get("organisations") or []
    if not organisations or "alone_heldout_loss" not in organisations[0]:
        return ""
    heads = ("organisation", "federated", "alone", "all text in one place", "gain of joining")
    losses = ("heldout_loss", "alone_heldout_loss", "centralised_heldout_loss")
    rows = [
        (
            client_name(summary, number),
            *(f"{o[key]:.3f}" for key in losses),
            f"{o['alone_heldout_loss'] - o['heldout_loss']:+.3f}",
        )
        for number, o in enumerate(organisations)
        if o["heldout_loss"] is not None
    ]
    return heading("Loss on each organisation's own held-out text") + table(heads, rows)


# --- words and texts -----------------------------------------------------------------------------


def _words(summary: Summary, artifacts: Path) -> str:
    neighbours: Mapping[str, Mapping[str, Sequence[str]]] = summary.get("neighbours") or {}
    rows = [
        (word, model, ", ".join(near))
        for word, models in neighbours.items()
        for model, near in models.items()
    ]
    if not rows:
        return ""
    told = paragraph(
        "For each word, those whose vectors point most nearly the same way. Alone: with the text "
        "of the first organisation only."
    )
    heads = ("word", "vectors", "neighbours")
    listed = heading("Nearest neighbours") + told + table(heads, rows, "grid")
    return listed + frame.figures(run_charts.words(summary, artifacts))


def _samples(summary: Summary) -> str:
    samples: Mapping[str, Sequence[str]] = summary.get("samples") or {}
    if not samples:
        return ""
    told = paragraph(
        "As the model writes them, one text a line: the model knows no more than its tokenizer "
        "lets it spell."
    )
    return told + "".join(
        heading(when) + code("\n\n".join(texts)) for when, texts in samples.items()
    )


# --- privacy -------------------------------------------------------------------------------------


def _privacy(summary: Summary, settings: Mapping[str, Any]) -> str:
    if not summary.get("privacy"):
        # what a run will have promised is said when it has ended
        return paragraph(NOTHING) if settings.get("placement", "none") == "none" else ""
    promise = summary.get("promise") or {}
    notes = "".join(
        f"<li>{frame.escape(f'It holds if {note}.')}</li>" for note in promise.get("notes", ())
    )
    return (
        paragraph(summary["privacy"], "")
        + (f"<ul>{notes}</ul>" if notes else "")
        + frame.figures(run_charts.account(summary))
        + _ledger(summary)
    )


def _ledger(summary: Summary) -> str:
    rows = [
        (r.what or "noisy sums", r.unit, r.against, f"{r.count:,}", str(r.event))
        for r in from_json(summary.get("ledger") or [])
    ]
    heads = ("released", "unit", "against", "times", "how")
    return heading("What was released") + table(heads, rows) if rows else ""


# --- configuration -------------------------------------------------------------------------------


def _configuration(run: RunDir) -> str:
    told = paragraph("What this run has read; config.toml beside this page holds every key.")
    again = shlex.join(["lexfed", "run", "config.toml", "--out", "again"])
    repeat = paragraph("To repeat it, in the folder of this page:") + code(again)
    return repeat + told + code(used(run))
