"""Evaluation is a verb: clients score the model they would use, and answer in a few numbers. Nothing is kept."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lexfed.corpus.population import Client
from lexfed.corpus.text import Corpus
from lexfed.errors import ConfigError
from lexfed.federation import Ask, ClientState, Handler, ServerState, request
from lexfed.methods.training import Start, Task
from lexfed.metrics import classification as metrics
from lexfed.models.bilstm import BEYOND
from lexfed.models.model import by_length
from lexfed.params import ParameterSplit, Params, count
from lexfed.seeds import Seed, derive
from lexfed.vocabulary.reading import Reader, Reading
from lexfed.wire import ClientId, Message, below


@dataclass(frozen=True)
class Evaluation:
    """The `[evaluation]` table. The last round is always scored on every client (or `last`), for the summary."""

    every: int = 0  # rounds between scores on a few clients, for the curve; 0: none
    clients: int = 5  # how many those few are, the same each time
    last: int | None = None  # at the last round: this many clients instead of all
    split: Literal["test", "validation"] = "test"  # validation: to choose options on
    limit: int | None = None  # score on about this many texts of the common test set, every class in its share

    def __post_init__(self) -> None:
        if self.every < 0 or self.clients < 1 or min(1 if n is None else n for n in (self.last, self.limit)) < 1:
            raise ConfigError("evaluation.every must be at least 0; clients, last and limit at least 1")


Adapt = Callable[[Params, Client, ClientState, Message, Seed], Params]
ReaderOf = Callable[[ClientState], Reader]


def evaluator(
    task: Task, split: ParameterSplit, start: Start, adapt: Adapt | None = None, reader_of: ReaderOf | None = None
) -> Handler:
    """Answer `evaluate` with the accuracy of the assembled model on a common set, globally and by own label shares.

    `adapt` is what the client would do to the model before it uses it; `reader_of` how it reads, if by a table of its own.
    """

    @lru_cache(maxsize=1)  # without anything private all clients have one model: run it once per request
    def run_shared(message: Message, corpus: Corpus) -> Outputs:
        return run(task, below("model", message.arrays), task.reader.read(corpus))

    def handle(message: Message, client: Client, state: ClientState) -> tuple[Message, ClientState]:
        corpus = client.common_validation if message.meta["split"] == "validation" else client.common_test
        mine = state if state.params else start(client)
        if adapt is None and not mine.params:
            outputs, private = run_shared(message, corpus), 0
        else:
            given = below("model", message.arrays)
            # before a cut (LG-FedAvg's warm start) the private part is still everybody's, and comes with the rest
            params = given if split.private(given) else split.join(given, mine.params)
            seed = derive(client.secret, "evaluate", int(message.meta["step"]), int(message.meta["ask"]))
            if adapt is not None:
                params = adapt(params, client, mine, message, seed)
            reader = reader_of(mine) if reader_of is not None else task.reader
            outputs, private = run(task, params, reader.read(corpus)), count(split.private(params))
        return _answer(outputs, task, client, private), state

    return handle


@dataclass(frozen=True)
class Outputs:
    logits: Tensor  # (N, C)
    labels: Tensor  # (N,)


def run(task: Task, params: Params, reading: Reading) -> Outputs:
    if reading.beyond is not None:  # words that only the public table has: looked up, never trained
        params = {**params, BEYOND: reading.beyond}
    with torch.no_grad():
        batches = list(by_length(reading.examples, size=256))
        logits = torch.cat([task.model.logits(params, batch, None) for batch in batches])
    return Outputs(logits, torch.cat([batch.labels for batch in batches]))


def _answer(outputs: Outputs, task: Task, client: Client, parameters_private: int) -> Message:
    """Confusions stay on the client: it sends figures made of them. (The majority figure is its largest label share.)"""
    shares = metrics.label_shares(client.train.labels, task.classes)
    everywhere = _confusion(outputs.logits, outputs.labels, task.classes)
    at_home = _confusion(outputs.logits + task.adjustment(client), outputs.labels, task.classes)
    figures = {
        "accuracy": metrics.accuracy(everywhere),
        "local_accuracy": metrics.local_accuracy(at_home, shares),
        "error": metrics.standard_error(everywhere, metrics.label_shares(outputs.labels.numpy(), task.classes)),
        "local_error": metrics.standard_error(at_home, shares),
        "majority_accuracy": metrics.majority_accuracy(shares),
        "macro_f1": metrics.macro_f1(everywhere),
        "texts": len(outputs.labels),
        "parameters_private": parameters_private,
    }
    return Message({name: torch.tensor(float(value), dtype=torch.float64) for name, value in figures.items()})


def _confusion(logits: Tensor, labels: Tensor, classes: int) -> metrics.Confusion:
    return metrics.confusion_matrix(labels.numpy(), logits.argmax(1).numpy(), classes)


def evaluate(ask: Ask, state: ServerState, clients: Sequence[ClientId], split: str) -> dict[str, float]:
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
        "global_accuracy_interval": metrics.half_interval(column["error"], column["accuracy"]),
        "local_accuracy": float(np.mean(column["local_accuracy"])),
        "local_accuracy_spread": float(np.std(column["local_accuracy"])),
        "local_accuracy_interval": metrics.half_interval(column["local_error"], column["local_accuracy"]),
        "local_majority_accuracy": float(np.mean(column["majority_accuracy"])),
        "macro_f1": float(np.mean(column["macro_f1"])),
        "parameters_private": float(np.mean(column["parameters_private"])),
    }
