"""Parameters, their split into shared and private, and the algebra of updates: everything in an update adds up."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Params = Mapping[str, Tensor]


@dataclass(frozen=True)
class ParameterSplit:
    """Which parameters stay with the client. Names decide, so that the wire can refuse a private one by its name."""

    is_private: Callable[[str], bool]

    def shared(self, params: Params) -> Params:
        return {name: value for name, value in params.items() if not self.is_private(name)}

    def private(self, params: Params) -> Params:
        return {name: value for name, value in params.items() if self.is_private(name)}

    def join(self, shared: Params, private: Params) -> Params:
        """The whole model again. Each half may hold only its own names."""
        strays = [n for n in shared if self.is_private(n)] + [n for n in private if not self.is_private(n)]
        if strays:
            raise ValueError(f"on the wrong side of the split: {', '.join(strays)}")
        return {**shared, **private}


ALL_SHARED = ParameterSplit(lambda name: False)
ALL_PRIVATE = ParameterSplit(lambda name: True)


@dataclass(frozen=True)
class Rows:
    """Some rows of a table, the rest of which is zero. `ids` ascend and are distinct."""

    ids: Tensor  # (n,) int64
    values: Tensor  # (n, d)

    def __add__(self, other: "Rows") -> "Rows":
        """The union of rows; a row both have is their sum."""
        ids = torch.unique(torch.cat([self.ids, other.ids]))  # sorted
        values = self.values.new_zeros((len(ids), *self.values.shape[1:]))
        values[torch.searchsorted(ids, self.ids)] += self.values
        values[torch.searchsorted(ids, other.ids)] += other.values
        return Rows(ids, values)


Update = Mapping[str, Tensor | Rows]


def add(left: Update, right: Update) -> Update:
    """Entry by entry. An entry that only one side has is kept: the other's is zero."""
    result = dict(left)
    for name, value in right.items():
        result[name] = _plus(result[name], value) if name in result else value
    return result


def _plus(left: Tensor | Rows, right: Tensor | Rows) -> Tensor | Rows:
    if isinstance(left, Rows) and isinstance(right, Rows):
        return left + right
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return left + right
    raise ValueError("a dense entry can't be added to rows")


def count(params: Params) -> int:
    return sum(value.numel() for value in params.values())
