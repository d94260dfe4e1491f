"""The kinds of pictures that reports have, as specifications of Vega-Lite.

Colours are those of the page's style, so that one picture serves light, dark and paper. Lines and
points differ in dashes and shapes too: colour alone tells nothing to many.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lexfed.core.figures import number
from lexfed.report.frame import Chart

Spec = dict[str, Any]
Points = Sequence[tuple[float, float]]

COLOURS = [f"var(--c{n})" for n in range(1, 9)]
MOST = 400  # points of a line, and rows of a table: more can't be told apart
CONFIG: Spec = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--ink)", "titleColor": "var(--soft)", "gridColor": "var(--line)",
        "gridOpacity": 0.5, "domainColor": "var(--soft)", "tickColor": "var(--soft)",
        "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal",
    },
    "legend": {
        "labelColor": "var(--ink)", "title": None, "orient": "bottom", "labelFontSize": 12,
        "labelLimit": 300, "symbolStrokeWidth": 2, "symbolSize": 90,
    },
    "text": {"color": "var(--ink)"},
}  # fmt: skip


def lines(
    title: str,
    reads: str,
    series: Mapping[str, Points],
    unit: str = "",
    below: str = "round",
    **axes: Any,
) -> Chart:
    """Curves over rounds. `axes`: `log` for a logarithmic one, `straight` for both being so, with a
    line of chance.
    """
    known = {name: thinned(points) for name, points in series.items() if points}
    values = [
        {"x": x, "y": y, "line": name, "n": n}
        for n, (name, points) in enumerate(known.items())
        for x, y in points
    ]
    scale: Spec = {"type": "log"} if axes.get("log") else {"zero": False, "nice": True}
    whole = {"format": "d", "tickMinStep": 1} if below == "round" else {}
    encoding = {
        "x": _axis("x", below, scale if axes.get("straight") else {"zero": False}, **whole),
        "y": _axis("y", unit, scale),
        "tooltip": [
            {"field": "line", "title": "what"},
            {"field": "x", "title": below},
            {"field": "y", "title": unit or "value", "format": ",.4~g"},
        ],
    }
    colour, dash, width, size = _lines(list(known))
    drawn = [
        {"mark": "line", "encoding": {**encoding, **colour, **dash, **width}},
        {"mark": {"type": "point", "filled": True, "opacity": 1},
         "encoding": {**encoding, **colour, **size}},
    ]  # fmt: skip
    rows = [(name, number(x), f"{y:,.4g}") for name, points in known.items() for x, y in points]
    spec = _spec(values, {"layer": [*([_chance()] if axes.get("straight") else []), *drawn]})
    return Chart(title, reads, spec, ("line", below, unit or "value"), rows[:MOST])


def _chance() -> Spec:
    """Beside the curves, the line on which a coin would be."""
    return {
        "data": {"values": [{"x": 1e-3, "y": 1e-3}, {"x": 1, "y": 1}]},
        "mark": {"type": "line", "strokeDash": [2, 4], "color": "var(--soft)"},
        "encoding": {key: {"field": key, "type": "quantitative"} for key in ("x", "y")},
    }


def shares(
    title: str, reads: str, rows: Mapping[str, Sequence[float]], parts: Sequence[str]
) -> Chart:
    """A bar for each row, parted by shares."""
    values = [
        {"row": row, "part": part, "count": count, "order": n}
        for row, counts in rows.items()
        for n, (part, count) in enumerate(zip(parts, counts, strict=True))
    ]
    spec = _spec(
        values,
        {
            "mark": {"type": "bar", "stroke": "var(--paper)", "strokeWidth": 0.5},
            "encoding": {
                "y": {"field": "row", "type": "nominal", "sort": list(rows), "title": None,
                      "axis": _thin_labels(len(rows))},
                "x": {"field": "count", "type": "quantitative", "stack": "normalize",
                      "title": "share", "axis": {"format": "%", "tickCount": 5}},
                "color": {"field": "part", "type": "nominal", "sort": list(parts),
                          "scale": {"domain": list(parts), "range": COLOURS}},
                "order": {"field": "order"},
                "tooltip": [{"field": "row", "title": "client"},
                            {"field": "part", "title": "class"},
                            {"field": "count", "title": "texts"}],
            },
        },
        height=len(rows) * max(7, min(18, 500 // max(1, len(rows)))),
    )  # fmt: skip
    told = [(row, *(number(count) for count in counts)) for row, counts in rows.items()]
    return Chart(title, reads, spec, ("client", *parts), told)


def ranges(
    title: str,
    reads: str,
    rows: Mapping[str, tuple[float, float, float]],
    unit: str,
    marks: Mapping[str, float] | None = None,
) -> Chart:
    """A point with a whisker on both sides for each row: low, middle, high; perhaps a tick that it
    should be compared with.
    """
    beside = marks or {}
    values = [
        {"row": row, "low": low, "middle": middle, "high": high, "tick": beside.get(row)}
        for row, (low, middle, high) in rows.items()
    ]
    layers = _whiskers(list(rows), unit, bool(beside))
    spec = _spec(values, {"layer": layers}, height=max(80, 42 * len(rows)))

    def cell(value: float | None) -> str:
        return "–" if value is None else f"{value:.4g}"

    told = [(row, *map(cell, (*three, beside.get(row)))) for row, three in rows.items()]
    return Chart(title, reads, spec, ("what", "low", "middle", "high", "beside it"), told)


def _whiskers(rows: Sequence[str], unit: str, ticks: bool) -> list[Spec]:
    """What a row is stands above it: a phone has no room at the side."""
    y = {"field": "row", "type": "nominal", "sort": list(rows), "axis": None}
    x = {"type": "quantitative", "title": unit, "scale": {"zero": False, "nice": True}}
    tips = [{"field": "row", "title": "what"}]
    keys = ("low", "middle", "high", *(["tick"] if ticks else []))
    tips += [{"field": key, "title": key, "format": ",.4~g"} for key in keys]

    def layer(mark: Spec, **at: Any) -> Spec:
        return {"mark": {"yOffset": 8, **mark}, "encoding": {"y": y, "tooltip": tips, **at}}

    rule = {"type": "rule", "strokeWidth": 4, "color": COLOURS[0], "opacity": 0.8}
    point = {"type": "point", "filled": True, "size": 90, "color": COLOURS[0], "opacity": 1}
    text = {"type": "text", "align": "left", "yOffset": -8, "fontSize": 12, "limit": 560}
    tick = {"type": "tick", "color": COLOURS[1], "thickness": 3, "size": 18}
    return [
        layer(rule, x={"field": "low", **x}, x2={"field": "high"}),
        layer(point, x={"field": "middle", **x}),
        layer(text, x={"value": 0}, text={"field": "row"}),
        *([layer(tick, x={"field": "tick", **x})] if ticks else []),
    ]


def dots(
    title: str, reads: str, rows: Mapping[str, Mapping[str, float]], unit: str, **axes: Any
) -> Chart:
    """Several points in each row. `axes`: `log` for a logarithmic one."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    values = [
        {"row": row, "what": name, "x": value}
        for row, own in rows.items()
        for name, value in own.items()
    ]
    scale: Spec = {"type": "log"} if axes.get("log") else {"zero": False, "nice": True}
    spec = _spec(
        values,
        {
            "mark": {"type": "point", "filled": True, "size": 80, "opacity": 0.9},
            "encoding": {
                "y": {"field": "row", "type": "nominal", "sort": list(rows), "title": None,
                      "axis": {**_thin_labels(len(rows)), "grid": True}},
                "x": _axis("x", unit, scale),
                **_symbols("what", names),
                "tooltip": [{"field": "row", "title": "row"}, {"field": "what", "title": "what"},
                            {"field": "x", "title": unit, "format": ",.4~g"}],
            },
        },
        height=max(70, len(rows) * max(9, min(26, 600 // max(1, len(rows))))),
    )  # fmt: skip
    told = [
        (row, *(f"{own[name]:.4g}" if name in own else "–" for name in names))
        for row, own in rows.items()
    ]
    return Chart(title, reads, spec, ("", *names), told[:MOST])


def histogram(title: str, reads: str, values: Sequence[float], unit: str) -> Chart:
    """How many there are of each size."""
    low, high = min(values), max(values)
    step = (high - low) / 20 or 1.0
    counts = [0] * 20
    for value in values:
        counts[min(19, int((value - low) / step))] += 1
    bars = [{"from": low + n * step, "to": low + (n + 1) * step, "n": c}
            for n, c in enumerate(counts)]  # fmt: skip
    spec = _spec(
        bars,
        {
            "mark": {"type": "bar", "color": COLOURS[0], "stroke": "var(--paper)"},
            "encoding": {
                "x": {"field": "from", "type": "quantitative", "title": unit,
                      "scale": {"zero": False}, "bin": {"binned": True}},
                "x2": {"field": "to"},
                "y": {"field": "n", "type": "quantitative", "title": "how many"},
                "tooltip": [{"field": key, "title": key, "format": ",.4~g"}
                            for key in ("from", "to")] + [{"field": "n", "title": "how many"}],
            },
        },
    )  # fmt: skip
    told = [(f"{b['from']:,.4g}", f"{b['to']:,.4g}", str(b["n"])) for b in bars]
    return Chart(title, reads, spec, ("from", "to", "how many"), told)


def word_map(
    title: str, reads: str, places: Mapping[str, tuple[float, float]], kinds: Mapping[str, str]
) -> Chart:
    """Words in a plane. `kinds` says for each which group it belongs to."""
    values = [
        {"word": word, "x": x, "y": y, "kind": kinds[word]} for word, (x, y) in places.items()
    ]
    hidden = {"axis": {"labels": False, "ticks": False, "title": None},
              "scale": {"zero": False, "padding": 30}}  # fmt: skip
    near = {axis: {"field": axis, "type": "quantitative", **hidden} for axis in ("x", "y")}
    tips = [{"field": "word", "title": "word"}, {"field": "kind", "title": "near"}]
    names = list(dict.fromkeys(kinds.values()))
    point = {"type": "point", "filled": True, "size": 60}
    text = {"type": "text", "dy": -9, "fontSize": 12}
    spec = _spec(
        values,
        {"layer": [
            {"mark": point, "encoding": {**near, **_symbols("kind", names), "tooltip": tips}},
            {"mark": text, "encoding": {**near, "text": {"field": "word"}, "tooltip": tips}},
        ]},
        height=420,
    )  # fmt: skip
    told = [(word, kinds[word], f"{x:.3f}", f"{y:.3f}") for word, (x, y) in places.items()]
    return Chart(title, reads, spec, ("word", "near", "across", "up"), told, wide=True)


def thinned(points: Points) -> Points:
    """At most so many, evenly, the last one always among them."""
    if len(points) <= MOST:
        return points
    return [*points[: -1 : len(points) // MOST + 1], points[-1]]


def _axis(field: str, title: str, scale: Spec, **axis: Any) -> Spec:
    return {
        "field": field,
        "type": "quantitative",
        "title": title or None,
        "scale": scale,
        "axis": {"tickCount": 6, **axis},
    }


def _lines(names: Sequence[str]) -> tuple[Spec, Spec, Spec, Spec]:
    """Colours, dashes, widths and sizes of points: a line that comes later is thinner, so that of
    two that agree both are seen.
    """
    field = {"field": "line", "type": "nominal", "sort": list(names)}
    key = _legend(names, symbolType="stroke", symbolSize=400)
    dashes = [[1, 0], [7, 3], [2, 3], [9, 3, 2, 3]] * 2

    def scaled(values: Sequence[Any]) -> Spec:
        return {**field, "scale": {"domain": list(names), "range": values}, "legend": key}

    def by_place(values: Sequence[float], else_: float) -> Spec:
        few = enumerate(values) if 1 < len(names) <= len(values) else ()
        tests = [{"test": f"datum.n === {n}", "value": value} for n, value in few]
        return {"condition": tests, "value": else_} if tests else {"value": else_}

    return (
        {"color": scaled(COLOURS)},
        {"strokeDash": scaled(dashes)},
        {"strokeWidth": by_place((4.5, 2.5, 1.5), 2)},
        {"size": by_place((110, 50, 20), 40)},
    )


def _symbols(field: str, names: Sequence[str]) -> Spec:
    domain, key = {"domain": list(names)}, _legend(names)
    shapes = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down"] * 2
    where = {"field": field, "type": "nominal", "sort": list(names)}
    return {
        "color": {**where, "scale": {**domain, "range": COLOURS}, "legend": key},
        "shape": {**where, "scale": {**domain, "range": shapes}, "legend": key},
    }


def _legend(names: Sequence[str], **more: Any) -> Spec | None:
    """One line needs none; long names one column."""
    if len(names) < 2:
        return None
    return {"columns": 1 if max(map(len, names)) > 22 else 2, **more}


def _thin_labels(rows: int) -> Spec:
    return {"labelOverlap": rows > 40, "labelLimit": 140}


def _spec(values: Sequence[Mapping[str, Any]], drawing: Spec, height: Any = 240) -> Spec:
    return {
        "data": {"values": list(values)},
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding", "resize": True},
        "config": CONFIG,
        **drawing,
    }
