"""What a client trains, and how: a task, and local epochs of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Literal, TypeVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lexfed.core.devices import CPU, device_of
from lexfed.core.errors import ConfigError
from lexfed.core.params import Params
from lexfed.core.seeds import Seed, derive
from lexfed.corpus.population import Client
from lexfed.federation import ClientState
from lexfed.learning.moved import Moved
from lexfed.models.model import (
    BEYOND,
    TABLE,
    Batch,
    Classifier,
    Example,
    WordClassifier,
    Wrapping,
    shuffled,
)
from lexfed.vocabulary.reading import Reader
from lexfed.wire import Message, Precision


@dataclass(frozen=True)
class Train:
    """The `[train]` table: what each client does in a round."""

    # of a client's local training, fresh in every round
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    lr: float = 5e-3  # the learning rate
    decay: Literal["none", "linear"] = "none"  # linear: to zero over the rounds
    batch: int = 32  # texts of a step
    epochs: int = 1  # passes of a client over its texts in a round
    weight_decay: float = 0.0  # pull of every weight towards zero
    max_length: int = 256  # words of a text that are read
    # or fp16, int8: what is sent, rounded up or down by chance, right in the mean
    upload: Precision = "fp32"
    # train with logits moved by this times the log of the client's own label shares, so that the
    # model need not learn them; they are added for the client's own predictions and left out of
    # global ones
    logit_adjustment: float = 0.0

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ConfigError("train.lr must be above 0")
        if min(self.batch, self.epochs, self.max_length) < 1:
            raise ConfigError("train.batch, train.epochs and train.max_length must be at least 1")
        if self.weight_decay < 0 or self.logit_adjustment < 0:
            raise ConfigError("train.weight_decay and train.logit_adjustment must be at least 0")

    def rate(self, message: Message, rounds: int) -> float:
        """The learning rate of this round of so many; what is done after the last round counts as
        part of it.
        """
        left = max(1, rounds - int(message.meta["round"]))
        return self.lr * left / rounds if self.decay == "linear" else self.lr


@dataclass(frozen=True)
class Task:
    """A classifier, how texts are read for it, and how it is trained."""

    model: Classifier
    reader: Reader
    options: Train
    classes: int
    rounds: int
    init: Callable[[Seed], Params]
    device: torch.device = CPU  # where clients train and score

    def learning_rate(self, message: Message) -> float:
        return self.options.rate(message, self.rounds)

    def adjustment(self, client: Client) -> Tensor:  # (C,)
        """What the client's own label shares add to its logits; a class it has never seen counts as
        one text.
        """
        counts = (
            torch.bincount(torch.from_numpy(client.train.labels), minlength=self.classes).float()
            + 1
        )
        return self.options.logit_adjustment * torch.log(counts / counts.sum())


@dataclass(frozen=True)
class Trained:
    params: Params  # `Moved`, where it is known how they moved
    loss: float  # mean over the texts of the last epoch, as they were met
    texts: int | None = None  # how many count as this client's weight; default: all of its own
    held_back: bool = False  # the client keeps this to itself: nothing of it may be sent


def everything(name: str) -> float:
    return 1.0


def steady(step: int) -> float:
    return 1.0


@dataclass(frozen=True)
class Local:
    """One stage of local training."""

    lr: float
    epochs: int = 1
    # times the learning rate, by parameter; 0 is frozen: no gradient at all
    rate: Callable[[str], float] = everything
    pace: Callable[[int], float] = steady  # times the learning rate, by step from 0 on
    mu: float = 0.0  # FedProx: pull towards where training started
    steps: int | None = None  # at most so many batches an epoch
    adjustment: Tensor | None = None  # (C,) added to the logits
    beyond: Tensor | None = None  # (n, d) rows behind the word table: looked up and never trained


B = TypeVar("B", bound=Sized)
Epoch = Callable[[Seed], Iterator[B]]  # the batches of one epoch, in an order of its own
Loss = Callable[[Params, B, Seed], Tensor]  # the mean over a batch; the seed is dropout's
# the same as a number, and its gradient by the leaves that ask for one
Gradient = Callable[[Params, B, Seed], tuple[float, Params]]


def train(
    task: Task, params: Params, examples: Sequence[Example], local: Local, seed: Seed
) -> Trained:
    """Local epochs of a classifier. Of a word table only the rows that its texts use are trained:
    the others would not move, so the result is the same to the bit.
    """
    found = touched(task, params, examples) if local.beyond is None else None
    if found is None:
        return Trained(*_train(task, params, examples, local, seed))
    few, rows = found
    rows = rows.to(params[TABLE].device)
    after, loss = _train(task, {**params, TABLE: params[TABLE][rows]}, few, local, seed)
    return Trained(replace(after, start=params, rows={TABLE: rows}), loss)


def touched(
    task: Task, params: Params, examples: Sequence[Example]
) -> tuple[list[Example], Tensor] | None:
    """The same texts, of a table that has only the rows that they use, and these rows: ascending,
    with the first, which padding uses. None: all of them move, by decay or because most are used,
    or it is no table to look up words in.
    """
    table = params.get(TABLE)
    alone = isinstance(task.model, WordClassifier) and not isinstance(task.model, Wrapping)
    if table is None or BEYOND in params or task.options.weight_decay or not alone:
        return None
    ids = np.fromiter(chain((0,), *(one.ids for one in examples)), np.int64)
    rows, places = np.unique(ids, return_inverse=True)
    if 2 * len(rows) >= len(table):
        return None
    place, few = iter(places[1:].tolist()), []
    for one in examples:
        few.append(Example(list(islice(place, len(one.ids))), one.label))
    return few, torch.from_numpy(rows)


def _train(
    task: Task, params: Params, examples: Sequence[Example], local: Local, seed: Seed
) -> tuple[Moved, float]:
    device = device_of(params)
    shift = local.adjustment if local.adjustment is not None else torch.zeros(task.classes)
    shift = shift.to(device)
    beyond = {} if local.beyond is None else {BEYOND: local.beyond.to(device)}

    def loss(leaves: Params, batch: Batch, dropout: Seed) -> Tensor:
        logits = task.model.logits({**leaves, **beyond}, batch, dropout)
        return F.cross_entropy(logits + shift, batch.labels.to(device))

    return descend(
        params,
        lambda here: shuffled(examples, task.options.batch, here),
        by_autograd(loss),
        task.options,
        local,
        seed,
    )


def by_autograd(loss: Loss[B]) -> Gradient[B]:
    def gradient(leaves: Params, batch: B, seed: Seed) -> tuple[float, Params]:
        mean = loss(leaves, batch, seed)
        trained = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
        found = torch.autograd.grad(mean, list(trained.values()), allow_unused=True)
        return mean.item(), {n: g for n, g in zip(trained, found, strict=True) if g is not None}

    return gradient


def descend(
    params: Params, epoch: Epoch[B], gradient: Gradient[B], options: Train, local: Local, seed: Seed
) -> tuple[Moved, float]:
    """Local epochs from these parameters, with a fresh optimizer: where they led to, and the loss.
    The parameters given are left as they are.
    """
    rates = {name: local.lr * rate for name in params if (rate := local.rate(name))}
    leaves = {n: v.detach().requires_grad_(n in rates) for n, v in params.items()}
    made = _plain if options.optimizer == "sgd" else _adaptive
    walk = made(options, params, leaves, rates)
    # the gradient whose step is still to be taken, and how many were before it
    loss_sum, met, ahead, taken = 0.0, 0, None, 0
    for number in range(local.epochs):
        here, loss_sum, met = derive(seed, "epoch", number), 0.0, 0
        for place, batch in enumerate(islice(epoch(here), local.steps)):
            if ahead is not None:
                walk.step(ahead, local.pace(taken))
                taken += 1
            mean, moves = gradient(leaves, batch, derive(here, "dropout", place))
            ahead = _pulled(moves, leaves, params, local.mu) if local.mu else moves
            loss_sum, met = loss_sum + mean * len(batch), met + len(batch)
    moved = Moved(params) if ahead is None else walk.last(ahead, local.pace(taken))
    return moved, loss_sum / max(met, 1)


def _pulled(moves: Params, leaves: Params, start: Params, mu: float) -> Params:
    """With the gradient of mu/2 |w - w_start|^2."""
    return {
        name: move.add(leaves[name].detach() - start[name], alpha=mu)
        for name, move in moves.items()
    }


@dataclass(frozen=True)
class _Walk:
    """A fresh optimizer of the leaves that have a rate. Leaves are another's until they first move:
    the tensors given are left as they are.
    """

    step: Callable[[Params, float], None]  # by this gradient, at this pace
    last: Callable[[Params, float], Moved]  # the same, and where that led to


def _plain(
    options: Train, start: Params, leaves: dict[str, Tensor], rates: Mapping[str, float]
) -> _Walk:
    """Plain descent. (torch's own takes as long to be made as a small model's step.)"""
    ours: set[str] = set()

    def decayed(name: str, move: Tensor) -> Tensor:
        decay = options.weight_decay
        return move.add(leaves[name].detach(), alpha=decay) if decay else move

    @torch.no_grad()
    def step(moves: Params, pace: float) -> None:
        for name, move in moves.items():
            leaf, move, rate = leaves[name], decayed(name, move), rates[name] * pace
            if name in ours:
                leaf.add_(move, alpha=-rate)
            else:
                leaves[name] = leaf.add(move, alpha=-rate).requires_grad_()
                ours.add(name)

    def last(moves: Params, pace: float) -> Moved:
        """Where it is the only step, it is the move, and nobody needs the weights yet."""
        if not ours:
            by = {n: decayed(n, m) * (-rates[n] * pace) for n, m in moves.items()}
            return Moved(start, by=by)
        step(moves, pace)
        return Moved(start, {name: leaf.detach() for name, leaf in leaves.items()})

    return _Walk(step, last)


def _adaptive(
    options: Train, start: Params, leaves: dict[str, Tensor], rates: Mapping[str, float]
) -> _Walk:
    """Adam or AdamW, to the bit as torch's own. (To make that one loads its compiler: a second of
    every process.)
    """
    leaves.update({name: leaves[name].detach().clone().requires_grad_() for name in rates})
    walked = torch._fused_adam_ if options.optimizer == "adam" else torch._fused_adamw_
    memory = {
        name: (torch.zeros_like(start[name]), torch.zeros_like(start[name]), _none_yet(start[name]))
        for name in rates
    }

    @torch.no_grad()
    def step(moves: Params, pace: float) -> None:
        for name, move in moves.items():
            mean, square, steps = memory[name]
            steps += 1
            walked(
                [leaves[name]], [move], [mean], [square], [], [steps],
                lr=rates[name] * pace, beta1=0.9, beta2=0.999, eps=1e-8,
                weight_decay=options.weight_decay, amsgrad=False, maximize=False,
            )  # fmt: skip

    def last(moves: Params, pace: float) -> Moved:
        step(moves, pace)
        return Moved(start, {name: leaf.detach() for name, leaf in leaves.items()})

    return _Walk(step, last)


def _none_yet(like: Tensor) -> Tensor:
    return torch.zeros((), device=like.device)  # how many steps were taken


LocalUpdate = Callable[[Params, Client, ClientState, Message, Seed], Trained]


def plain_update(task: Task, mu: float = 0.0) -> LocalUpdate:
    """E epochs of everything the client assembled."""

    def update(
        params: Params, client: Client, state: ClientState, message: Message, seed: Seed
    ) -> Trained:
        local = Local(
            task.learning_rate(message),
            task.options.epochs,
            mu=mu,
            adjustment=task.adjustment(client),
        )
        return train(task, params, task.reader.read(client.train).examples, local, seed)

    return update
