"""Parameters after local training, as where they began and how they moved.

Most clients are only asked how they moved. So a table of which some rows were trained is not copied
before somebody asks for it, nor are the weights made that a single step of plain descent leads to.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from lexfed.core.params import Params, Rows


@dataclass(frozen=True, eq=False)
class Moved(Mapping[str, Tensor]):
    start: Params
    now: Params = field(default_factory=dict)  # what they are now, where that is known
    by: Params = field(default_factory=dict)  # by how much they moved, where that is known
    # of a table, ascending: the only rows that moved, and of which `now` or `by` speaks
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    # what was handed out, and its version then: whoever writes into it may have moved more
    made: dict[str, tuple[Tensor, int]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.made:
            value = self._made(name)
            self.made[name] = value, value._version
        return self.made[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self.start)

    def __len__(self) -> int:
        return len(self.start)

    def _made(self, name: str) -> Tensor:
        before, rows = self.start[name], self.rows.get(name)
        if name in self.by:
            now = (before if rows is None else before[rows]) + self.by[name]
        elif name in self.now:
            now = self.now[name]
        else:  # it did not move
            return before
        return now if rows is None else before.index_copy(0, rows, now)

    def since(self, name: str, before: Tensor) -> Tensor | Rows:
        """How it has moved from `before`."""
        if self.start[name] is not before or self._written(name):
            return self[name] - before
        rows = self.rows.get(name)
        some = before if rows is None else before[rows]
        move = self.by[name] if name in self.by else self.now.get(name, some) - some
        return move if rows is None else Rows(rows, move)

    def _written(self, name: str) -> bool:
        if name not in self.made:
            return False
        value, version = self.made[name]
        return value._version != version


def since(params: Params, name: str, before: Tensor) -> Tensor | Rows:
    """How a parameter has moved from `before`. Whoever judges an upload asks this too: what is
    judged must be what is sent, to the bit.
    """
    return params.since(name, before) if isinstance(params, Moved) else params[name] - before


def whole(move: Tensor | Rows, like: Tensor) -> Tensor:
    return move.spread(like) if isinstance(move, Rows) else move
