"""What a client does to its update before it leaves, and the server to the sum before it is
used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from lexfed.core.params import Params, Rows, Update
from lexfed.core.seeds import Seed
from lexfed.privacy.accounting import Bare, Ledger, Release, Unit, charge
from lexfed.wire import ClientId, Message, Meta
from lexfed.wire.verbs import NAMED

WITHOUT_NOISE = "updates were averaged without noise"


@dataclass(frozen=True)
class Asked:
    """The exchange that a sum is of."""

    cohort: Sequence[ClientId]
    expected: float  # how many the sampler aims at
    population: int  # how many it draws from
    model: Params  # whose parameters the sum moves: noise is made for all of them, whoever answered


class Releaser(Protocol):
    """The server's half: all that a round needs."""

    def release(
        self, total: Update, asked: Asked, state: Params, noise: Seed
    ) -> tuple[Update, Params]:
        """The step that the sum stands for, and the mechanism's next state."""


class Mechanism(Releaser, Protocol):
    """Both halves."""

    def tell(self, state: Params) -> Mapping[str, Meta]:
        """What clients are told beside the model."""

    def bound(
        self, delta: Update, examples: int, loss: float, message: Message, seed: Seed
    ) -> Update:
        """Client: the update to send. Every entry adds up over clients. Rows come only to those
        that take them.
        """


class Account(Protocol):
    """Who pays for what is released."""

    @property
    def ahead(self) -> bool:
        """Whether the charged ledger must be kept before anything is released."""

    def charge(self, ledger: Ledger, asked: Asked, state: Params) -> tuple[Ledger, Params]:
        """The ledger with this exchange in it, and the mechanism's state with whom it asked;
        `BudgetSpent` if it can't be paid for.
        """

    def plan(self, ledger: Ledger, expected: float, population: int, rounds: int) -> Ledger:
        """The ledger as so many exchanges with such cohorts will leave it."""

    def of(self, group: str) -> "Account":
        """Of one of several groups of users that have nobody in common: each pays for its own
        rounds.
        """


@dataclass(frozen=True)
class NoPrivacy:
    """Example weights, p_k = n_k / sum n: clients send n_k * delta_k and n_k, the server divides
    the sums. Nobody counts for more than `most` texts: who claims more is not heard.
    """

    most: int = 10_000
    # whether an update may name the rows of a table that moved, and leave out the others: rows are
    # words, and here every number is told as it is
    rows: bool = False

    def tell(self, state: Params) -> Mapping[str, Meta]:
        return {"most_texts": self.most, **({NAMED: 1} if self.rows else {})}

    def bound(
        self, delta: Update, examples: int, loss: float, message: Message, seed: Seed
    ) -> Update:
        weight = torch.tensor(float(min(examples, self.most)))
        weighted = {
            f"delta/{name}": replace(value, values=value.values * weight)
            if isinstance(value, Rows)
            else value * weight
            for name, value in delta.items()
        }
        return {**weighted, "weight": weight, "loss": torch.tensor(loss) * weight}

    def release(
        self, total: Update, asked: Asked, state: Params, noise: Seed
    ) -> tuple[Update, Params]:
        if not total:  # nobody came: no step
            return {}, state
        sums = {
            name: value.spread(asked.model[name]) if isinstance(value, Rows) else value
            for name, value in deltas(total).items()
        }
        return {name: value / dense(total["weight"]) for name, value in sums.items()}, state


@dataclass(frozen=True)
class Unpaid:
    """Nothing is promised. That it was released all the same is written down: a fork of this run
    that adds noise later can't promise anything about it.
    """

    unit: Unit = "user"
    what: str = "a round of training: the mean of updates"
    ahead: bool = False

    def charge(self, ledger: Ledger, asked: Asked, state: Params) -> tuple[Ledger, Params]:
        return self.plan(ledger, asked.expected, asked.population, 1), state

    def plan(self, ledger: Ledger, expected: float, population: int, rounds: int) -> Ledger:
        bare = Release(self.unit, Bare(WITHOUT_NOISE), rounds, what=self.what)
        return charge(ledger, bare) if rounds else ledger

    def of(self, group: str) -> "Unpaid":
        return self


UNPAID = Unpaid()


def deltas(update: Update) -> Update:
    return {
        name.removeprefix("delta/"): value
        for name, value in update.items()
        if name.startswith("delta/")
    }


def whole(update: Update) -> Params:
    """Of those who take no rows: which rows of a table moved is told without noise."""
    return {name: dense(value) for name, value in update.items()}


def dense(value: Tensor | Rows) -> Tensor:
    if isinstance(value, Rows):
        raise ValueError("rows need a mechanism of their own")
    return value
