"""FedeVocab (Zhang et al., EMNLP 2022): federated model decomposition with private vocabulary.

Every client keeps its vocabulary and its embedding table E_k; only the body B is averaged.

    client k:  E_k <- U(L, E_k | B frozen)      adaptive updating, one epoch      [sec. 3.3]
               E_k, B_k <- U(L, E_k, B)         E epochs                           [Alg. 1]
               send B_k - B;  keep E_k
    server:    B <- B + sum_k (n_k / n) (B_k - B)                                  [eq. 1]

Differs from the paper: the vocabulary really is private (its code gave every client the same public one). A client's table
has the words of its own text; with `own+public` (default), words it lacks are looked up in a public table that all clients
of a machine share and nobody changes. The frozen body gets no gradient at all (in its code they piled up and entered the
first joint step). Clients are scored after an adaptive pass of their own, which is then discarded.
"""

from dataclasses import dataclass
from typing import Literal

from lexfed.corpus.population import Client
from lexfed.errors import ConfigError
from lexfed.federation import ClientState, Handler, Method
from lexfed.methods.defences import UNDEFENDED, Defences
from lexfed.methods.evaluation import evaluator
from lexfed.methods.fedavg import averaging
from lexfed.methods.parts import Parts
from lexfed.methods.private_table import table_for
from lexfed.methods.self_audit import OFF, SelfAudit, audited, span_reading
from lexfed.methods.training import Local, LocalUpdate, Trained, train, trainer
from lexfed.models.bilstm import FIRST_LAYER
from lexfed.models.model import EMBEDDING
from lexfed.params import ParameterSplit, Params
from lexfed.seeds import Seed, derive
from lexfed.wire import Message


@dataclass(frozen=True)
class FedeVocab:
    """The `[fedevocab]` table."""

    adaptive: bool = True  # False is the ablation of Table 5
    adaptive_steps: int | None = None  # at most so many batches of the adaptive epoch
    vocabulary: Literal["public", "own", "own+public"] = "own+public"
    vectors: tuple[str, ...] = ()  # public tables to start from, one by each client's own choice; "random" is none
    table_lr: float = 1.0  # times train.lr, for the private part
    minimum: int = 1  # own words that the public table lacks: at least so many occurrences
    size: int = 50_000  # words of a client's table

    def __post_init__(self) -> None:
        if not self.table_lr > 0 or self.minimum < 1 or self.size < 2:
            raise ConfigError("fedevocab.table_lr must be above 0, fedevocab.minimum at least 1, fedevocab.size at least 2")
        if self.adaptive_steps is not None and self.adaptive_steps < 1:
            raise ConfigError("fedevocab.adaptive_steps must be at least 1; for none, set fedevocab.adaptive = false")


def fedevocab(parts: Parts, options: FedeVocab, defences: Defences = UNDEFENDED, audit: SelfAudit = OFF) -> Method:
    task = parts.task
    also = FIRST_LAYER if defences.private_layers == "first" else frozenset()
    split = ParameterSplit(lambda name: task.model.depth(name) == EMBEDDING or name in also)
    table = table_for(parts, options.vocabulary, options.vectors, options.minimum, options.size, defences)

    def rate(name: str) -> float:
        return options.table_lr if split.is_private(name) else 1.0

    def only_table(name: str) -> float:
        return options.table_lr if split.is_private(name) else 0.0

    def adapt(params: Params, client: Client, state: ClientState, message: Message, seed: Seed) -> Params:
        if not options.adaptive:
            return params
        examples = table.reader(state).read(client.train).examples
        local = Local(
            task.learning_rate(message), 1, only_table, steps=options.adaptive_steps, adjustment=task.adjustment(client)
        )
        return train(task, params, examples, local, derive(seed, "adapt")).params

    def update(params: Params, client: Client, state: ClientState, message: Message, seed: Seed) -> Trained:
        params = adapt(params, client, state, message, seed)
        local = Local(task.learning_rate(message), task.options.epochs, rate, adjustment=task.adjustment(client))
        return train(task, params, table.reader(state).read(client.train).examples, local, derive(seed, "joint"))

    def make(update: LocalUpdate) -> Handler:
        return trainer(task.options, split, table.start, update, parts.mechanism)

    attack = span_reading(table, task.options.max_length, audit)
    return Method(
        client={
            "train": audited(make, update, attack, audit, parts.mechanism),
            "evaluate": evaluator(task, split, table.start, adapt if options.adaptive else None, table.reader),
        },
        server=averaging(parts, split),
        split=split,
        rounds=parts.rounds,
    )
