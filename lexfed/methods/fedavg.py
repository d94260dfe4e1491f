"""FedAvg (McMahan et al., AISTATS 2017).

    client k:  W_k <- E epochs from W on its own texts
               send W_k - W
    server:    W <- W + sum_k (n_k / n) (W_k - W)

The whole model travels, embedding table included: the rows that moved are the client's words.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from lexfed.corpus.population import Client
from lexfed.errors import ConfigError
from lexfed.federation import ClientState, Federation, Handler, Method, ServerState, Steps, once
from lexfed.methods.evaluation import Adapt, evaluator
from lexfed.methods.parts import Parts
from lexfed.methods.self_audit import OFF, SelfAudit, audited, row_reading
from lexfed.methods.training import Local, LocalUpdate, nothing_private, plain_update, train, trainer
from lexfed.params import ALL_SHARED, ParameterSplit, Params
from lexfed.seeds import Seed, derive
from lexfed.wire import Message

ServerProgram = Callable[[Federation, Seed, ServerState], Steps]


def averaging(parts: Parts, split: ParameterSplit) -> ServerProgram:
    """The server half that most methods share: initialise what is shared, then average it, round after round."""

    def server(federation: Federation, seed: Seed, state: ServerState) -> Steps:
        def init(s: ServerState) -> ServerState:
            return replace(s, params=split.shared(parts.task.init(derive(seed, "init"))))

        state = yield from once(state, "init", init)
        rounds = parts.loop()
        return (yield from rounds(federation, state, until=parts.rounds, seed=seed))

    return server


def fedavg(parts: Parts, update: LocalUpdate | None = None, adapt: Adapt | None = None, audit: SelfAudit = OFF) -> Method:
    """`update` is for methods that train otherwise, `adapt` for those that do something before they use the model."""

    def make(update: LocalUpdate) -> Handler:
        return trainer(parts.task.options, ALL_SHARED, nothing_private, update, parts.mechanism)

    return Method(
        client={
            "train": audited(make, update or plain_update(parts.task), row_reading(parts.task), audit, parts.mechanism),
            "evaluate": evaluator(parts.task, ALL_SHARED, nothing_private, adapt),
        },
        server=averaging(parts, ALL_SHARED),
        split=ALL_SHARED,
        rounds=parts.rounds,
    )


@dataclass(frozen=True)
class FineTune:
    """The `[fedavg_finetune]` table."""

    epochs: int = 1  # as much as FedeVocab's adaptive pass

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ConfigError("fedavg_finetune.epochs must be at least 1")


def fedavg_finetune(parts: Parts, options: FineTune, audit: SelfAudit = OFF) -> Method:
    """FedAvg, and every client fine-tunes the final model on its own texts before it uses it."""
    task = parts.task

    def adapt(params: Params, client: Client, state: ClientState, message: Message, seed: Seed) -> Params:
        local = Local(task.options.lr, options.epochs, adjustment=task.adjustment(client))
        return train(task, params, task.reader.read(client.train).examples, local, seed).params

    return fedavg(parts, adapt=adapt, audit=audit)
