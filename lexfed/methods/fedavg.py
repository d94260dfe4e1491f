"""FedAvg (McMahan et al., AISTATS 2017).

    client k:  W_k <- E epochs from W on its own texts
               send W_k - W
    server:    W <- W + sum_k (n_k / n) (W_k - W)

The whole model travels, embedding table included: the rows that moved are the client's words.
"""

from dataclasses import replace

from lexfed.corpus.population import Client
from lexfed.federation import Federation, Method, Rounds, ServerState, Steps, once
from lexfed.methods.evaluation import evaluator
from lexfed.methods.parts import Parts
from lexfed.methods.training import Trained, nothing_private, train, trainer
from lexfed.params import ALL_SHARED, Params
from lexfed.seeds import Seed, derive
from lexfed.wire import Message


def fedavg(parts: Parts) -> Method:
    task = parts.task

    def update(params: Params, client: Client, message: Message, seed: Seed) -> Trained:
        return train(task, params, task.examples(client.train), task.options.epochs, seed)

    def server(federation: Federation, seed: Seed, state: ServerState) -> Steps:
        state = yield from once(state, "init", lambda s: replace(s, params=task.init(derive(seed, "init"))))
        rounds = Rounds(parts.sampler, parts.mechanism, parts.optimizer)
        return (yield from rounds(federation, state, until=parts.rounds, seed=seed))

    return Method(
        client={
            "train": trainer(ALL_SHARED, nothing_private, update, parts.mechanism),
            "evaluate": evaluator(task, parts.classes, ALL_SHARED, nothing_private),
        },
        server=server,
        split=ALL_SHARED,
        rounds=parts.rounds,
    )
