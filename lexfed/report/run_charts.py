"""The pictures of one run, from what its directory holds."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import safe_open

from lexfed.core.figures import ON_THE_WAY, client_name, counted, curve_of
from lexfed.records.rundir import Record
from lexfed.report import charts
from lexfed.report.charts import Points
from lexfed.report.frame import Chart

Summary = Mapping[str, Any]
MOST_ROWS = 100  # clients of one picture

# title, unit, factor, how to read it, and lines: key of a record's metrics, what it is called
CURVES: Sequence[tuple[str, str, float, str, Sequence[tuple[str, str]]]] = (
    (
        "Accuracy by round",
        "%",
        100,
        "Higher is better; a curve at or below the majority class has learned nothing.",
        (
            ("global_accuracy", "global"),
            ("local_accuracy", "local"),
            ("local_majority_accuracy", "majority class"),
        ),
    ),
    (
        "Loss on held-out text by round",
        "loss",
        1,
        "Lower is better; joining pays where the federated curve ends below the best organisation "
        "alone.",
        (
            ("heldout_loss", "federated"),
            ("centralised_heldout_loss", "all text in one place"),
            ("alone_heldout_loss", "the best organisation alone"),
        ),
    ),
    (
        "Perplexity per word by round",
        "perplexity",
        1,
        "Lower is better: between how many words the model hesitates, on users who never train.",
        (
            ("word_perplexity", "test users"),
            ("worst_tenth_perplexity", "their worst tenth"),
        ),
    ),
)


def curves(records: Sequence[Record], few: int | None = None) -> Iterator[Chart]:
    """Scores first, then the loss of training, then bytes. `few`: the clients of a curve."""
    scored = [record for record in records if record["metrics"]]
    met = {key for record in scored for key in record["metrics"]}
    for title, unit, factor, reads, lines in CURVES:
        if lines[0][0] in met:
            series = {name: _curve(scored, key, factor) for key, name in lines}
            log = unit == "perplexity" and _is_wide(series)
            yield charts.lines(title, f"{reads}{_of_whom(scored, few)}", series, unit, log=log)
    if loss := [(r["round"], r["loss"]) for r in records if r["loss"] is not None]:
        reads = "What clients minimise on their own text; it should fall, then level off."
        yield charts.lines("Training loss by round", reads, {"training loss": loss}, "loss")
    if any(r["bytes_up"] or r["bytes_down"] for r in records):
        reads = "All that training has sent so far; the steeper, the dearer a round (evaluation is "
        reads += "not counted)."
        yield charts.lines("Sent so far", reads, _traffic(records), "MB")


def _of_whom(scored: Sequence[Record], few: int | None) -> str:
    """Said where a curve is of fewer clients than the figures beside it."""
    last = scored[-1]["metrics"]
    everyone = last.get("scored_clients") or 0
    if few is None or ON_THE_WAY not in last or few >= everyone:
        return ""
    return (
        f" Curves are of {counted(few, 'client')} (evaluation.clients), the same throughout; the "
        f"figures above are of {everyone:,}."
    )


def _curve(scored: Sequence[Record], key: str, factor: float) -> Points:
    return [
        (record["round"], factor * curve_of(record)[key])
        for record in scored
        if record["metrics"].get(key) is not None
    ]


def _is_wide(series: Mapping[str, Points]) -> bool:
    """Whether a straight axis would press all but the first points onto the floor."""
    values = [y for points in series.values() for _, y in points]
    return bool(values) and min(values) > 0 and max(values) > 20 * min(values)


def _traffic(records: Sequence[Record]) -> dict[str, Points]:
    rounds = [record["round"] for record in records]
    return {
        name: list(zip(rounds, accumulate(record[key] / 1e6 for record in records), strict=True))
        for key, name in (("bytes_up", "clients to server"), ("bytes_down", "server to clients"))
    }


# --- clients -------------------------------------------------------------------------------------


def clients(summary: Summary) -> Iterator[Chart]:
    yield from _spread(summary)
    yield from _labels(summary)
    yield from _organisations(summary)
    yield from _users(summary)


def _spread(summary: Summary) -> Iterator[Chart]:
    rows: dict[str, tuple[float, float, float]] = {}
    for name, middle in (("global", "global_accuracy_mean"), ("local", "local_accuracy")):
        mean, spread = summary.get(middle), summary.get(f"{name}_accuracy_spread")
        if mean is not None and spread is not None:
            rows[name] = (100 * (mean - spread), 100 * mean, 100 * (mean + spread))
    if rows and summary["clients"] > 1:
        majority = summary.get("local_majority_accuracy")
        yield charts.ranges(
            "Spread over clients at the end",
            "The point is the mean over clients, the bar one standard deviation to both sides; the "
            "tick is the majority class alone.",
            rows,
            "accuracy, %",
            {"local": 100 * majority} if majority is not None else None,
        )


def _labels(summary: Summary) -> Iterator[Chart]:
    held = summary.get("label_counts")
    if held:
        names = [str(label) for label in held["labels"]]
        rows = {
            client_name(summary, client): counts for client, counts in enumerate(held["clients"])
        }
        yield charts.shares(
            "Labels of each client's texts",
            "One bar per client; the more the bars differ, the more the clients do.",
            rows,
            names,
        )


def _organisations(summary: Summary) -> Iterator[Chart]:
    told: Sequence[Mapping[str, Any]] = summary.get("organisations") or []
    names = {
        "heldout_loss": "federated",
        "alone_heldout_loss": "alone",
        "centralised_heldout_loss": "all text in one place",
    }
    rows = {
        client_name(summary, number): {
            name: one[key] for key, name in names.items() if one.get(key) is not None
        }
        for number, one in enumerate(told[:MOST_ROWS])
        if one.get("heldout_loss") is not None
    }
    if rows:
        yield charts.dots(
            "What each organisation gains",
            "Left is better: an organisation gains by joining where 'federated' lies left of "
            "'alone'.",
            rows,
            "loss on its own held-out text",
        )


def _users(summary: Summary) -> Iterator[Chart]:
    """Not under a promise: figures of single users, made without noise, are the experimenter's."""
    if summary.get("promise") is None and summary.get("users"):
        values = [math.exp(min(nll / words, 50.0)) for nll, words in summary["users"] if words]
        if len(values) > 9:
            yield charts.histogram(
                "Perplexity of each test user",
                "How many users the model hesitates with how much; a long tail to the right are "
                "users it serves badly.",
                values,
                "perplexity per word",
            )


