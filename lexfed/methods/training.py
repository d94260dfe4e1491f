"""What a client does when it is asked to train: local epochs, and the handler around them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lexfed.corpus.population import Client
from lexfed.corpus.text import Corpus
from lexfed.errors import ConfigError
from lexfed.federation import ClientState, Handler
from lexfed.models.model import Example, Model, shuffled
from lexfed.params import ParameterSplit, Params
from lexfed.privacy.mechanism import Mechanism
from lexfed.seeds import Seed, derive
from lexfed.vocabulary.word import Tokenizer
from lexfed.wire import Message, below, pack


@dataclass(frozen=True)
class Train:
    """The `[train]` table: what each client does in a round."""

    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    lr: float = 5e-3
    batch: int = 32
    epochs: int = 1
    weight_decay: float = 0.0
    max_length: int = 256  # words of a text that are read

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ConfigError("train.lr must be above 0")
        if min(self.batch, self.epochs, self.max_length) < 1:
            raise ConfigError("train.batch, train.epochs and train.max_length must be at least 1")


@dataclass(frozen=True)
class Task:
    """A model, the tokenizer it reads with, and how it is trained."""

    model: Model
    tokenizer: Tokenizer
    options: Train

    def examples(self, corpus: Corpus) -> list[Example]:
        limit = self.options.max_length
        ids = (self.tokenizer.encode(text)[:limit] for text in corpus)
        return [Example(i, int(label)) for i, label in zip(ids, corpus.labels, strict=True)]

    def init(self, seed: Seed) -> Params:
        return self.model.init(len(self.tokenizer.vocabulary), seed)


@dataclass(frozen=True)
class Trained:
    params: Params
    loss: float  # mean over the texts of the last epoch, as they were met


def train(task: Task, params: Params, examples: Sequence[Example], epochs: int, seed: Seed) -> Trained:
    """Local epochs from these parameters, with a fresh optimizer. The parameters given are left as they are."""
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    optimizer = _optimizer(task.options, list(leaves.values()))
    loss_sum = 0.0
    for epoch in range(epochs):
        here, loss_sum = derive(seed, "epoch", epoch), 0.0
        for number, batch in enumerate(shuffled(examples, task.options.batch, here)):
            optimizer.zero_grad()
            loss = task.model.loss(leaves, batch, derive(here, "dropout", number))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            loss_sum += loss.item() * len(batch.labels)
    return Trained({name: value.detach() for name, value in leaves.items()}, loss_sum / len(examples))


def _optimizer(options: Train, leaves: list[Tensor]) -> torch.optim.Optimizer:
    if options.optimizer == "sgd":
        return torch.optim.SGD(leaves, options.lr, weight_decay=options.weight_decay, fused=True)
    kind = torch.optim.Adam if options.optimizer == "adam" else torch.optim.AdamW
    return kind(leaves, options.lr, weight_decay=options.weight_decay, fused=True)


Start = Callable[[Client], Params]
LocalUpdate = Callable[[Params, Client, Message, Seed], Trained]


def trainer(split: ParameterSplit, start: Start, update: LocalUpdate, mechanism: Mechanism) -> Handler:
    """Answer `train`: assemble the model, update it, send how the shared part moved, keep the private part."""

    def handle(message: Message, client: Client, state: ClientState) -> tuple[Message, ClientState]:
        shared = below("model", message.arrays)
        before = split.join(shared, state.params or start(client))
        seed = derive(client.secret, "train", int(message.meta["step"]), int(message.meta["ask"]))
        after = update(before, client, message, seed)
        delta = {name: after.params[name] - value for name, value in shared.items()}
        reply = Message(pack(mechanism.bound(delta, len(client.train), after.loss, message)))
        return reply, ClientState(split.private(after.params), state.blobs)

    return handle


def nothing_private(client: Client) -> Params:
    return {}
