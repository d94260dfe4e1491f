"""FedAvg (McMahan et al., AISTATS 2017).

    client k:  W_k <- E epochs from W on its own texts
               send W_k - W
    server:    W <- W + sum_k (n_k / n) (W_k - W)

The whole model travels, embedding table included: the rows that moved are the client's words.
`fedavg_finetune`: every client fine-tunes the final model on its own texts before it uses it.
"""

from dataclasses import dataclass

from lexfed.core.errors import ConfigError
from lexfed.core.params import ALL_SHARED, Params
from lexfed.core.seeds import Seed
from lexfed.corpus.population import Client
from lexfed.federation import ClientState, Entry, Method
from lexfed.learning.classifying import CLASSIFIER
from lexfed.learning.evaluation import Adapt, evaluator
from lexfed.learning.parts import Parts
from lexfed.learning.private_table import Kept
from lexfed.learning.task import Local, LocalUpdate, plain_update, train
from lexfed.learning.training import averaging, trainer
from lexfed.learning.training_verbs import EVALUATE, TRAIN
from lexfed.wire import Message


def averaged(parts: Parts, update: LocalUpdate, adapt: Adapt | None = None) -> Method:
    """Everything is shared; `adapt` is what a client does to the model before it uses it."""
    nothing = Kept(parts.task.reader)
    return Method(
        client={
            TRAIN: trainer(parts, ALL_SHARED, nothing, update),
            EVALUATE: evaluator(parts.task, ALL_SHARED, nothing, adapt),
        },
        server=averaging(parts, ALL_SHARED),
        split=ALL_SHARED,
        rounds=parts.rounds,
    )


def fedavg(parts: Parts, options: object = None) -> Method:
    return averaged(parts, plain_update(parts.task))


@dataclass(frozen=True)
class FineTune:
    """The `[fedavg_finetune]` table."""

    epochs: int = 1  # of fine-tuning: as much as FedeVocab's adaptive pass

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ConfigError("fedavg_finetune.epochs must be at least 1")


def fedavg_finetune(parts: Parts, options: FineTune) -> Method:
    task = parts.task

    def adapt(
        params: Params, client: Client, state: ClientState, message: Message, seed: Seed
    ) -> Params:
        local = Local(task.options.lr, options.epochs, adjustment=task.adjustment(client))
        return train(task, params, task.reader.read(client.train).examples, local, seed).params

    return averaged(parts, plain_update(task), adapt)


METHOD = Entry("fedavg", CLASSIFIER, fedavg, traits=frozenset({"one model", "self-audit"}))
FINETUNE = Entry(
    "fedavg_finetune", CLASSIFIER, fedavg_finetune, FineTune, frozenset({"self-audit"})
)
