"""Parameters, their split into shared and private, and the algebra of updates: everything in an
update adds up.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

Params = Mapping[str, Tensor]


@dataclass(frozen=True)
class ParameterSplit:
    """Which parameters stay with the client. Names decide, so that the wire can refuse a private
    one by its name.
    """

    is_private: Callable[[str], bool]
    # private parameters that the method itself puts beside the model's
    beside: tuple[str, ...] = ()

    def shared(self, params: Params) -> Params:
        return {name: params[name] for name in params if not self.is_private(name)}

    def private(self, params: Params) -> Params:
        return {name: params[name] for name in params if self.is_private(name)}

    def join(self, shared: Params, private: Params) -> Params:
        """The whole model again. Each half may hold only its own names."""
        strays = [n for n in shared if self.is_private(n)] + [
            n for n in private if not self.is_private(n)
        ]
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
    # (n, 1): the values are multiples of it (rounded rows stay small until they are added)
    scale: Tensor | None = None
    counts: Tensor | None = None  # (n,) int64: how often each row was moved
    nodes: Tensor | None = None  # (n,) int64: how many clients moved it; None is one
    # (n,) float64: the squared lengths of their moves, added up; None: of the one move that it is
    squares: Tensor | None = None

    def __add__(self, other: "Rows") -> "Rows":
        return union([self, other])

    def exact(self) -> "Rows":
        """The same rows, their values multiplied out."""
        if self.scale is None:
            return self
        return replace(self, values=self.values.float() * self.scale, scale=None)

    def spread(self, like: Tensor) -> Tensor:
        """The whole table, as high as this one."""
        values = self.values if self.scale is None else self.values.to(like.dtype) * self.scale
        return torch.zeros_like(like).index_copy_(0, self.ids, values.to(like.dtype))


def on_cpu(rows: Rows) -> Rows:
    held = [getattr(rows, field.name) for field in fields(rows)]
    return Rows(*(None if value is None else value.cpu() for value in held))  # type: ignore[arg-type]


def union(parts: Sequence[Rows]) -> Rows:
    """The union of rows, in one pass; a row that several have is their sum, and so are its
    counts.
    """
    if len(parts) == 1:  # rounded rows stay as they are until others are added to them
        return parts[0]
    if all(part.scale is None and part.counts is None for part in parts):
        return _plain_union(parts)
    ids = torch.unique(torch.cat([part.ids for part in parts]))  # sorted
    kind = parts[0].values.dtype if parts[0].values.dtype == torch.float64 else torch.float32
    values = parts[0].values.new_zeros((len(ids), *parts[0].values.shape[1:]), dtype=kind)
    counts, nodes = (torch.zeros_like(ids) for _ in range(2))
    squares = torch.zeros_like(ids, dtype=torch.float64)
    for part in parts:
        places = torch.searchsorted(ids, part.ids)
        add_moves(values, places, part)
        counts[places] += part.counts if part.counts is not None else 0
        nodes[places] += part.nodes if part.nodes is not None else 1
        if part.squares is None:
            lengths = row_squares(part.values.flatten(1))
            scale = part.scale if part.scale is not None else lengths.new_ones(len(lengths), 1)
            squares[places] += lengths * scale[:, 0].double().square()
        else:
            squares[places] += part.squares
    counted = any(part.counts is not None for part in parts)
    return Rows(ids, values, None, counts if counted else None, nodes, squares)


def add_moves(total: Tensor, places: Tensor, rows: Rows) -> None:
    """total[places] += rows; places are distinct. On the CPU by compiled loops, loaded when first
    needed.
    """
    if total.device.type != "cpu":
        moves = rows.values.to(total.dtype)
        total.index_add_(0, places, moves if rows.scale is None else moves * rows.scale)
        return
    from lexfed.core.kernels import add_rows, add_scaled_rows

    if rows.scale is None:
        add_rows(total.numpy(), places.numpy(), rows.values.to(total.dtype).numpy())
    else:
        add_scaled_rows(total.numpy(), places.numpy(), rows.values.numpy(), rows.scale.numpy())


def row_squares(values: Tensor) -> Tensor:
    """The squared length of each row (n, d), in double."""
    if values.device.type != "cpu":
        return values.double().square().sum(1)
    from lexfed.core.kernels import squared_lengths

    return torch.from_numpy(squared_lengths(values.numpy()))


def _plain_union(parts: Sequence[Rows]) -> Rows:
    """The same, of rows without scales and counts: nothing has to be compiled for it."""
    ids = torch.unique(torch.cat([part.ids for part in parts]))  # sorted
    values = parts[0].values.new_zeros((len(ids), *parts[0].values.shape[1:]))
    nodes, squares = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.float64)
    for part in parts:
        places = torch.searchsorted(ids, part.ids)
        values.index_add_(0, places, part.values)
        nodes[places] += part.nodes if part.nodes is not None else 1
        own = part.values.flatten(1).double().square().sum(1)
        squares[places] += own if part.squares is None else part.squares
    return Rows(ids, values, None, None, nodes, squares)


Update = Mapping[str, Tensor | Rows]


def add_all(updates: Iterable[Update]) -> Update:
    """The sum, in the order given. Tensors are added as they come, in place from the second on:
    the first is whoever's gave it. Rows are kept until all are there; where others moved the whole
    table, they are added to that.
    """
    result: dict[str, Tensor] = {}
    rows: dict[str, list[Rows]] = {}
    ours: set[str] = set()
    for update in updates:
        for name, value in update.items():
            before = result.get(name)
            if isinstance(value, Rows):
                rows.setdefault(name, []).append(value)
            elif before is None:
                result[name] = value
            elif name in ours and before.dtype == value.dtype:
                before.add_(value)
            else:
                result[name] = before + value
                ours.add(name)
    found = {name: union(parts) for name, parts in rows.items()}
    return {
        **result,
        **{n: part.spread(result[n]) + result[n] if n in result else part
           for n, part in found.items()},
    }  # fmt: skip


def squared_length(value: Tensor) -> float:
    """The sum of its squares, in double. On the CPU by a compiled loop: one pass, no copy."""
    if value.device.type == "cpu" and value.dtype == torch.float32:
        from lexfed.core.kernels import square_sum

        return float(square_sum(value.detach().contiguous().view(-1).numpy()))
    double = in_double(value).flatten()
    return float(torch.dot(double, double))


def in_double(value: Tensor) -> Tensor:
    """In double precision, where the value is; Apple's GPUs have none, so theirs on the CPU."""
    return (value.cpu() if value.device.type == "mps" else value).double()


def count(params: Params) -> int:
    return sum(value.numel() for value in params.values())
