"""Evaluation is a verb: clients score the model they would use, and answer in a few numbers. Nothing is kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from lexfed.corpus.population import Client
from lexfed.corpus.text import Corpus
from lexfed.errors import ConfigError
from lexfed.federation import Ask, ClientState, Handler, ServerState, request
from lexfed.methods.training import Start, Task
from lexfed.metrics import classification as metrics
from lexfed.models.model import by_length
from lexfed.params import ParameterSplit, Params, count
from lexfed.wire import ClientId, Message, below


@dataclass(frozen=True)
class Evaluation:
    """The `[evaluation]` table. The last round is always scored on every client (or `last`), for the summary."""

    every: int = 0  # rounds between scores on a few clients, for the curve; 0: none
    clients: int = 5  # how many those few are, the same each time
    last: int | None = None  # at the last round: this many clients instead of all
    limit: int | None = None  # score on at most this many texts of the common test set, every class in its share

    def __post_init__(self) -> None:
        if self.every < 0 or self.clients < 1 or (self.last or 1) < 1 or (self.limit or 1) < 1:
            raise ConfigError("evaluation.every must be at least 0; clients, last and limit at least 1")


def evaluator(task: Task, classes: int, split: ParameterSplit, start: Start) -> Handler:
    """Answer `evaluate` with the accuracy of the assembled model on a common set, globally and by own label shares."""

    @lru_cache(maxsize=1)  # without private parameters all clients have one model: score it once per request
    def score_shared(message: Message, corpus: Corpus) -> metrics.Confusion:
        return score(task, below("model", message.arrays), corpus, classes)

    def handle(message: Message, client: Client, state: ClientState) -> tuple[Message, ClientState]:
        corpus = client.common_validation if message.meta["split"] == "validation" else client.common_test
        private = state.params or start(client)
        if private:
            confusion = score(task, split.join(below("model", message.arrays), private), corpus, classes)
        else:
            confusion = score_shared(message, corpus)
        return _answer(confusion, metrics.label_shares(client.train.labels, classes), count(private)), state

    return handle


def score(task: Task, params: Params, corpus: Corpus, classes: int) -> metrics.Confusion:
    confusion = np.zeros((classes, classes), dtype=np.int64)
    with torch.no_grad():
        for batch in by_length(task.examples(corpus), size=256):
            guess = task.model.predict(params, batch)
            confusion += metrics.confusion_matrix(batch.labels.numpy(), guess.numpy(), classes)
    return confusion


def _answer(confusion: metrics.Confusion, shares: metrics.FloatArray, parameters_private: int) -> Message:
    """Label shares and confusions stay on the client: it sends what is made of them."""
    figures = {
        "accuracy": metrics.accuracy(confusion),
        "local_accuracy": metrics.local_accuracy(confusion, shares),
        "majority_accuracy": metrics.majority_accuracy(shares),
        "macro_f1": metrics.macro_f1(confusion),
        "texts": int(confusion.sum()),
        "parameters_private": parameters_private,
    }
    return Message({name: torch.tensor(float(value), dtype=torch.float64) for name, value in figures.items()})


def evaluate(ask: Ask, state: ServerState, clients: Sequence[ClientId], split: str = "test") -> dict[str, float]:
    """Ask these clients for their scores, and sum them up. No clients, or nobody answers: no figures."""
    message = request(state, ask=1, split=split)
    replies = [
        {name: value.item() for name, value in reply.arrays.items()}
        for _, reply in ask("evaluate", dict.fromkeys(clients, message))
    ]
    if not replies:
        return {}
    column = {name: [reply[name] for reply in replies] for name in replies[0]}
    return {
        "scored_clients": len(replies),
        "global_accuracy": metrics.geometric_mean(column["accuracy"], int(column["texts"][0])),
        "global_accuracy_mean": float(np.mean(column["accuracy"])),
        "global_accuracy_spread": float(np.std(column["accuracy"])),
        "local_accuracy": float(np.mean(column["local_accuracy"])),
        "local_accuracy_spread": float(np.std(column["local_accuracy"])),
        "local_majority_accuracy": float(np.mean(column["majority_accuracy"])),
        "macro_f1": float(np.mean(column["macro_f1"])),
        "parameters_private": float(np.mean(column["parameters_private"])),
    }
