"""LG-FedAvg (Liang et al., 2020): local representations, global model.

    warm start:  FedAvg of the whole model
    then:        the lower layers L_k stay with client k and persist; the upper layers U are averaged

    client k:  L_k, U_k <- E epochs from L_k, U;   send U_k - U;   keep L_k
    server:    U <- U + sum_k (n_k / n) (U_k - U)
    predict:   with a L_k + (1 - a) L, L being the lower layers of the warm start; a is the interpolation

Cut just above the embedding and without a warm start, it is FedeVocab without adaptive updating, with one public vocabulary.
During the warm start everything travels, as in FedAvg.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch

from lexfed.corpus.population import Client
from lexfed.errors import ConfigError
from lexfed.federation import ClientState, Federation, Method, ServerState, Steps, once, request
from lexfed.methods.evaluation import evaluator
from lexfed.methods.parts import Parts
from lexfed.methods.training import nothing_private, plain_update, trainer
from lexfed.models.model import EMBEDDING, ENCODER
from lexfed.params import ALL_SHARED, ParameterSplit, Params
from lexfed.seeds import Seed, derive
from lexfed.wire import Message, below, decode, encode, under

WARM = "warm"  # a client keeps the lower layers it was handed, for predictions in between


@dataclass(frozen=True)
class LGFedAvg:
    """The `[lg_fedavg]` table."""

    cut: Literal["embedding", "encoder"] = "embedding"  # the uppermost layer that stays
    warm: int = 5  # rounds of FedAvg first
    interpolation: float = 1.0  # a client's own lower layers in what it predicts with; the rest are the warm start's

    def __post_init__(self) -> None:
        if self.warm < 0 or not 0 <= self.interpolation <= 1:
            raise ConfigError("lg_fedavg.warm must be at least 0, lg_fedavg.interpolation between 0 and 1")


def lg_fedavg(parts: Parts, options: LGFedAvg) -> Method:
    task, update = parts.task, plain_update(parts.task)
    uppermost = {"embedding": EMBEDDING, "encoder": ENCODER}[options.cut]
    split = ParameterSplit(lambda name: task.model.depth(name) <= uppermost)

    def start(client: Client) -> ClientState:  # a client that was not there when the lower layers were handed out
        return ClientState(split.private(task.init(derive(client.secret, "init"))))

    def install(message: Message, client: Client, state: ClientState) -> tuple[Message, ClientState]:
        given = below("start", message.arrays)
        return Message(), ClientState(given, {WARM: encode(Message(given))} if options.interpolation < 1 else {})

    def interpolate(params: Params, client: Client, state: ClientState, message: Message, seed: Seed) -> Params:
        if WARM not in state.blobs:
            return params
        warm = decode(state.blobs[WARM]).arrays
        return {**params, **{name: torch.lerp(value, params[name], options.interpolation) for name, value in warm.items()}}

    def server(federation: Federation, seed: Seed, state: ServerState) -> Steps:
        def cut(s: ServerState) -> ServerState:
            clock = request(replace(s, params={}), ask=0)
            hand_out = replace(clock, arrays=under("start", split.private(s.params)))
            for _ in federation.ask("install", dict.fromkeys(federation.clients, hand_out)):
                pass
            return replace(s, params=split.shared(s.params), opt_state={})

        state = yield from once(state, "init", lambda s: replace(s, params=task.init(derive(seed, "init"))))
        rounds = parts.loop()
        warm = min(options.warm, parts.rounds)
        state = yield from replace(rounds, verb="warm")(federation, state, until=warm, seed=seed)
        state = yield from once(state, "cut", cut)
        return (yield from rounds(federation, state, until=parts.rounds, seed=seed))

    return Method(
        client={
            "warm": trainer(task.options, ALL_SHARED, nothing_private, update, parts.mechanism),
            "install": install,
            "train": trainer(task.options, split, start, update, parts.mechanism),
            "evaluate": evaluator(task, split, start, interpolate if options.interpolation < 1 else None),
        },
        server=server,
        split=split,
        open_verbs=frozenset({"warm"}),
        rounds=parts.rounds,
    )
