"""User-level differential privacy: clip, add up, add noise, divide by the cohort that was expected.

    client k:  delta_k <- delta_k min(1, S / |delta_k|)       one user, weight 1, whatever its texts
    server:    (sum_k delta_k + N(0, (z S)^2)) / q n          central: the server adds the noise
    client k:  delta_k + N(0, (z S)^2)                        local: each client adds all of it

Each user joins a round by its own coin with probability q, and the sum is divided by the expected q
n, never by who came: an empty cohort releases noise, and is paid for. Adaptive clipping (Andrew et
al., NeurIPS 2021): with its update a client sends whether it had to clip (a centred bit), and S
follows the quantile; the noise is shared out so that both together cost what z says: z_delta =
(z^-2 - (2 sigma_b)^-2)^(-1/2).

`noise_cohort`: a small cohort here may carry the noise that a large one would leave on its mean.
Then z and its epsilon hold for that deployment alone, and what this run spent is counted apart,
with the smaller noise it really had.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from lexfed.core.errors import BudgetSpent, ConfigError
from lexfed.core.params import Params, Update
from lexfed.core.seeds import Seed, derive
from lexfed.privacy import accounting, noise
from lexfed.privacy.accounting import Event, Gaussian, Ledger, Pure, Release, SampledGaussian
from lexfed.privacy.calibration import noise_for, rounds_within
from lexfed.privacy.mechanism import Asked, deltas, dense
from lexfed.wire import Message, Meta, under

CLIP, ASKED = "clip", "asked"  # the mechanism's state


@dataclass(frozen=True)
class Privacy:
    """The `[privacy]` table."""

    # who adds noise: nobody, the server, every client
    placement: Literal["none", "central", "local"] = "none"
    clip: float = 0.5  # S: the longest update
    # z: its deviation on the sum, in clips; default: what `epsilon` over all rounds asks for
    noise: float | None = None
    epsilon: float | None = None  # the budget: training stops before it is overdrawn
    delta: float = 1e-6  # the chance that the promise fails
    # how epsilon is computed: pld is tighter, rdp quicker
    accountant: Literal["pld", "rdp"] = "pld"
    noise_cohort: float | None = None  # carry the noise of a deployment with this expected cohort
    population: int | None = None  # and this many users
    # adaptive clipping: the share of users that should not have to clip
    quantile: float | None = None
    clip_lr: float = 0.2  # adaptive clipping: how fast the clip follows
    # system: fresh, discretised, the ledger written first
    randomness: Literal["derived", "system"] = "derived"

    def __post_init__(self) -> None:
        if not self.clip > 0 or (self.noise is not None and self.noise < 0) or not self.clip_lr > 0:
            raise ConfigError(
                "privacy.clip and privacy.clip_lr must be above 0, privacy.noise at least 0"
            )
        if not 0 < self.delta < 1 or (self.epsilon is not None and not self.epsilon > 0):
            raise ConfigError("privacy.epsilon must be above 0, privacy.delta between 0 and 1")
        if self.quantile is not None and (not 0 < self.quantile < 1 or self.placement == "local"):
            raise ConfigError(
                "privacy.quantile is between 0 and 1, and for privacy.placement = 'central' alone"
            )
        if (self.noise_cohort is None) != (self.population is None):
            raise ConfigError(
                "privacy.noise_cohort and privacy.population describe one deployment: set both or "
                "none"
            )
        if (
            self.noise_cohort is not None
            and self.population is not None
            and not 0 < self.noise_cohort <= self.population
        ):
            raise ConfigError("privacy.noise_cohort must be above 0 and at most privacy.population")
        if self.noise_cohort is not None and self.placement == "local":
            raise ConfigError(
                "privacy.noise_cohort is for privacy.placement = 'central': local noise knows no "
                "cohort"
            )
        if self.placement != "none" and self.noise is None and self.epsilon is None:
            raise ConfigError(
                "privacy needs privacy.epsilon (noise is found for it), or privacy.noise"
            )


@dataclass(frozen=True)
class GaussianMechanism:
    options: Privacy
    rounds: int
    group: str = ""  # of users, where there are several that have nobody in common

    # --- the client's half

    def tell(self, state: Params) -> Mapping[str, Meta]:
        """The clip of this round, and the longest update the server takes; with the client's own
        noise any length may be.
        """
        clip = self._clip(state)
        return (
            {"clip": clip, "limit": clip * (1 + 1e-4)}
            if self.options.placement == "central"
            else {"clip": clip}
        )

    def bound(
        self, delta: Params, examples: int, loss: float, message: Message, seed: Seed
    ) -> Update:
        """Nothing but the clipped update leaves: a loss or a number of texts would be told without
        noise.
        """
        clip = float(message.meta["clip"])
        length = norm(delta)
        sound = math.isfinite(length) and length > 0
        factor = min(1.0, clip / length) if sound else 0.0  # training exploded: say nothing
        short: Params = {
            name: value * factor if factor else torch.zeros_like(value)
            for name, value in delta.items()
        }
        if self.options.placement == "local":
            return under(
                "delta", _plus(short, self._noise(short, self._multiplier(1.0) * clip, seed))
            )
        if self.options.randomness == "system":  # whole steps of the noise's grid, and never longer
            short = noise.towards_zero(short, noise.grid_of(self.options.clip))
        bit = torch.tensor(0.5 if length <= clip else -0.5)
        return {
            **under("delta", short),
            **({"unclipped": bit} if self.options.quantile is not None else {}),
        }

    # --- the server's half

    @property
    def ahead(self) -> bool:
        return self.options.randomness == "system"

    def of(self, group: str) -> "GaussianMechanism":
        return replace(self, group=group)

    def release(
        self, total: Update, asked: Asked, state: Params, seed: Seed
    ) -> tuple[Update, Params]:
        arrived = deltas(total)
        sums: Params = {
            name: dense(arrived[name]) if name in arrived else torch.zeros_like(x)
            for name, x in asked.model.items()
        }
        kept = {**state, CLIP: torch.tensor(self._clip(state), dtype=torch.float64)}
        if self.options.placement == "local":
            kept[ASKED] = self._asked(asked, state)
        else:
            # multiples of the grid
            exact = {name: value.double() for name, value in sums.items()} if self.ahead else sums
            sums = _plus(
                exact,
                self._noise(exact, self._deviation(asked) * self._clip(state), derive(seed, "sum")),
            )
            kept[CLIP] = self._next_clip(total, asked, state, derive(seed, "bits"))
        return {name: (value / asked.expected).float() for name, value in sums.items()}, kept

    def charge(self, ledger: Ledger, asked: Asked, state: Params) -> Ledger:
        """One exchange more; `BudgetSpent` if it does not fit. Local: only if it is the most that
        any user was asked.
        """
        event = self._event(asked)
        if event is None:
            return ledger
        if self.options.placement == "local" and self._most(asked, state) <= _count(
            ledger, self.group
        ):
            return ledger
        after = accounting.charge(ledger, "user", event, group=self.group)
        if self.options.epsilon is not None:
            *before, last = self.deployment(after)
            own = tuple(
                replace(release, group="")
                for release in before
                if _same_budget(release, self.group)
            )
            fits = rounds_within(
                self.options.epsilon,
                self.options.delta,
                own,
                "user",
                last.event,
                self.options.accountant,
            )
            if last.count > fits:
                raise BudgetSpent(
                    f"{fits:,} rounds are all that an epsilon of {self.options.epsilon:g} pays for"
                )
        return after

    def deployment(self, ledger: Ledger) -> Ledger:
        """What the same rounds would have cost in the deployment whose noise they carry."""
        cohort, population = self.options.noise_cohort, self.options.population
        if cohort is None or population is None:
            return ledger
        event = _sampled(self._multiplier(cohort / population), cohort / population)
        return tuple(
            replace(release, event=event) if _noisy(release) else release for release in ledger
        )

    def _event(self, asked: Asked) -> Event | None:
        """What one user pays for this exchange; None: there is no noise, and no promise."""
        share = min(1.0, asked.expected / asked.population)
        # whatever one sends in the place of what: twice the clip apart
        if self.options.placement == "local":
            multiplier = self._multiplier(1.0)
            return Gaussian(multiplier / 2) if multiplier else None
        multiplier = self._multiplier(share) * self._scale(asked)
        return _sampled(multiplier, share) if multiplier else None

    def _multiplier(self, share: float) -> float:
        """z, in the deployment if there is one."""
        options = self.options
        if options.noise is not None:
            return options.noise
        if options.epsilon is None:
            raise ConfigError("privacy needs privacy.epsilon or privacy.noise")
        if options.noise_cohort is not None and options.population is not None:
            share = options.noise_cohort / options.population
        found = noise_for(options.epsilon, options.delta, share, self.rounds, options.accountant)
        return 2 * found if options.placement == "local" else found

    def _scale(self, asked: Asked) -> float:
        """What of the noise a smaller cohort adds, so that the mean has as much of it as the
        deployment's.
        """
        return (
            1.0 if self.options.noise_cohort is None else asked.expected / self.options.noise_cohort
        )

    def _deviation(self, asked: Asked) -> float:
        """Of the noise on the sum of updates, in clips."""
        multiplier = self._multiplier(min(1.0, asked.expected / asked.population))
        if self.options.quantile is not None and multiplier:
            bits = self._bit_noise(asked)
            if 2 * bits <= multiplier:
                raise ConfigError(
                    "the cohort is too small for adaptive clipping: leave out privacy.quantile"
                )
            multiplier = (multiplier**-2 - (2 * bits) ** -2) ** -0.5
        return multiplier * self._scale(asked)

    def _bit_noise(self, asked: Asked) -> float:
        """sigma_b: a twentieth of the cohort, as its authors propose."""
        return (self.options.noise_cohort or asked.expected) / 20

    def _next_clip(self, total: Update, asked: Asked, state: Params, seed: Seed) -> Tensor:
        """S <- S exp(-lr (noisy share of users that did not clip - quantile))."""
        clip = torch.tensor(self._clip(state), dtype=torch.float64)
        if self.options.quantile is None:
            return clip
        bits = dense(total.get("unclipped", torch.zeros(()))).double()
        deviation = self._bit_noise(asked) * self._scale(asked) if self._deviation(asked) else 0.0
        noisy = bits + self._noise({"bits": bits}, deviation, seed)["bits"]
        share = noisy / asked.expected + 0.5
        return clip * torch.exp(-self.options.clip_lr * (share.clamp(0, 1) - self.options.quantile))

    def _asked(self, asked: Asked, state: Params) -> Tensor:
        """How often each client has been asked, with this time. A group's clients need not be the
        first ones.
        """
        known = state.get(ASKED, torch.zeros(asked.population, dtype=torch.int64))
        counts = torch.zeros(max(len(known), 1 + max(asked.cohort, default=0)), dtype=torch.int64)
        counts[: len(known)] = known
        counts[torch.tensor(list(asked.cohort), dtype=torch.int64)] += 1
        return counts

    def _most(self, asked: Asked, state: Params) -> int:
        """How often that client of this cohort was asked which was asked most."""
        counts = self._asked(asked, state)
        return max((int(counts[client]) for client in asked.cohort), default=0)

    def _clip(self, state: Params) -> float:
        return float(state[CLIP]) if CLIP in state else self.options.clip

    def _noise(self, like: Params, deviation: float, seed: Seed) -> Params:
        if deviation == 0:
            return {name: torch.zeros_like(value) for name, value in like.items()}
        if self.options.randomness == "system":
            return noise.fresh_noise(like, deviation, noise.grid_of(self.options.clip))
        return noise.gaussian(like, deviation, seed)


def norm(params: Params) -> float:
    """The length of all parameters as one vector."""
    return math.sqrt(sum(float(value.double().square().sum()) for value in params.values()))


def _plus(left: Params, right: Params) -> Params:
    return {name: value + right[name] for name, value in left.items()}


def _sampled(multiplier: float, share: float) -> Event:
    return Gaussian(multiplier) if share >= 1 else SampledGaussian(multiplier, share)


def _noisy(release: Release) -> bool:
    return release.unit == "user" and not isinstance(release.event, Pure)


def _same_budget(release: Release, group: str) -> bool:
    """Whether it is paid from the budget of this group's training. What users randomise themselves
    has its own.
    """
    return _noisy(release) and release.group in ("", group)


def _count(ledger: Ledger, group: str) -> int:
    return sum(
        release.count for release in ledger if release.unit == "user" and release.group == group
    )
