"""Local-only: every client trains alone, on its own texts. What does joining gain?

It is FedAvg in which every parameter is private: nothing but an example count and a loss travels. A
round is one pass of every client, so `epochs` rounds give each client that many epochs, whatever
the cohort.
"""

from dataclasses import dataclass, replace

from lexfed.core.errors import ConfigError
from lexfed.core.params import ALL_PRIVATE, Params
from lexfed.core.seeds import Seed, derive
from lexfed.corpus.population import Client
from lexfed.federation import Entry, Federation, Method, ServerState, Steps
from lexfed.learning.classifying import CLASSIFIER
from lexfed.learning.evaluation import evaluator
from lexfed.learning.parts import Parts
from lexfed.learning.private_table import Kept
from lexfed.learning.task import plain_update
from lexfed.learning.training import trainer
from lexfed.learning.training_verbs import EVALUATE, TRAIN


@dataclass(frozen=True)
class LocalOnly:
    """The `[local_only]` table."""

    # passes of each client over its text (FedeVocab's baseline); each counts as a round
    epochs: int = 10

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ConfigError("local_only.epochs must be at least 1")


def local_only(parts: Parts, options: LocalOnly) -> Method:
    task = replace(parts.task, options=replace(parts.task.options, epochs=1), rounds=options.epochs)
    parts = replace(parts, task=task)

    def begin(client: Client) -> Params:
        return task.init(derive(client.secret, "init"))

    def server(federation: Federation, seed: Seed, state: ServerState) -> Steps:
        return (yield from parts.loop()(federation, state, until=options.epochs, seed=seed))

    everything = Kept(task.reader, begin)
    return Method(
        client={
            TRAIN: trainer(parts, ALL_PRIVATE, everything, plain_update(task)),
            EVALUATE: evaluator(task, ALL_PRIVATE, everything),
        },
        server=server,
        split=ALL_PRIVATE,
        rounds=options.epochs,
    )


METHOD = Entry(
    "local_only",
    CLASSIFIER,
    local_only,
    LocalOnly,
    frozenset({"alone", "counts epochs"}),
    ignores=(
        "rounds",
        "cohort.size",
        "cohort.sampling",
        "server",
        "train.epochs",
        "privacy",
        "defences",
        "self_audit",
    ),
)