# --- privacy -------------------------------------------------------------------------------------


def account(summary: Summary) -> Iterator[Chart]:
    told = summary.get("epsilon_by_round") or []
    series: dict[str, Points] = {
        "this run": [(r, one) for r, one, _ in told if one is not None],
        "deployment": [(r, other) for r, _, other in told if other is not None],
    }
    if series["this run"] == series["deployment"]:
        series.pop("deployment")
    if any(series.values()):
        yield charts.lines(
            "The privacy account by round",
            "What all releases so far have cost together (RDP, which is never below the printed "
            "figure); flat where nothing was asked of users.",
            series,
            "epsilon",
            log=_is_wide(series),
        )


# --- words ---------------------------------------------------------------------------------------


def words(summary: Summary, artifacts: Path) -> Iterator[Chart]:
    """A map of the words whose neighbours are told, and of no others."""
    near: Mapping[str, Mapping[str, Sequence[str]]] = summary.get("neighbours") or {}
    path = artifacts / "vectors.safetensors"
    if not near or not path.is_file():
        return
    kinds: dict[str, str] = {query: query for query in near}
    for query, models in near.items():
        for word in models.get("federated", ()):
            kinds.setdefault(word, query)
    places = _places(path, artifacts / "vocabulary.json", list(kinds))
    if len(places) > 3:
        yield charts.word_map(
            "A map of these words",
            "Words that lie together are used alike; these are the two directions in which they "
            "differ most, drawn apart where they would hide each other, so distances are rough.",
            places,
            {word: kinds[word] for word in places},
        )


def _places(path: Path, listed: Path, wanted: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Where these words lie in the plane in which they differ most (principal components)."""
    from lexfed.agreement import word_list

    ids = word_list.from_bytes(listed.read_bytes()).ids
    known = [word for word in wanted if word in ids]
    with safe_open(str(path), framework="numpy") as file:
        table = file.get_slice("input")
        rows = [table[ids[word] : ids[word] + 1][0] for word in known]
    if len(rows) < 4:
        return {}
    plane = _plane(np.asarray(rows, dtype=np.float64))
    return {word: (float(x), float(y)) for word, (x, y) in zip(known, plane, strict=True)}


def _plane(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:  # (n, d) -> (n, 2)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units = rows / np.where(lengths > 0, lengths, 1.0)
    centred = units - units.mean(0)
    left, sizes, right = np.linalg.svd(centred, full_matrices=False)
    # a direction has two signs: the one in which its largest part is positive
    signs = np.sign(right[np.arange(len(right)), np.abs(right).argmax(1)])
    plane: npt.NDArray[np.float64] = (left * sizes * signs)[:, :2]
    return _apart(plane)


def _apart(plane: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Half where a word lies, half which it is in order: no two lie on each other."""
    ranks = plane.argsort(0).argsort(0) / max(1, len(plane) - 1)
    sizes = np.ptp(plane, axis=0)
    where = (plane - plane.min(0)) / np.where(sizes > 0, sizes, 1.0)
    spread: npt.NDArray[np.float64] = (where + ranks) / 2
    return spread
