"""Rows of a table under masks.

Which rows somebody moved are that one's words. So everybody sends the same rows, moved or not: all
of the table, or those that the request names (`only/TABLE`, the same for everybody). Beside them go
how often each was moved, how far (squared), and a 1 if it was moved at all.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from lexfed.core.params import Params, Rows, Update
from lexfed.wire import Message, below

VALUES, COUNTS, NODES, SQUARES = "#values", "#counts", "#nodes", "#squares"
ONLY = "only"


def tables(request: Message) -> Iterator[tuple[str, int, int]]:
    """The names of the tables that a request speaks of, and how many rows of which width go up."""
    for name, value in sorted(below("rows", request.arrays).items()):
        table, mark, part = name.partition("#")
        if mark + part == VALUES:
            only = request.arrays.get(f"{ONLY}/{table}")
            rows = int(request.meta["rows"]) if only is None else len(only)
            yield table, rows, value.shape[1]


def spread(update: Update, request: Message) -> dict[str, Tensor]:
    """An update with its rows laid out among all that are sent."""
    whole: dict[str, Tensor] = {n: v for n, v in update.items() if not isinstance(v, Rows)}
    for name, rows in update.items():
        if isinstance(rows, Rows):
            whole |= _spread(name, rows, request)
    return whole


def _spread(name: str, rows: Rows, request: Message) -> Params:
    table = name.rpartition("/")[2]
    length, width = next((n, w) for t, n, w in tables(request) if t == table)
    only = request.arrays.get(f"{ONLY}/{table}")
    places, mine = _places(rows.ids, only)
    values = rows.values if rows.scale is None else rows.values.float() * rows.scale
    counts = torch.ones(len(rows.ids)).long() if rows.counts is None else rows.counts
    dense = torch.zeros(length, width, dtype=torch.float32)
    dense[places] = values[mine].float()
    often, moved = torch.zeros(length).long(), torch.zeros(length).long()
    often[places], moved[places] = counts[mine].long(), 1
    return {
        f"{name}{VALUES}": dense,
        f"{name}{COUNTS}": often,
        f"{name}{NODES}": moved,
        f"{name}{SQUARES}": dense.double().square().sum(1),
    }


def _places(ids: Tensor, only: Tensor | None) -> tuple[Tensor, Tensor]:
    """Where these rows go, and which of them go at all."""
    if only is None:
        return ids, torch.arange(len(ids))
    places = torch.searchsorted(only, ids).clamp_max(max(len(only) - 1, 0))
    if not len(only):
        return places[:0], places[:0]
    mine = torch.nonzero(only[places] == ids).flatten()
    return places[mine], mine


def gathered(sums: Params, request: Message) -> Update:
    """What was summed, as rows again: those that somebody moved."""
    update: dict[str, Tensor | Rows] = {n: v for n, v in sums.items() if "#" not in n}
    for name, values in sums.items():
        base, mark, part = name.partition("#")
        if mark + part != VALUES:
            continue
        only = request.arrays.get(f"{ONLY}/{base.rpartition('/')[2]}")
        nodes = sums[f"{base}{NODES}"]
        moved = torch.nonzero(nodes > 0).flatten()
        ids = moved if only is None else only[moved]
        counts, squares = (sums[f"{base}{part}"][moved] for part in (COUNTS, SQUARES))
        update[base] = Rows(ids, values[moved], None, counts, nodes[moved], squares)
    return update
