"""What a client does to its update before it leaves, and the server to the sum before it is used."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lexfed.params import Params, Rows, Update
from lexfed.seeds import Seed
from lexfed.wire import Message, under


class Mechanism(Protocol):
    def bound(self, delta: Params, examples: int, loss: float, message: Message) -> Update:
        """Client: the update to send. Every entry adds up over clients."""

    def release(self, total: Update, expected: float, state: Params, noise: Seed) -> tuple[Update, Params]:
        """Server: the step that the sum stands for, and the mechanism's next state."""


@dataclass(frozen=True)
class NoPrivacy:
    """Example weights, p_k = n_k / sum n: clients send n_k * delta_k and n_k, the server divides the sums."""

    def bound(self, delta: Params, examples: int, loss: float, message: Message) -> Update:
        weight = torch.tensor(float(examples))
        weighted = {name: value * weight for name, value in delta.items()}
        return {**under("delta", weighted), "weight": weight, "loss": torch.tensor(loss) * weight}

    def release(self, total: Update, expected: float, state: Params, noise: Seed) -> tuple[Update, Params]:
        if not total:  # nobody came: no step
            return {}, state
        return {name: _dense(value) / _dense(total["weight"]) for name, value in deltas(total).items()}, state


def deltas(update: Update) -> Update:
    return {name.removeprefix("delta/"): value for name, value in update.items() if name.startswith("delta/")}


def _dense(value: Tensor | Rows) -> Tensor:
    if isinstance(value, Rows):
        raise ValueError("rows need a mechanism of their own")
    return value
