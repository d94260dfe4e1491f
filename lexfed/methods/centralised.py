"""Centralised training: what could be reached if all text lay in one place.

It is FedAvg with one client that holds everything (the population is built so), every round one
epoch. What it would send in truth is the texts themselves; the bytes counted are those of its one
client.
"""

from dataclasses import dataclass, replace

from lexfed.core.errors import ConfigError
from lexfed.federation import Entry, Method
from lexfed.federation.server_optimizer import ServerOptimizer
from lexfed.learning.classifying import CLASSIFIER
from lexfed.learning.parts import Parts
from lexfed.methods.fedavg import fedavg


@dataclass(frozen=True)
class Centralised:
    """The `[centralised]` table."""

    epochs: int = 10  # passes over all text; each counts as a round

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ConfigError("centralised.epochs must be at least 1")


def centralised(parts: Parts, options: Centralised) -> Method:
    task = replace(parts.task, options=replace(parts.task.options, epochs=1), rounds=options.epochs)
    return fedavg(replace(parts, task=task, optimizer=ServerOptimizer(), rounds=options.epochs))


METHOD = Entry(
    "centralised",
    CLASSIFIER,
    centralised,
    Centralised,
    frozenset({"alone", "pooled", "counts epochs"}),
    ignores=(
        "rounds",
        "cohort",
        "server",
        "train.epochs",
        "privacy",
        "defences",
        "self_audit",
        "malice",
    ),
)
