"""FedRecon (Singhal et al., NeurIPS 2021), with the private rows that FedeVocab's comparison gives it.

The rows of tokens that contain a digit are private; they have a tensor of their own name and never travel.

    client k:  S, Q <- support and query halves of its texts
               P_k <- initial rows;  P_k <- fit on S, the rest frozen          reconstruction
               W_k <- E epochs from W on Q, P_k frozen
               send W_k - W with weight |Q|;  forget P_k
    server:    W <- W + sum_k (|Q_k| / |Q|) (W_k - W)
"""

from dataclasses import dataclass, replace

import torch

from lexfed.corpus.population import Client
from lexfed.errors import ConfigError
from lexfed.federation import ClientState, Method
from lexfed.methods.evaluation import evaluator
from lexfed.methods.fedavg import averaging
from lexfed.methods.parts import Parts
from lexfed.methods.training import Local, Trained, nothing_private, train, trainer
from lexfed.models.bilstm import PRIVATE_ROWS, TABLE, BiLSTMClassifier
from lexfed.models.model import Example
from lexfed.params import ParameterSplit, Params
from lexfed.seeds import Seed, derive, torch_generator
from lexfed.wire import Message


@dataclass(frozen=True)
class FedRecon:
    """The `[fedrecon]` table."""

    support: float = 0.5  # share of a client's texts that the private rows are fitted on
    epochs: int = 1  # of fitting

    def __post_init__(self) -> None:
        if not 0 < self.support < 1 or self.epochs < 1:
            raise ConfigError("fedrecon.support must be between 0 and 1, fedrecon.epochs at least 1")


def is_private_token(token: str) -> bool:
    return any(letter.isdigit() for letter in token)


def fedrecon(parts: Parts, options: FedRecon, public_tokens: int) -> Method:
    """`public_tokens` of the vocabulary come first; the rest are the private ones."""
    if not isinstance(parts.task.model, BiLSTMClassifier):
        raise ConfigError("fedrecon keeps rows of a word table private: it needs model.name = 'bilstm'")
    split = ParameterSplit(lambda name: name == PRIVATE_ROWS)

    def init(seed: Seed) -> Params:  # the same model, its table in two tensors
        params = dict(parts.task.init(seed))
        params[TABLE], params[PRIVATE_ROWS] = params[TABLE][:public_tokens], params[TABLE][public_tokens:]
        return params

    task = replace(parts.task, init=init)

    def halves(client: Client, seed: Seed) -> tuple[list[Example], list[Example]]:
        examples = task.reader.read(client.train).examples
        order = torch.randperm(len(examples), generator=torch_generator(derive(seed, "halves"))).tolist()
        size = min(max(1, round(options.support * len(order))), max(1, len(order) - 1))
        return [examples[i] for i in order[:size]], [examples[i] for i in order[size:]]

    def reconstruct(params: Params, client: Client, message: Message, seed: Seed) -> Params:
        rows = init(derive(client.secret, "rows"))[PRIVATE_ROWS]
        local = Local(task.learning_rate(message), options.epochs, lambda name: float(name == PRIVATE_ROWS))
        local = replace(local, adjustment=task.adjustment(client))
        return train(task, {**params, PRIVATE_ROWS: rows}, halves(client, seed)[0], local, derive(seed, "fit")).params

    def adapt(params: Params, client: Client, state: ClientState, message: Message, seed: Seed) -> Params:
        return reconstruct(params, client, message, seed)

    def update(params: Params, client: Client, state: ClientState, message: Message, seed: Seed) -> Trained:
        query = halves(client, seed)[1]
        local = Local(task.learning_rate(message), task.options.epochs, lambda name: float(name != PRIVATE_ROWS))
        local = replace(local, adjustment=task.adjustment(client))
        after = train(task, reconstruct(params, client, message, seed), query, local, derive(seed, "query"))
        return Trained(split.shared(after.params), after.loss, len(query))

    return Method(
        client={
            "train": trainer(task, split, nothing_private, update, parts.mechanism),
            "evaluate": evaluator(task, split, nothing_private, adapt),
        },
        server=averaging(replace(parts, task=task), split),
        split=split,
        rounds=parts.rounds,
    )
