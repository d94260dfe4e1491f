"""Who takes part in a round."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from lexfed.core.errors import ConfigError
from lexfed.core.seeds import Seed, derive, numpy_generator, secret_choice
from lexfed.wire import ClientId


class Sampler(Protocol):
    def sample(self, clients: Sequence[ClientId], seed: Seed) -> list[ClientId]: ...
    def expected_size(self, clients: int) -> float: ...


@dataclass(frozen=True)
class Everyone:
    def sample(self, clients: Sequence[ClientId], seed: Seed) -> list[ClientId]:
        return list(clients)

    def expected_size(self, clients: int) -> float:
        return clients


@dataclass(frozen=True)
class FixedSize:
    """A cohort of `size`, without replacement."""

    size: int
    secret: bool = False  # others must not guess it from earlier ones

    def sample(self, clients: Sequence[ClientId], seed: Seed) -> list[ClientId]:
        return _choose(clients, self.size, seed, self.secret)

    def expected_size(self, clients: int) -> float:
        return self.size


@dataclass(frozen=True)
class Poisson:
    """Every client by its own coin, heads with probability size / clients: what privacy accounting
    assumes.

    One binomial draw, then a choice: the same law, without a coin per client.
    """

    size: float
    secret: bool = False  # others must not guess it from earlier ones

    def sample(self, clients: Sequence[ClientId], seed: Seed) -> list[ClientId]:
        # one draw of a generator that is used for nothing else tells nothing of its seed
        heads = numpy_generator(seed).binomial(len(clients), self.size / len(clients))
        return _choose(clients, int(heads), seed, self.secret)

    def expected_size(self, clients: int) -> float:
        return self.size


def _choose(clients: Sequence[ClientId], size: int, seed: Seed, secret: bool) -> list[ClientId]:
    """A simulation repeats what earlier ones drew; a deployment's draws come from a cipher."""
    seed = derive(seed, "choose")
    places = (
        secret_choice(len(clients), size, seed)
        if secret
        else numpy_generator(seed).choice(len(clients), size, replace=False)
    )
    return [clients[int(place)] for place in places]


@dataclass(frozen=True)
class Cohort:
    """The `[cohort]` table."""

    size: int = 5  # clients that take part in a round; poisson: in the mean
    # how they are chosen; poisson: each by a coin of its own, as privacy accounting assumes
    sampling: Literal["fixed", "poisson", "everyone"] = "fixed"
    dropout: float = 0.0  # the chance, per client and round, that it never answers
    # the chance that it trains and keeps what it learnt, and dies before it sends
    lost: float = 0.0
    # the chance that it sends, and loses what it learnt: next time it comes with its old state
    stale: float = 0.0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError("cohort.size must be at least 1")
        mishaps = (self.dropout, self.lost, self.stale)
        if min(mishaps) < 0 or sum(mishaps) > 1:
            raise ConfigError(
                "cohort.dropout, cohort.lost and cohort.stale must be at least 0, and together at "
                "most 1"
            )


def build(cohort: Cohort, clients: int, secret: bool = False) -> Sampler:
    if cohort.sampling == "everyone":
        return Everyone()
    if cohort.size > clients:
        raise ConfigError(
            f"cohort.size is {cohort.size}, but there are {clients} clients; lower it"
        )
    return (FixedSize if cohort.sampling == "fixed" else Poisson)(cohort.size, secret)
