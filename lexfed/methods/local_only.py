"""Local-only: every client trains alone, on its own texts. What does joining gain?

It is FedAvg in which every parameter is private: nothing but an example count and a loss travels. A round is one pass of
every client, so `epochs` rounds give each client that many epochs, whatever the cohort.
"""

from dataclasses import dataclass, replace

from lexfed.corpus.population import Client
from lexfed.errors import ConfigError
from lexfed.federation import ClientState, Federation, Method, ServerState, Steps
from lexfed.methods.evaluation import evaluator
from lexfed.methods.parts import Parts
from lexfed.methods.training import plain_update, trainer
from lexfed.params import ALL_PRIVATE
from lexfed.privacy.sampling import Everyone
from lexfed.seeds import Seed, derive


@dataclass(frozen=True)
class LocalOnly:
    """The `[local_only]` table."""

    epochs: int = 10  # FedeVocab's baseline

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ConfigError("local_only.epochs must be at least 1")


def local_only(parts: Parts, options: LocalOnly) -> Method:
    task = replace(parts.task, options=replace(parts.task.options, epochs=1), rounds=options.epochs)

    def start(client: Client) -> ClientState:
        return ClientState(task.init(derive(client.secret, "init")))

    def server(federation: Federation, seed: Seed, state: ServerState) -> Steps:
        rounds = replace(parts, sampler=Everyone()).loop()
        return (yield from rounds(federation, state, until=options.epochs, seed=seed))

    return Method(
        client={
            "train": trainer(task.options, ALL_PRIVATE, start, plain_update(task), parts.mechanism),
            "evaluate": evaluator(task, ALL_PRIVATE, start),
        },
        server=server,
        split=ALL_PRIVATE,
        rounds=options.epochs,
    )
