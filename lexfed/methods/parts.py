"""What every method is built from; the configuration's tables, already turned into things."""

from dataclasses import dataclass

from lexfed.methods.training import Task
from lexfed.optim import ServerOptimizer
from lexfed.privacy.mechanism import Mechanism
from lexfed.privacy.sampling import Sampler


@dataclass(frozen=True)
class Parts:
    task: Task
    classes: int
    sampler: Sampler
    mechanism: Mechanism
    optimizer: ServerOptimizer
    rounds: int
