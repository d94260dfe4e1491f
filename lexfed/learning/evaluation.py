"""Evaluation is a verb: clients score the model they would use, and answer in a few numbers.
Nothing is kept.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from lexfed.core.devices import placed
from lexfed.core.errors import ConfigError
from lexfed.core.figures import ON_THE_WAY
from lexfed.core.files import OPEN, OWNER_ONLY, write_atomically
from lexfed.core.params import ParameterSplit, Params, count
from lexfed.core.seeds import Seed, derive
from lexfed.corpus.population import Client, Population
from lexfed.corpus.text import Corpus
from lexfed.federation import (
    Answer,
    ClientState,
    Federation,
    Handler,
    ServerState,
    Sum,
    Total,
    add_up,
    request,
)
from lexfed.learning.private_table import PrivatePart
from lexfed.learning.task import Task
from lexfed.learning.training_verbs import EVALUATE
from lexfed.metrics import classification as metrics
from lexfed.models.model import BEYOND, by_length
from lexfed.privacy.mechanism import dense
from lexfed.vocabulary.reading import Reader, Reading
from lexfed.vocabulary.word import Tokenizer
from lexfed.wire import ClientId, Message, below, encode


@dataclass(frozen=True)
class Evaluation:
    """The `[evaluation]` table. The last round is always scored on every client (or `last`), for
    the summary.
    """

    every: int = 0  # rounds between scores on a few clients, for the curve; 0: none
    clients: int = 5  # how many those few are, the same each time
    last: int | None = None  # at the last round: this many clients instead of all
    split: Literal["test", "validation"] = "test"  # validation: to choose options on
    # score on about this many texts of the common test set, every class in its share
    limit: int | None = None
    # texts that a language model writes into the report, before a switch of its tokenizer and at
    # the end; unless a promise holds for this very run, they may quote its users
    samples: int = 0

    def __post_init__(self) -> None:
        if (
            min(self.every, self.samples) < 0
            or self.clients < 1
            or min(1 if n is None else n for n in (self.last, self.limit)) < 1
        ):
            raise ConfigError(
                "evaluation.every and samples must be at least 0; clients, last and limit at "
                "least 1"
            )


# organisations do not say how many texts they are scored on: no more than these
UNKNOWN_TEXTS = 10**9
LABELS = "labels.json"  # among the artefacts: what the classes are called, by their numbers
# the figures that a curve shows
CURVES = ("global_accuracy", "local_accuracy", "local_majority_accuracy")

Adapt = Callable[[Params, Client, ClientState, Message, Seed], Params]


def evaluator(
    task: Task, split: ParameterSplit, private: PrivatePart, adapt: Adapt | None = None
) -> Handler:
    """Answer `evaluate` with the accuracy of the assembled model on a common set, globally and by
    own label shares.

    `adapt` is what the client would do to the model before it uses it.
    """
    return Evaluator(task, split, private, adapt)


@dataclass(frozen=True)
class InUse:
    """The model that a client would use, and how it reads texts for it."""

    params: Params
    reader: Reader
    everybodys: bool  # nothing in it is the client's own


@dataclass(frozen=True, eq=False)
class Evaluator:
    """The handler that `evaluator` makes. Who wants a client's predictions asks it for the model:
    what is scored and what is used are one.
    """

    task: Task
    split: ParameterSplit
    private: PrivatePart
    adapt: Adapt | None

    def __call__(self, message: Message, client: Client, state: ClientState) -> Answer:
        corpus = (
            client.common_validation
            if message.meta["split"] == "validation"
            else client.common_test
        )
        if len(corpus) == 0:  # an organisation that holds out nothing
            return None, state
        model = self.model(message, client, state)
        if model.everybodys:
            return _answer(self._once(message, corpus), self.task, client, 0), state
        outputs = run(self.task, model.params, model.reader.read(corpus))
        kept = count(self.split.private(model.params))
        return _answer(outputs, self.task, client, kept), state

    def model(self, message: Message, client: Client, state: ClientState) -> InUse:
        mine = state if state.params else self.private.start(client)
        given = below("model", message.arrays)
        if self.adapt is None and not mine.params:
            return InUse(given, self.task.reader, True)
        # before a cut (LG-FedAvg's warm start) the private part is still everybody's, and comes
        # with the rest
        params = given if self.split.private(given) else self.split.join(given, mine.params)
        if self.adapt is not None:
            clock = int(message.meta["step"]), int(message.meta["ask"])
            seed = derive(client.secret, "evaluate", *clock)
            there = placed(params, self.task.device)
            params = self.adapt(there, client, mine, message, seed)
        return InUse(params, self.private.reader(mine), False)

    @cached_property
    def _once(self) -> Callable[[Message, Corpus], "Outputs"]:
        """Without anything private all clients have one model: run it once per request."""

        @lru_cache(maxsize=1)
        def run_shared(message: Message, corpus: Corpus) -> Outputs:
            return run(self.task, below("model", message.arrays), self.task.reader.read(corpus))

        return run_shared


@dataclass(frozen=True)
class Outputs:
    logits: Tensor  # (N, C)
    labels: Tensor  # (N,)


def run(task: Task, params: Params, reading: Reading) -> Outputs:
    if reading.beyond is not None:  # words that only the public table has: looked up, never trained
        params = {**params, BEYOND: reading.beyond}
    params = placed(params, task.device)
    with torch.no_grad():
        batches = list(by_length(reading.examples, size=256))
        logits = torch.cat([task.model.logits(params, batch, None) for batch in batches]).cpu()
    return Outputs(logits, torch.cat([batch.labels for batch in batches]))


def logits_of(task: Task, model: InUse, texts: Sequence[str]) -> Tensor:  # (N, C)
    """Of any texts, in their order."""
    places = np.arange(len(texts))  # in place of labels: batches are sorted by length
    column = pa.array(texts, pa.large_string())
    outputs = run(task, model.params, model.reader.read(Corpus(places, column, places)))
    logits = torch.empty_like(outputs.logits)
    logits[outputs.labels] = outputs.logits
    return logits


def _answer(outputs: Outputs, task: Task, client: Client, parameters_private: int) -> Message:
    """Confusions stay on the client: it sends figures made of them. (The majority figure is its
    largest label share.)
    """
    shares = metrics.label_shares(client.train.labels, task.classes)
    everywhere = _confusion(outputs.logits, outputs.labels, task.classes)
    at_home = _confusion(outputs.logits + task.adjustment(client), outputs.labels, task.classes)
    figures = {
        "accuracy": metrics.accuracy(everywhere),
        "accuracy_square": metrics.accuracy(everywhere) ** 2,
        "accuracy_lost": metrics.lost(metrics.accuracy(everywhere), len(outputs.labels)),
        "local_accuracy": metrics.local_accuracy(at_home, shares),
        "local_accuracy_square": metrics.local_accuracy(at_home, shares) ** 2,
        "error": metrics.standard_error(
            everywhere, metrics.label_shares(outputs.labels.numpy(), task.classes)
        ),
        "local_error": metrics.standard_error(at_home, shares),
        "majority_accuracy": metrics.majority_accuracy(shares),
        "macro_f1": metrics.macro_f1(everywhere),
        "texts": len(outputs.labels),
        "parameters_private": parameters_private,
    }
    return Message(
        {name: torch.tensor(float(value), dtype=torch.float64) for name, value in figures.items()}
    )


def _confusion(logits: Tensor, labels: Tensor, classes: int) -> metrics.Confusion:
    return metrics.confusion_matrix(labels.numpy(), logits.argmax(1).numpy(), classes)


@dataclass(frozen=True)
class ClassifierStudy:
    """Every client scores the model it would use; a few of them, always the same, on the way."""

    asks = (EVALUATE,)  # what a method must have a handler for

    evaluation: Evaluation
    people: Population
    tokenizer: Tokenizer | None  # None: every client has its own words
    clients_words: bool = False  # its words are the clients', for the owner of the run alone

    def score(self, federation: Federation, state: ServerState, last: bool) -> dict[str, Any]:
        """At the end, the figures of those clients that were scored on the way stand apart: a curve
        is always of the same ones.
        """
        options, split = self.evaluation, self.evaluation.split
        texts = self.people.common_validation if split == "validation" else self.people.common_test
        most = len(texts) if self.people.here else UNKNOWN_TEXTS
        sums = partial(sums_of, federation.total, state, split=split, texts=most)
        clients = federation.clients[: options.last] if last else federation.clients
        few = sums(clients[: options.clients])
        if not last:
            return summed_up(few)
        newcomers = range(len(self.people), len(self.people) + self.people.unseen)
        unseen, on_the_way = summed_up(sums(newcomers)), summed_up(few)
        return {
            **summed_up(add_up([few, sums(clients[options.clients :])])),
            **({"unseen_accuracy": unseen["global_accuracy"]} if unseen else {}),
            ON_THE_WAY: {key: on_the_way[key] for key in CURVES if key in on_the_way},
        }

    def due(self, state: ServerState) -> bool:
        return False

    def artifacts(self, state: ServerState, folder: Path) -> None:
        write_atomically(folder / "model.safetensors", encode(Message(state.params)))
        if self.tokenizer is not None:
            words = "".join(f"{token}\n" for token in self.tokenizer.vocabulary.tokens)
            mode = OWNER_ONLY if self.clients_words else OPEN
            write_atomically(folder / "vocabulary.txt", words.encode(), mode)
        write_atomically(folder / LABELS, (json.dumps(self.people.labels) + "\n").encode())

    def summary(self, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        majority = {}
        if self.people.here:
            shares = metrics.label_shares(self.people.common_test.labels, self.people.classes)
            majority = {"test_majority_accuracy": float(max(shares))}
        if self.tokenizer is None:
            return majority
        return {**majority, "vocabulary_size": len(self.tokenizer.vocabulary)}


def sums_of(
    total: Total, state: ServerState, clients: Sequence[ClientId], split: str, texts: int
) -> Sum:
    """What these clients score together, of those that answer."""
    if not clients:
        return Sum()
    message = request(state, ask=1, split=split, most_lost=metrics.lost(0.0, texts))
    return total(EVALUATE, dict.fromkeys(clients, message))


def summed_up(total: Sum) -> dict[str, float]:
    """The figures of some clients together. No clients, or nobody answers: no figures."""
    if not total.update:
        return {}
    clients = total.clients
    mean = {name: dense(value).item() / clients for name, value in total.update.items()}
    spread, local_spread = (
        max(0.0, mean[f"{name}_square"] - mean[name] ** 2) ** 0.5
        for name in ("accuracy", "local_accuracy")
    )
    return {
        "scored_clients": clients,
        "global_accuracy": math.exp(-mean["accuracy_lost"]),
        "global_accuracy_mean": mean["accuracy"],
        "global_accuracy_spread": spread,
        "global_accuracy_interval": metrics.half_interval(mean["error"], spread, clients),
        "local_accuracy": mean["local_accuracy"],
        "local_accuracy_spread": local_spread,
        "local_accuracy_interval": metrics.half_interval(
            mean["local_error"], local_spread, clients
        ),
        "local_majority_accuracy": mean["majority_accuracy"],
        "macro_f1": mean["macro_f1"],
        "parameters_private": mean["parameters_private"],
    }
