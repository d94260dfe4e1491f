"""A message: arrays, a few numbers and names, and blobs. What is not in one was not sent."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from lexfed.core.errors import WireError
from lexfed.core.params import Params

ClientId = int
Meta = int | float | str
Direction = Literal["down", "up"]


@dataclass(frozen=True, eq=False)
class Message:
    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    meta: Mapping[str, Meta] = field(default_factory=dict)
    blobs: Mapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what is no tensor before anybody tries to send it."""
        for kind, entries, wanted, advice in (
            ("arrays", self.arrays, Tensor, "a tensor: torch.tensor(...)"),
            ("meta", self.meta, Meta, "a whole number, a number or a string"),
            ("blobs", self.blobs, bytes, "bytes"),
        ):
            for name, value in entries.items():
                if not isinstance(value, wanted):
                    found = type(value).__name__
                    raise WireError(f"'{name}' in a message's {kind} is {found}; make it {advice}")


def under(prefix: str, params: Params) -> Params:
    return {f"{prefix}/{name}": value for name, value in params.items()}


def below(prefix: str, arrays: Params) -> Params:
    start = f"{prefix}/"
    return {name[len(start) :]: value for name, value in arrays.items() if name.startswith(start)}
