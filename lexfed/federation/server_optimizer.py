"""What the server does with the averaged update: a step along it, as if it were a (negative)
gradient.

Formulas of Reddi et al., "Adaptive Federated Optimization" (ICLR 2021, Algorithm 2), and Hsu et al.
(2019) for momentum; Delta is the averaged client update, x the parameters:

    sgd       x += lr * Delta
    momentum  m <- beta1 m + Delta                                     x += lr * m
    adam      m <- beta1 m + (1 - beta1) Delta
              v <- beta2 v + (1 - beta2) Delta^2                       x += lr * m / (sqrt(v) + tau)
    yogi      v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)           (m and x as adam)

v starts at tau^2, the smallest start their analysis allows; there is no bias correction.

A cohort of few, unlike clients pulls the model to and fro. With `average` = a the model that is
scored and released is a mean of those that training went through, the last ones most (Polyak and
Juditsky, 1992, with forgetting):

    y <- x after the first step, then y <- a y + (1 - a) x           training itself goes on from x
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from lexfed.core.errors import ConfigError
from lexfed.core.params import Params, Rows, Update

Slots = Mapping[str, Params]

AVERAGE = "average"


class Stepper(Protocol):
    def step(self, params: Params, update: Update, slots: Slots) -> tuple[Params, Slots]: ...


@dataclass(frozen=True)
class ServerOptimizer:
    """The `[server]` table."""

    # what the server does with the averaged update
    optimizer: Literal["sgd", "momentum", "adam", "yogi"] = "sgd"
    lr: float = 1.0  # the length of its step; 1 is FedAvg's
    beta1: float = 0.9  # memory of the mean of updates
    beta2: float = 0.99  # memory of the mean of their squares
    tau: float = 1e-3  # what is added to the root of the squares, so that small ones do not explode
    # of the models before, in the one that is scored and released; 0: the last model alone
    average: float = 0.0

    def __post_init__(self) -> None:
        if not self.lr > 0 or not self.tau > 0:
            raise ConfigError("server.lr and server.tau must be above 0")
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise ConfigError("server.beta1 and server.beta2 must be at least 0 and below 1")
        if not 0 <= self.average < 1:
            raise ConfigError("server.average must be at least 0 and below 1")

    def step(self, params: Params, update: Update, slots: Slots) -> tuple[Params, Slots]:
        """The next parameters and slots. A parameter without an update stays as it is, and so do
        its slots.
        """
        after = {name: dict(slots.get(name, {})) for name in self._slot_names()}
        result = dict(params)
        for name, delta in update.items():
            if isinstance(delta, Rows):
                raise ValueError("rows need a step of their own")
            direction = self._direction(name, delta, after)
            result[name] = params[name] + self.lr * direction
        if self.average:
            before = slots.get(AVERAGE, result)
            after[AVERAGE] = {
                name: before[name] + (1 - self.average) * (x - before[name])
                for name, x in result.items()
            }
        return result, after

    def _slot_names(self) -> tuple[str, ...]:
        return {"sgd": (), "momentum": ("m",), "adam": ("m", "v"), "yogi": ("m", "v")}[
            self.optimizer
        ]

    def _direction(self, name: str, delta: Tensor, slots: dict[str, dict[str, Tensor]]) -> Tensor:
        """The direction of the step; writes the parameter's new slots."""
        if self.optimizer == "sgd":
            return delta
        m = slots["m"].get(name, torch.zeros_like(delta))
        if self.optimizer == "momentum":
            slots["m"][name] = self.beta1 * m + delta
            return slots["m"][name]
        v, square = slots["v"].get(name, torch.full_like(delta, self.tau**2)), delta.square()
        slots["m"][name] = self.beta1 * m + (1 - self.beta1) * delta
        if self.optimizer == "adam":
            slots["v"][name] = self.beta2 * v + (1 - self.beta2) * square
        else:
            slots["v"][name] = v - (1 - self.beta2) * square * torch.sign(v - square)
        return slots["m"][name] / (slots["v"][name].sqrt() + self.tau)


def released(params: Params, slots: Slots) -> Params:
    """The model that is scored and given away: the last one, or the mean that was kept beside
    it.
    """
    return slots.get(AVERAGE, params)
