"""What the sum of sparse updates means for a table: every rule is a `release` over sums of rows,
counts and nodes.

The frequencies of words are Zipfian. To average divides a word that one organisation alone has met
by the number of organisations; to add multiplies the step of a frequent word by it, which diverges.
`add_rare` adds what is rare and averages what is frequent: delta_row = sum_k delta_k,row /
clip(count_row / cap, 1, nodes that moved the row), and is at most `reach` times as long as the root
mean square of the nodes' own steps. `in_turn` asks the same question of each direction by itself
(`in_turn.py`), and is held within the same reach.

Why `reach`: a node's pass stops of itself. Where the loss is steep its row slows down within some
dozens of pairs, so a step is at most as far as that node wants to go. A sum does not stop: hundreds
of nodes that saw a few pairs each all push a frequent row the same steep way, far past the place
where any of them would have stopped, and the next round pushes it back further. Where nodes say
different things their sum is not much longer than one step, and stays a sum. By Cauchy-Schwarz a
sum over n nodes is at most n root mean squares long: `reach` nodes or fewer are never held back.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lexfed.core.kernels import add_rows_within, squared_lengths
from lexfed.core.params import Params, Rows, Update
from lexfed.core.seeds import Seed
from lexfed.models.skipgram import INPUT, OUTPUT
from lexfed.privacy.mechanism import Asked, deltas
from lexfed.word2vec.in_turn import bowl
from lexfed.word2vec.options import Rule

VERSION, CHANGED, SQUARES = "version", "changed", "squares"
LARGEST = 1e3  # the norm of a word vector in good health is below 20


def start(tables: Params, changed: bool) -> Params:
    """Version 0 is what everybody can make alone; tables that differ from it are version 1."""
    marks = {
        f"{CHANGED}/{n}": torch.full((len(table),), int(changed), dtype=torch.int32)
        for n, table in tables.items()
    }
    return {VERSION: torch.tensor(int(changed)), **marks}


def changed_since(tables: Params, state: Params, version: int) -> Mapping[str, Rows]:
    """The rows that a replica of this version lacks."""
    result = {}
    for name, table in tables.items():
        ids = torch.nonzero(state[f"{CHANGED}/{name}"] > version).flatten()
        result[name] = Rows(ids, table[ids])
    return result


@dataclass(frozen=True)
class RowRule:
    rule: Rule
    cap: float
    reach: float = math.inf  # add_rare, in_turn
    # in_turn: the learning rate of the pairs that a version was made of
    rate: Callable[[int], float] = lambda version: 0.0
    lr: float = 1.0  # row_adagrad: its division takes the clients' own out of their steps

    def release(
        self, total: Update, asked: Asked, state: Params, noise: Seed
    ) -> tuple[Update, Params]:
        version = state[VERSION] + 1
        kept, update = {**state, VERSION: version}, {}
        moved = {n: r.exact() for n, r in deltas(total).items() if isinstance(r, Rows)}
        if self.rule == "in_turn":
            self._slow(moved, asked.model, self.rate(int(version)))
        for name, rows in moved.items():
            update[name] = Rows(rows.ids, self._step(name, rows, total, kept))
            # in place: what is kept of a table is as long as it
            kept[f"{CHANGED}/{name}"][rows.ids] = int(version)
        return update, kept

    def _slow(self, moved: Mapping[str, Rows], tables: Params, lr: float) -> None:
        """Each table's rows by the bowl that the other's are the axes of, in place."""
        sides = ((INPUT, OUTPUT), (OUTPUT, INPUT)) if len(moved) == 2 else ()
        bowls = {mine: bowl(tables[other], moved[other], moved[mine]) for mine, other in sides}
        for name, shape in bowls.items():
            shape.slow(moved[name], lr)

    def _step(self, name: str, rows: Rows, total: Update, kept: dict[str, Tensor]) -> Tensor:
        """What the rows move by; the sum is used up by it, so that no second table of rows is
        made.
        """
        nodes = rows.nodes if rows.nodes is not None else torch.ones(len(rows.ids))
        counts = rows.counts if rows.counts is not None else nodes
        clients = total["nodes"]
        # the paper's: every row by all that took part
        if self.rule == "mean" and isinstance(clients, Tensor):
            return rows.values.div_(clients)
        if self.rule == "row_mean":
            return rows.values.div_(nodes[:, None])
        if self.rule == "row_adagrad":
            squares = kept.setdefault(
                f"{SQUARES}/{name}", torch.zeros(len(kept[f"{CHANGED}/{name}"]))
            )
            squares[rows.ids] += rows.values.square().mean(1)
            scale = self.lr / squares[rows.ids].sqrt().clamp_min(1e-8)
            return rows.values.mul_(scale[:, None])
        if self.rule == "in_turn":
            return self._within_reach(rows.values, rows)
        # row_cap: as if the row had been moved `cap` times at most
        share = (counts / self.cap).clamp_min(1)
        if self.rule == "row_cap":
            return rows.values.div_(share[:, None])
        return self._within_reach(rows.values.div_(torch.minimum(share, nodes)[:, None]), rows)

    def _within_reach(self, steps: Tensor, rows: Rows) -> Tensor:
        if rows.nodes is None or rows.squares is None:  # of one node
            return steps
        longest = self.reach * (rows.squares / rows.nodes).sqrt()
        length = torch.from_numpy(squared_lengths(steps.numpy())).sqrt()
        return steps.mul_((longest / length).nan_to_num(1.0).clamp_max(1).float()[:, None])


@dataclass(frozen=True)
class RowStep:
    """Move the rows, in place: a step costs what it touches, not what the vocabulary is long.

    A row that would be no number, or far too long, stays where it is: whoever lies about a row
    spoils that row (with `in_turn`: all rows), and ends no run. (Where training itself explodes
    nobody sends numbers any more.)
    """

    def step(
        self, params: Params, update: Update, slots: Mapping[str, Params]
    ) -> tuple[Params, Mapping[str, Params]]:
        for name, rows in update.items():
            if isinstance(rows, Rows):
                table, ids, values = params[name].numpy(), rows.ids.numpy(), rows.values.numpy()
                add_rows_within(table, ids, values, LARGEST)
        return params, slots
