"""FedProx (Li et al., MLSys 2020): FedAvg whose clients minimise loss + mu/2 |W_k - W|^2."""

from dataclasses import dataclass

from lexfed.errors import ConfigError
from lexfed.federation import Method
from lexfed.methods.fedavg import fedavg
from lexfed.methods.parts import Parts
from lexfed.methods.training import plain_update


@dataclass(frozen=True)
class FedProx:
    """The `[fedprox]` table."""

    mu: float = 0.1

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise ConfigError("fedprox.mu must be at least 0")


def fedprox(parts: Parts, options: FedProx) -> Method:
    return fedavg(parts, update=plain_update(parts.task, options.mu))
