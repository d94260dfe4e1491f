"""What every method is built from: the configuration's tables, already turned into things."""

from dataclasses import dataclass

from lexfed.methods.training import Task
from lexfed.optim import ServerOptimizer
from lexfed.privacy.mechanism import Mechanism
from lexfed.privacy.sampling import Sampler
from lexfed.vocabulary.vectors import PublicTable


@dataclass(frozen=True)
class Parts:
    task: Task
    sampler: Sampler
    mechanism: Mechanism
    optimizer: ServerOptimizer
    rounds: int
    public: PublicTable | None = None
    shared_words: int = 0  # how many of its words the methods with one vocabulary know
