"""The HTML report of one run: one file without scripts or links to elsewhere, so that it can be
mailed and archived.
"""

import html
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from lexfed.core.figures import LABELS, client_name, curve_of, human, shown
from lexfed.core.files import write_atomically
from lexfed.records.rundir import Record, RunDir

BLUE, ORANGE, GREY = "#2563eb", "#d97706", "#6b7280"

# title, factor, and lines: key of a record's metrics, what it is called, colour
CURVES: Sequence[tuple[str, float, Sequence[tuple[str, str, str]]]] = (
    (
        "Accuracy, %",
        100,
        (
            ("global_accuracy", "global", BLUE),
            ("local_accuracy", "local", ORANGE),
            ("local_majority_accuracy", "majority class", GREY),
        ),
    ),
    (
        "Loss on held-out text",
        1,
        (
            ("heldout_loss", "federated", BLUE),
            ("centralised_heldout_loss", "all text in one place", GREY),
            ("alone_heldout_loss", "the best organisation alone", ORANGE),
        ),
    ),
    (
        "Perplexity per word",
        1,
        (
            ("word_perplexity", "test users", BLUE),
            ("worst_tenth_perplexity", "their worst tenth", GREY),
        ),
    ),
)

STYLE = """
:root { color-scheme: light }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; \
color: #1f2937 }
h1 { font-size: 1.6rem; margin-bottom: 0 } h2 { font-size: 1.1rem; margin-top: 2.2rem }
p.sub { color: #6b7280; margin-top: .2rem }
.cards { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.4rem 0 }
.card { border: 1px solid #e5e7eb; border-radius: .6rem; padding: .6rem 1rem; min-width: 8.5rem }
.card b { display: block; font-size: 1.4rem } .card span { color: #6b7280; font-size: .85rem }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: 1rem }
.plots svg { width: 100%; height: auto }
table { border-collapse: collapse } th { text-align: left; padding-right: 1.2rem }
td { padding: .2rem 1.2rem .2rem 0; border-bottom: 1px solid #f3f4f6 }
td:last-child { font-variant-numeric: tabular-nums }
pre { background: #f9fafb; padding: 1rem; overflow-x: auto; font-size: .85rem }
"""


def write(run: RunDir, path: Path | None = None) -> Path:
    target, summary = path or run.report, run.so_far()
    write_atomically(
        target, page(summary, run.records(), (run.path / "config.toml").read_text()).encode()
    )
    return target


def page(summary: Mapping[str, Any], records: Sequence[Record], config: str) -> str:
    title = html.escape(f"{summary['name']}: {summary['method_name']}")
    rows = [
        (LABELS[key], human(key, summary[key])) for key in LABELS if summary.get(key) is not None
    ]
    table = "".join(f"<tr><td>{html.escape(k)}</td><td>{html.escape(v)}</td></tr>" for k, v in rows)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>{STYLE}</style></head><body>
<h1>{title}</h1>
<p class="sub">{_headline(summary)}</p>
<div class="cards">{"".join(_cards(summary))}</div>
<div class="plots">{"".join(_plots(records))}</div>
<h2>All figures</h2><table>{table}</table>
{_explained(summary)}
{_held_back(summary)}
<h2>Configuration</h2><pre>{html.escape(config)}</pre>
</body></html>
"""


def _headline(summary: Mapping[str, Any]) -> str:
    clients, rounds, state = (summary[key] for key in ("clients", "rounds", "stopped"))
    ended = f"; {state}" if str(state).startswith("unfinished") else ""
    return html.escape(f"{clients} clients, {rounds} rounds, seed {summary['seed']}{ended}")


def _explained(summary: Mapping[str, Any]) -> str:
    """What the figures mean, and the tables that only some runs have."""
    if summary.get("global_accuracy") is not None:
        return (
            '<p class="sub">'
            "Global: each client's model on the common test set, geometric mean over clients. "
            "Local: the\n"
            "same predictions, re-weighted to each client's own label shares. Majority: what "
            "always saying one's most frequent class would\n"
            "score there.</p>"
        )
    if summary.get("word_perplexity") is not None:
        return _switch(summary) + (
            '<p class="sub">Scored on users who never train, on the same words whatever the\n'
            "tokenizer: the likelihood of a text is shared out among its words, its end included. "
            "Word accuracy: all tokens of a word\n"
            "right, its boundaries told. KL divergence: of the users' words from the text that the "
            "tokenizer was learned from.</p>"
        )
    return _organisations(summary) + _neighbours(summary.get("neighbours") or {})


def _held_back(summary: Mapping[str, Any]) -> str:
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
    return "<h2>Uploads held back</h2>" + table(
        ("client", "times"), [*held, (f"{never} others", "0")]
    )


def _switch(summary: Mapping[str, Any]) -> str:
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
    return "<h2>The switch of the tokenizer</h2>" + table(heads, rows)


def _organisations(summary: Mapping[str, Any]) -> str:
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
    return "<h2>Loss on each organisation's own held-out text</h2>" + table(heads, rows)


def _neighbours(neighbours: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    rows = [
        (word, model, ", ".join(near))
        for word, models in neighbours.items()
        for model, near in models.items()
    ]
    return (
        "<h2>Nearest neighbours</h2>" + table(("word", "vectors", "neighbours"), rows)
        if rows
        else ""
    )


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _cards(summary: Mapping[str, Any]) -> list[str]:
    return [
        f'<div class="card"><b>{human(key, summary[key])}</b><span>{LABELS[key]}</span></div>'
        for key in shown("k")
        if summary.get(key) is not None
    ]


def _plots(records: Sequence[Record]) -> list[str]:
    scored = [record for record in records if record["metrics"]]

    def curves(factor: float, lines: Sequence[tuple[str, str, str]]) -> Callable[[Any], None]:
        def draw(axes: Any) -> None:
            for key, label, colour in lines:
                points = [
                    (r["round"], factor * curve_of(r)[key])
                    for r in scored
                    if r["metrics"].get(key) is not None
                ]
                if points:
                    axes.plot(*zip(*points, strict=True), ".-", label=label, color=colour)
            axes.legend(frameon=False)

        return draw

    def loss(axes: Any) -> None:
        points = [
            (record["round"], record["loss"]) for record in records if record["loss"] is not None
        ]
        axes.plot(*zip(*points, strict=True), color=BLUE) if points else None

    def traffic(axes: Any) -> None:
        for key, label, colour in (("bytes_up", "up", BLUE), ("bytes_down", "down", ORANGE)):
            sent = [sum(r[key] for r in records[: i + 1]) / 1e6 for i in range(len(records))]
            axes.plot([record["round"] for record in records], sent, label=label, color=colour)
        axes.legend(frameon=False)

    plots = [svg("Training loss", loss), svg("Sent so far, MB", traffic)]
    metrics = {key for record in scored for key in record["metrics"]}
    scores = [
        svg(title, curves(factor, lines))
        for title, factor, lines in CURVES
        if lines[0][0] in metrics
    ]
    return [*scores, *plots]


def svg(title: str, draw: Callable[[Any], None], below: str = "round") -> str:
    figure = Figure(figsize=(4.6, 3.2), layout="constrained")  # no pyplot: it keeps global state
    axes = figure.add_subplot()
    draw(axes)
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(below)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    text = buffer.getvalue()
    return text[text.index("<svg") :]
