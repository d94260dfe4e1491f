"""Centralised training: what could be reached if all text lay in one place.

It is FedAvg with one client that holds everything (the population is built so), every round one epoch. What it would send
in truth is the texts themselves; the bytes counted are those of its one client.
"""

from dataclasses import dataclass, replace

from lexfed.errors import ConfigError
from lexfed.federation import Method
from lexfed.methods.fedavg import fedavg
from lexfed.methods.parts import Parts
from lexfed.optim import ServerOptimizer
from lexfed.privacy.sampling import Everyone


@dataclass(frozen=True)
class Centralised:
    """The `[centralised]` table."""

    epochs: int = 10

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ConfigError("centralised.epochs must be at least 1")


def centralised(parts: Parts, options: Centralised) -> Method:
    task = replace(parts.task, options=replace(parts.task.options, epochs=1), rounds=options.epochs)
    return fedavg(replace(parts, task=task, sampler=Everyone(), optimizer=ServerOptimizer(), rounds=options.epochs))
