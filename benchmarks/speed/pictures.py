"""The plots: Vega-Lite specifications of the figures. `draw.py` makes SVG of them."""

from collections.abc import Iterable, Mapping
from typing import Any

from ratios import of_runner, spread

Spec = dict[str, Any]
Part = Mapping[str, Any]
# a picture: title, which figure, its unit, and what it is multiplied with
BARS = {
    "cpu": ("CPU per local step", "cpu_ms_per_step", "ms", 1.0),
    "wall": ("Wall per round", "wall_s_per_round", "seconds", 1.0),
    "start": ("From the start of the process to its first round", "start_s", "seconds", 1.0),
    "memory": ("Peak memory of all processes (PSS)", "peak_pss_mb", "MB", 1.0),
    "bytes": ("Upload of a client in a round", "bytes_up_per_client", "KB", 1e-3),
}
COLOURS = {"lexfed": "#0b6e99", "Flower": "#d1711f", "pfl": "#7a5195", "bare": "#8a8a8a"}
CONFIG: Spec = {
    "background": "white",
    "font": "sans-serif",
    "view": {"stroke": None},
    "axis": {"labelFontSize": 11, "titleFontSize": 11, "labelLimit": 260, "gridOpacity": 0.5},
    "header": {"labelFontSize": 12, "labelFontWeight": "bold"},
    "title": {"fontSize": 13, "anchor": "start"},
}


def bars(found: Mapping[str, Part]) -> dict[str, Spec]:
    """A picture of each figure, with a panel for every part that has it."""
    drawn = {}
    for name, (title, key, unit, factor) in BARS.items():
        rows = [
            {"work": part, "runner": who, "who": _who(who), "middle": seen.middle * factor,
             "least": seen.least * factor, "most": seen.most * factor}
            for part, content in found.items() if "memory" in content
            for who in content["runs"]
            if (values := of_runner(content, who, key)) and (seen := spread(values))
        ]  # fmt: skip
        if rows:
            drawn[f"speed-{name}"] = _bars(title, f"{title}, {unit}", rows)
    return drawn


def _who(runner: str) -> str:
    return next((name for name in COLOURS if runner.startswith(name)), "bare")


def _bars(title: str, unit: str, rows: list[dict[str, Any]]) -> Spec:
    y = {"field": "runner", "type": "nominal", "sort": None, "title": None}
    colour = {
        "field": "who", "type": "nominal", "legend": None,
        "scale": {"domain": list(COLOURS), "range": list(COLOURS.values())},
    }  # fmt: skip
    layers = [
        {"mark": {"type": "bar", "height": {"band": 0.7}},
         "encoding": {"y": y, "color": colour,
                      "x": {"field": "middle", "type": "quantitative", "title": unit}}},
        {"mark": {"type": "rule", "color": "black"},
         "encoding": {"y": y, "x": {"field": "least", "type": "quantitative"},
                      "x2": {"field": "most"}}},
        {"mark": {"type": "text", "align": "left", "dx": 5, "fontSize": 10},
         "encoding": {"y": y, "x": {"field": "most", "type": "quantitative"},
                      "text": {"field": "middle", "format": ".3~g"}}},
    ]  # fmt: skip
    works = list(dict.fromkeys(row["work"] for row in rows))
    panels = [
        {"title": work, "width": 420, "height": {"step": 20},
         "data": {"values": [row for row in rows if row["work"] == work]}, "layer": layers}
        for work in works
    ]  # fmt: skip
    return {
        "title": title,
        "config": CONFIG,
        "vconcat": panels,
        "resolve": {"scale": {"x": "independent", "y": "independent"}},
    }


def lines(
    title: str, rows: Iterable[Mapping[str, Any]], panels: Mapping[str, tuple[str, str, str]]
) -> Spec:
    """Curves on logarithmic axes, a panel each: title, and the fields of x, y and the line."""
    values = [dict(row) for row in rows]
    drawn = []
    for name, (x, y, line) in panels.items():
        encoding = {
            "x": {"field": x, "type": "quantitative", "scale": {"type": "log"}},
            "y": {"field": y, "type": "quantitative", "scale": {"type": "log"}},
            "color": {"field": line, "type": "nominal", "sort": None},
            "strokeDash": {"field": line, "type": "nominal", "sort": None},
        }
        drawn.append(
            {"title": name, "width": 300, "height": 220, "encoding": encoding,
             "layer": [{"mark": "line"}, {"mark": {"type": "point", "filled": True, "size": 40}}]}
        )  # fmt: skip
    return {
        "title": title, "config": CONFIG, "data": {"values": values}, "hconcat": drawn,
        "resolve": {"scale": {"color": "independent", "strokeDash": "independent"}},
    }  # fmt: skip
