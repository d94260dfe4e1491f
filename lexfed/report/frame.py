"""What every page is made of: one file that can be mailed and archived. Styles, the script that
draws the charts and their numbers are in it, and nothing is fetched from elsewhere.

All text is escaped here. Should that ever fail, the page forbids scripts but its own two, by their
hashes, and any request.
"""

import base64
import hashlib
import html
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lexfed import __version__

ASSETS = Path(__file__).parent / "assets"


@dataclass(frozen=True)
class Chart:
    """A picture, and the same for who can't see it."""

    title: str
    reads: str  # one sentence: how to read it
    spec: Mapping[str, Any]  # of Vega-Lite
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    wide: bool = False


@dataclass(frozen=True)
class Tab:
    name: str
    content: str  # HTML


def document(title: str, lead: str, tabs: Sequence[Tab]) -> str:
    """`lead` is HTML, and stands above the tabs; tabs without content are left out."""
    told = [tab for tab in tabs if tab.content]
    sections = "".join(
        f'<section class="tab" id="tab-{n}"><h2>{escape(tab.name)}</h2>{tab.content}</section>'
        for n, tab in enumerate(told)
    )
    scripts = _scripts()
    hashes = " ".join(f"'{_hash(script)}'" for script in scripts)
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {hashes}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{escape(title)}</title><style>{_asset("page.css")}</style></head><body>
<h1>{escape(title)}</h1>
{lead}
<main>{sections}</main>
<footer><p>{escape(_written())}</p></footer>
{"".join(f"<script>{script}</script>" for script in scripts)}
</body></html>
"""


def escape(text: Any) -> str:
    return html.escape(str(text))


def paragraph(text: str, style: str = "sub") -> str:
    return f'<p class="{style}">{escape(text)}</p>' if text else ""


def heading(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], style: str = "data") -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return _scrolled(
        f'<table class="{style}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>',
        heads,
    )


def _scrolled(content: str, heads: Sequence[str]) -> str:
    """By keyboard too; a screen reader says what it is that scrolls."""
    label = escape(f"Table: {', '.join(filter(None, heads))}")
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{content}</div>'


def matrix(corner: str, columns: Sequence[str], rows: Mapping[str, Sequence[float | None]]) -> str:
    """Numbers from 0 to 1, the darker the larger."""

    def shade(value: float | None) -> str:
        if value is None:
            return "<td>–</td>"
        return f'<td style="--v:{min(max(value, 0.0), 1.0):.3f}">{value:.2f}</td>'

    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in (corner, *columns))
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(map(shade, values))}</tr>'
        for name, values in rows.items()
    )
    return _scrolled(
        f'<table class="matrix"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>',
        (corner, *columns),
    )


def figures(charts: Iterable[Chart]) -> str:
    drawn = "".join(map(_figure, charts))
    return f'<div class="figures">{drawn}</div>' if drawn else ""


def _figure(chart: Chart) -> str:
    spec = json.dumps({**chart.spec, "description": f"{chart.title}. {chart.reads}"})
    style = ' class="wide"' if chart.wide else ""
    return (
        f"<figure data-chart{style}><h3>{escape(chart.title)}</h3>"
        f'<p class="reads">{escape(chart.reads)}</p><div class="chart"></div>'
        f"<details><summary>The numbers</summary>{table(chart.heads, chart.rows)}</details>"
        # no end of a script, nor a comment, in text from users
        f'<script type="application/json">{spec.replace("<", chr(92) + "u003c")}</script></figure>'
    )


def cards(figures: Iterable[tuple[str, str]]) -> str:
    """A few large figures: what each is, and its value."""
    parts = (
        f'<div class="card"><b>{escape(value)}</b><span>{escape(label)}</span></div>'
        for label, value in figures
    )
    return f'<div class="cards">{"".join(parts)}</div>'


def marked(words: Iterable[tuple[str, bool]]) -> str:
    """A text, with the words marked that somebody read."""
    parts = (f"<mark>{escape(word)}</mark>" if read else escape(word) for word, read in words)
    return f'<p class="words">{" ".join(parts)}</p>'


def code(text: str) -> str:
    return f'<pre tabindex="0" role="region" aria-label="Code">{escape(text)}</pre>'


@cache
def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _scripts() -> tuple[str, str]:
    return _asset("vega.js"), _asset("page.js")


@cache
def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _written() -> str:
    """Of this page: a run may have been made with others."""
    named = [f"lexfed {__version__}", f"Python {platform.python_version()}"]
    for package in ("torch", "numpy"):
        try:
            named.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return f"Written by {', '.join(named)}. Charts: Vega and Vega-Lite (BSD-3), within this file."
