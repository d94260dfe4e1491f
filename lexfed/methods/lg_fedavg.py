"""LG-FedAvg (Liang et al., 2020): local representations, global model.

    warm start:  FedAvg of the whole model
    then:        the lower layers L_k stay with client k and persist;
                 the upper layers U are averaged

    client k:  L_k, U_k <- E epochs from L_k, U;   send U_k - U;   keep L_k
    server:    U <- U + sum_k (n_k / n) (U_k - U)
    predict:   with a L_k + (1 - a) L, L being the lower layers of the warm start; a is the
               interpolation

Cut just above the embedding and without a warm start, it is FedeVocab without adaptive updating,
with one public vocabulary. During the warm start everything travels, as in FedAvg; a client takes
no part in it once it is over, or once the client has lower layers of its own.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch

from lexfed.core.devices import placed
from lexfed.core.errors import ConfigError, NotAgreedError
from lexfed.core.params import ALL_SHARED, ParameterSplit, Params
from lexfed.core.seeds import Seed, derive
from lexfed.corpus.population import Client
from lexfed.federation import (
    Answer,
    ClientState,
    Entry,
    Federation,
    Handler,
    Method,
    ServerProgram,
    ServerState,
    Steps,
    clock,
    once,
)
from lexfed.learning.classifying import CLASSIFIER
from lexfed.learning.evaluation import evaluator
from lexfed.learning.parts import Parts
from lexfed.learning.private_table import Kept
from lexfed.learning.task import plain_update
from lexfed.learning.training import trainer
from lexfed.learning.training_verbs import EVALUATE, TRAIN, training
from lexfed.models.model import EMBEDDING, ENCODER
from lexfed.wire import Form, Message, Verb, below, decode, encode, under
from lexfed.wire.verbs import ANY, CLOCK

WARM_UP = training("warm", open=True)  # everything travels
# the lower layers, handed out once
INSTALL = Verb("install", down=Form({"start/": ANY}, CLOCK), up=Form(), kind="list")

CUT = "cut"  # the warm start is over
WARM = "warm"  # a client keeps the lower layers it was handed, for predictions in between


@dataclass(frozen=True)
class LGFedAvg:
    """The `[lg_fedavg]` table."""

    cut: Literal["embedding", "encoder"] = "embedding"  # the uppermost layer that stays
    warm: int = 5  # rounds of FedAvg first
    # a client's own lower layers in what it predicts with; the rest are the warm start's
    interpolation: float = 1.0

    def __post_init__(self) -> None:
        if self.warm < 0 or not 0 <= self.interpolation <= 1:
            raise ConfigError(
                "lg_fedavg.warm must be at least 0, lg_fedavg.interpolation between 0 and 1"
            )


def lg_fedavg(parts: Parts, options: LGFedAvg) -> Method:
    task, update = parts.task, plain_update(parts.task)
    uppermost = {"embedding": EMBEDDING, "encoder": ENCODER}[options.cut]
    split = ParameterSplit(lambda name: task.model.depth(name) <= uppermost)

    # of a client that was not there when the lower layers were handed out
    def begin(client: Client) -> Params:
        return split.private(task.init(derive(client.secret, "init")))

    def interpolate(
        params: Params, client: Client, state: ClientState, message: Message, seed: Seed
    ) -> Params:
        if WARM not in state.blobs:
            return params
        warm = placed(decode(state.blobs[WARM]).arrays, task.device)
        a = options.interpolation
        return {
            **params,
            **{name: torch.lerp(lower, params[name], a) for name, lower in warm.items()},
        }

    lower = Kept(task.reader, begin)
    predict = interpolate if options.interpolation < 1 else None
    until = min(options.warm, parts.rounds)
    whole = trainer(parts, ALL_SHARED, Kept(task.reader), update)
    return Method(
        client={
            **({WARM_UP: warming(whole, until)} if until else {}),
            INSTALL: installing(options),
            TRAIN: trainer(parts, split, lower, update),
            EVALUATE: evaluator(task, split, lower, predict),
        },
        server=server(parts, options, split),
        split=split,
        rounds=parts.rounds,
    )


def installing(options: LGFedAvg) -> Handler:
    def install(message: Message, client: Client, state: ClientState) -> Answer:
        if state.params:
            raise NotAgreedError("lower layers are handed out once: this client has its own")
        given = below("start", message.arrays)
        warm = {WARM: encode(Message(given))} if options.interpolation < 1 else {}
        return Message(), ClientState(given, warm)

    return install


def warming(train: Handler, until: int) -> Handler:
    """The whole model's training, in the rounds that were agreed on. What a server says of its
    round is its word alone: a client that has lower layers knows better.
    """

    def handle(message: Message, client: Client, state: ClientState) -> Answer:
        if state.params or int(message.meta["round"]) >= until:
            raise NotAgreedError("the warm start is over: the lower layers stay here")
        return train(message, client, state)

    return handle


def server(parts: Parts, options: LGFedAvg, split: ParameterSplit) -> ServerProgram:
    def program(federation: Federation, seed: Seed, state: ServerState) -> Steps:
        def cut(s: ServerState) -> ServerState:
            hand_out = replace(clock(s, ask=0), arrays=under("start", split.private(s.params)))
            for _ in federation.ask(INSTALL, dict.fromkeys(federation.clients, hand_out)):
                pass
            return replace(s, params=split.shared(s.params), opt_state={})

        state = yield from once(
            state, "init", lambda s: replace(s, params=parts.task.init(derive(seed, "init")))
        )
        warm = min(options.warm, parts.rounds)
        if CUT not in state.done:  # more rounds may be granted later, and no warmer start
            state = yield from parts.loop(WARM_UP)(federation, state, until=warm, seed=seed)
        state = yield from once(state, CUT, cut)
        return (yield from parts.loop()(federation, state, until=parts.rounds, seed=seed))

    return program


METHOD = Entry("lg_fedavg", CLASSIFIER, lg_fedavg, LGFedAvg)
