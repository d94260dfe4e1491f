"""Passes that were made side by side, added up as if they had been made one after the other.

All nodes start a round from the same row. Where the loss is steep, each of them alone goes all the
way, and the sum goes as many times too far. Where it is flat, each goes its own small part, and the
mean throws most of them away. One row has both: nearly all word vectors point the same way (how
frequent a word is), there the loss is steep, and what tells two words apart is in the many flat
directions. To average a frequent row, because it can't be added in the one steep direction, stops
it from learning in all the others: the loss hardly shows that, likeness of words does.

Take the loss around a row as a bowl. In a direction of curvature c, with x = lr * pairs * c, a pass
takes the share 1 - e^-x of the way to the bottom. Nodes with x / n each have made n such shares of
1 - e^(-x/n); one after the other they would have made 1 - e^-x. So the sum is multiplied by

    (1 - e^-x) / (n (1 - e^(-x/n)))       1 where it is flat, 1/n where it is steep,

in each direction by itself. The directions and their curvatures are those of the other table: the
loss of a pair, seen from one row, is curved along the other row (u u', times the second derivative
of the logistic loss), so they are the principal axes of the rows that were met. All of this is made
of sums that the server has: moves, counts, nodes. It takes everybody's counts for true: one liar
who claims many pairs bends the steps of all rows (`reach` bounds them), where `add_rare` lets it
spoil its own rows alone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lexfed.core.params import Rows

LOGISTIC = 0.25  # second derivative of the logistic loss, at most
AXES = 32  # steepest directions that are told apart; the others count as one
MET = 4096  # rows of the other table, the most frequent, that the axes are those of
FLAT = 0.2  # x below it: a plain sum is right to a tenth
_CHUNK = 1024  # rows at a time: what is made of them stays in the cache


@dataclass(frozen=True, eq=False)
class Bowl:
    """How the loss of a table's rows is curved, per pair and learning rate."""

    axes: Tensor  # (d, r), of length one
    curvatures: Tensor  # (r,), the steepest first
    rest: float  # of the directions beside them, in the mean

    def slow(self, moves: Rows, lr: float) -> None:
        """Multiply sums of moves, in place, by what each direction allows."""
        if moves.nodes is None or moves.counts is None:  # of one node: nothing was side by side
            return
        rate, nodes = lr * moves.counts.float(), moves.nodes.float()
        steep = torch.nonzero((rate * self.curvatures[:1] > FLAT) & (nodes > 1)).flatten()
        for first in range(0, len(steep), _CHUNK):
            some = steep[first : first + _CHUNK]
            x, n = rate[some, None], nodes[some, None]
            values = moves.values[some]
            rest = in_turn(x * self.rest, n)
            along = (values @ self.axes).mul_(in_turn(x * self.curvatures, n) - rest)
            moves.values[some] = torch.addmm(values.mul_(rest), along, self.axes.T)


def in_turn(x: Tensor, nodes: Tensor) -> Tensor:
    """What a sum over so many nodes is multiplied by, in a direction in which x is the way that all
    of them would go together.
    """
    x = x.clamp_min(1e-4)  # below it, rounding is all that is left of the formula, which is 1
    return torch.expm1(-x) / (nodes * torch.expm1(-x / nodes))


def bowl(other: Tensor, met: Rows, moved: Rows) -> Bowl:
    """Of the rows that `moved`, from the other table's rows that were `met` in the same pairs.

    An input row meets a context and all its negatives in each of its pairs, an output row one input
    row: there are as many more counts on the one side.
    """
    often = _often(met)
    most = torch.topk(often, min(MET, len(often))).indices
    rows, total = other[met.ids[most]], often.sum().clamp_min(1)
    terms = (total / _often(moved).sum().clamp_min(1)).clamp_min(1)
    weights = (often[most] * (LOGISTIC * terms / total))[:, None].float()
    curvatures, axes = torch.linalg.eigh(((rows * weights).T @ rows).double())  # ascending
    r = min(AXES, len(curvatures))
    rest = curvatures[: len(curvatures) - r]
    return Bowl(
        axes[:, -r:].flip(1).float(),
        curvatures[-r:].flip(0).clamp_min(0).float(),
        float(rest.mean().clamp_min(0)) if len(rest) else 0.0,
    )


def _often(rows: Rows) -> Tensor:
    counts = rows.counts if rows.counts is not None else torch.ones(len(rows.ids))
    return counts.double()
