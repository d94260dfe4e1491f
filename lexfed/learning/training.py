"""The handler of `train`, and the server half that most methods share."""

from dataclasses import replace

import torch
from torch import Tensor

from lexfed.core.devices import CPU, at_home, placed, update_at_home
from lexfed.core.params import ParameterSplit, Rows
from lexfed.core.seeds import Seed, derive, torch_generator
from lexfed.corpus.population import Client
from lexfed.federation import (
    Answer,
    ClientState,
    Federation,
    Handler,
    ServerProgram,
    ServerState,
    Steps,
    of_fork,
    once,
)
from lexfed.learning.holding_back import HELD, counted, may_fall_silent
from lexfed.learning.moved import since, whole
from lexfed.learning.parts import Parts
from lexfed.learning.private_table import PrivatePart
from lexfed.learning.task import LocalUpdate, Train, Trained
from lexfed.privacy.mechanism import Mechanism, NoPrivacy
from lexfed.wire import Message, below, pack
from lexfed.wire.verbs import NAMED


def trainer(
    parts: Parts, split: ParameterSplit, private: PrivatePart, update: LocalUpdate
) -> Handler:
    """Answer `train` as a classifier does, with the layers that are around its local update."""
    watched = parts.layer(update, parts.task, private)
    task = parts.task
    return updater(task.options, split, private, watched, parts.mechanism, task.device)


def updater(
    options: Train,
    split: ParameterSplit,
    private: PrivatePart,
    update: LocalUpdate,
    mechanism: Mechanism,
    device: torch.device = CPU,
) -> Handler:
    """Assemble the model, update it, send how the shared part moved, keep the private part. From
    the request to the reply all of it is on the device.
    """

    def handle(message: Message, client: Client, before: ClientState) -> Answer:
        state = before if before.params else private.start(client)
        shared = placed(below("model", message.arrays), device)
        seed = derive(client.secret, "train", int(message.meta["step"]), int(message.meta["ask"]))
        whole = split.join(shared, placed(state.params, device))
        after = update(whole, client, state, message, seed)
        texts = after.texts or len(client.train)
        # both must say so: what the server asks for, this client's own tables may forbid
        named = NAMED in message.meta and isinstance(mechanism, NoPrivacy) and mechanism.rows
        delta = {name: _moved(after, name, value, named) for name, value in shared.items()}
        noise = derive(seed, "bound", *of_fork(message))
        bounded = update_at_home(mechanism.bound(delta, texts, after.loss, message, noise))
        reply = Message(pack(bounded, options.upload, torch_generator(derive(seed, "rounding"))))
        kept = ClientState(at_home(split.private(after.params)), state.blobs)
        if after.held_back:
            return Message() if may_fall_silent(mechanism) else reply, counted(
                HELD, 1, before, kept
            )
        return reply, kept

    return handle


def _moved(after: Trained, name: str, before: Tensor, named: bool) -> Tensor | Rows:
    if after.held_back:
        return torch.zeros_like(before)
    move = since(after.params, name, before)
    return move if named else whole(move, before)


def averaging(parts: Parts, split: ParameterSplit) -> ServerProgram:
    """Initialise what is shared, then average it, round after round."""

    def server(federation: Federation, seed: Seed, state: ServerState) -> Steps:
        def init(s: ServerState) -> ServerState:
            return replace(s, params=split.shared(parts.task.init(derive(seed, "init"))))

        state = yield from once(state, "init", init)
        rounds = parts.loop()
        return (yield from rounds(federation, state, until=parts.rounds, seed=seed))

    return server
