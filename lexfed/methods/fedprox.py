"""FedProx (Li et al., MLSys 2020): FedAvg whose clients minimise loss + mu/2 |W_k - W|^2."""

from dataclasses import dataclass

from lexfed.core.errors import ConfigError
from lexfed.federation import Entry, Method
from lexfed.learning.classifying import CLASSIFIER
from lexfed.learning.parts import Parts
from lexfed.learning.task import plain_update
from lexfed.methods.fedavg import averaged


@dataclass(frozen=True)
class FedProx:
    """The `[fedprox]` table."""

    mu: float = 0.1  # how strongly clients are pulled towards the model they were sent

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise ConfigError("fedprox.mu must be at least 0")


def fedprox(parts: Parts, options: FedProx) -> Method:
    return averaged(parts, plain_update(parts.task, options.mu))


METHOD = Entry("fedprox", CLASSIFIER, fedprox, FedProx, frozenset({"one model"}))
