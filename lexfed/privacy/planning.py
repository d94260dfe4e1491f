"""Before anything is run: how much noise a promise takes, and what it would do to the mean of an
update.

    z       the least noise multiplier with which so many rounds cost epsilon at most, at this delta
    number  z S / C     the noise's deviation on each number of the mean update (clip S, cohort C)
    whole   z sqrt(P) / C   its length against the longest update that may be sent, P parameters

Where the last figure is far above 1, one round drowns in noise; what is learned adds up over
rounds, and so does the noise, as a square root. Local noise (nobody trusts the server) is drawn by
every user for itself, so the mean has it divided by the root of the cohort only. Noise in shares
(within secure sums) is the server's noise and some more: it is enough if a part of the cohort
leaves, and another colludes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from lexfed.core.errors import ConfigError
from lexfed.privacy.calibration import Accountant, noise_for


def sound_delta(users: float) -> float:
    """Well below one in all users."""
    return 0.1 / users


def of_delta(delta: float, users: int) -> Iterator[str]:
    """At such a delta it would be allowed to publish all that one of them has, drawn by chance."""
    if delta * users >= 1:
        yield (
            f"delta = {delta:g} is not below one in {users:,}: it would allow to show one of them "
            "to all"
        )


FACTORS = (0.1, 1.0, 10.0)  # of the cohort that was asked for
MOST = 0.1  # a delta that can be planned with


@dataclass(frozen=True)
class Plan:
    epsilon: float
    population: int
    cohort: float
    rounds: int
    delta: float
    clip: float = 0.5
    parameters: int = 1_000_000
    accountant: Accountant = "pld"
    # noise in shares: of a cohort this share must stay, and this one may collude
    threshold: float = 0.67
    colluding: float = 0.1

    def __post_init__(self) -> None:
        if not (self.epsilon > 0 and 0 < self.delta < 1 and self.clip > 0):
            raise ConfigError("epsilon and clip are above 0, delta lies between 0 and 1")
        if self.delta > MOST:
            raise ConfigError(
                f"delta = {self.delta:g} is no promise: it is the chance that nothing is promised. "
                f"Take one below one in all users, and {MOST:g} at most"
            )
        if not 0 <= self.colluding < self.threshold <= 1:
            raise ConfigError("fewer users collude than must stay, and at most all stay")
        if not (1 <= self.cohort <= self.population and self.rounds > 0 and self.parameters > 0):
            raise ConfigError(
                "a cohort has at least one user and at most the whole population; rounds and "
                "parameters are above 0"
            )

    @property
    def title(self) -> str:
        return (
            f"epsilon {self.epsilon:g} at delta {self.delta:g} over {self.rounds:,} rounds, "
            f"{self.population:,} users, clip {self.clip:g}, {self.parameters:,} parameters.\n"
        )

    @property
    def hint(self) -> str:
        return (
            "\nz: how much noise the promise takes; it is what privacy.noise is set to "
            "(privacy.epsilon finds it by itself).\n"
            "on each number: how far the noise moves one number of the mean update.\n"
            "against the longest update: all noise of a round beside the longest update (the "
            "clip). Far above 1, a round\nis mostly noise: larger cohorts, more users, fewer "
            "parameters or a larger epsilon bring it down."
        )

    @property
    def share(self) -> float:
        return self.cohort / self.population


@dataclass(frozen=True)
class Noise:
    """What a plan takes."""

    cohort: float
    multiplier: float  # z
    number: float  # deviation on each number of the mean
    whole: float  # length of all of it, in clips


def central(plan: Plan, cohort: float | None = None) -> Noise:
    """The server adds it, and users are drawn by secret coins."""
    cohort = cohort or plan.cohort
    share = cohort / plan.population
    z = noise_for(plan.epsilon, plan.delta, share, plan.rounds, plan.accountant)
    return _noise(plan, cohort, z, z / cohort)


def distributed(plan: Plan) -> Noise:
    """Every user adds a share of it, and nobody leaves: then there is the most of it."""
    z = noise_for(plan.epsilon, plan.delta, 1.0, _times(plan), plan.accountant)
    more = math.sqrt(1 / (plan.threshold - plan.colluding))
    return _noise(plan, plan.cohort, z, z * more / plan.cohort)


def local(plan: Plan) -> Noise:
    """Every user adds it. Whatever one sends in the place of what: updates are two clips apart, so
    z is twice as large.
    """
    z = 2 * noise_for(plan.epsilon, plan.delta, 1.0, _times(plan), plan.accountant)
    return _noise(plan, plan.cohort, z, z / math.sqrt(plan.cohort))


def _times(plan: Plan) -> int:
    """Against a server that knows the cohort a user pays for the rounds in which it is asked: a
    share of them, rounded up.
    """
    return max(1, math.ceil(plan.rounds * plan.share))


def _noise(plan: Plan, cohort: float, z: float, on_the_mean: float) -> Noise:
    return Noise(cohort, z, on_the_mean * plan.clip, on_the_mean * math.sqrt(plan.parameters))


def table(plan: Plan) -> list[list[str]]:
    """The cohort that was asked for, others beside it, and noise that users add."""
    cohorts = [plan.cohort * factor for factor in FACTORS]
    rows = [
        [f"the server, cohorts of {noise.cohort:,.0f}", *_cells(noise)]
        for noise in (central(plan, c) for c in cohorts if 1 <= c <= plan.population)
    ]
    crowd = f"cohorts of {plan.cohort:,.0f}"
    return [
        *rows,
        [f"every user a share in secure sums, {crowd}", *_cells(distributed(plan))],
        [f"every user, {crowd}", *_cells(local(plan))],
    ]


def _cells(noise: Noise) -> list[str]:
    return [f"{noise.multiplier:.4g}", f"{noise.number:.3g}", f"{noise.whole:.3g}"]


HEADS = ["who adds noise", "z", "on each number", "against the longest update"]
