"""User-level differential privacy: clip, add up, add noise, divide by the cohort that was expected.

    client k:  delta_k <- delta_k min(1, S / |delta_k|)       one user, weight 1, whatever its texts
    server:    (sum_k delta_k + N(0, (z S)^2)) / q n          central: the server adds the noise
    client k:  delta_k + N(0, (z S)^2)                        local: each client adds all of it
    client k:  delta_k + N(0, (z S)^2 / h)                    distributed: each a share of it

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

from lexfed.core.errors import BudgetSpent, ConfigError, NotAgreedError
from lexfed.core.params import Params, Update, squared_length
from lexfed.core.seeds import Seed, derive
from lexfed.privacy import accounting, noise
from lexfed.privacy.accounting import (
    Bare,
    Event,
    Gaussian,
    Ledger,
    Noisy,
    Release,
    SampledGaussian,
)
from lexfed.privacy.calibration import noise_for, rounds_within
from lexfed.privacy.mechanism import Asked, deltas, dense, whole
from lexfed.wire import Message, Meta, under

CLIP, ASKED = "clip", "asked"  # the mechanism's state
# what the ledger calls a release
ROUND = "a round of training: the mean of clipped updates"
LOCAL_ROUND = "a user's update, clipped, with the user's own noise"
FURTHEST = 100.0  # by how much the logarithm of an adaptive clip may grow, however many rounds


@dataclass(frozen=True)
class Privacy:
    """The `[privacy]` table."""

    # who adds noise: nobody, the server, every client for itself, or each client its share of it
    # within a secure sum
    placement: Literal["none", "central", "local", "distributed"] = "none"
    clip: float = 0.5  # S: the longest update
    # standard deviation of the noise on the sum of updates, in multiples of `clip`; default: what
    # `epsilon` over all rounds asks for
    noise: float | None = None
    epsilon: float | None = None  # the budget: training stops before it is overdrawn
    delta: float = 1e-6  # the chance that the promise fails
    # how epsilon is computed: pld is tighter, rdp quicker
    accountant: Literal["pld", "rdp"] = "pld"
    noise_cohort: float | None = None  # carry the noise of a deployment with this expected cohort
    # and this many users; where users are parted in halves, of both together
    population: int | None = None
    # adaptive clipping: the share of users that should not have to clip
    quantile: float | None = None
    clip_lr: float = 0.2  # adaptive clipping: how fast the clip follows

    def __post_init__(self) -> None:
        if not self.clip > 0 or (self.noise is not None and self.noise < 0) or not self.clip_lr > 0:
            raise ConfigError(
                "privacy.clip and privacy.clip_lr must be above 0, privacy.noise at least 0"
            )
        if not 0 < self.delta < 1 or (self.epsilon is not None and not self.epsilon > 0):
            raise ConfigError("privacy.epsilon must be above 0, privacy.delta between 0 and 1")
        central = self.placement in ("none", "central")
        if self.quantile is not None and not (0 < self.quantile < 1 and central):
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
        if self.noise_cohort is not None and not central:
            raise ConfigError(
                "privacy.noise_cohort is for privacy.placement = 'central': clients that add noise "
                "add that of their own cohort"
            )
        if self.placement != "none" and self.noise is None and self.epsilon is None:
            raise ConfigError(
                "privacy needs privacy.epsilon (noise is found for it), or privacy.noise"
            )


@dataclass(frozen=True)
class GaussianMechanism:
    options: Privacy
    rounds: int
    fresh: bool = (
        False  # noise from the operating system, on a grid, and paid for before it is used
    )
    groups: int = 1  # of users that have nobody in common
    group: str = ""  # the one whose rounds these are

    # --- the client's half

    def tell(self, state: Params) -> Mapping[str, Meta]:
        """The clip of this round, and the longest update the server takes; with the client's own
        noise any length may be. Fresh noise: the grid of which updates are whole steps.
        """
        clip = self._clip(state)
        return {
            "clip": clip,
            **({"limit": clip * (1 + 1e-4)} if self.options.placement == "central" else {}),
            **({"grid": noise.grid_of(clip)} if self.fresh else {}),
        }

    def bound(
        self, delta: Update, examples: int, loss: float, message: Message, seed: Seed
    ) -> Update:
        """Nothing but the clipped update leaves: a loss or a number of texts would be told without
        noise. A server may ask for a shorter one than this client's own table says, not for a
        longer one.
        """
        clip, moved = self._agreed_clip(message), whole(delta)
        length = norm(moved)
        sound = math.isfinite(length) and length > 0
        factor = min(1.0, clip / length) if sound else 0.0  # training exploded: say nothing
        short: Params = moved  # most are short enough
        if factor < 1:
            short = {
                name: value * factor if factor else torch.zeros_like(value)
                for name, value in moved.items()
            }
        grid = float(message.meta["grid"]) if self.fresh else None
        if grid is not None:  # before any noise: what is not on its grid shows through it
            short = noise.in_steps(short, grid)
        if self.options.placement == "local":
            deviation = self._multiplier(1.0) * clip
            return under("delta", _plus(short, self._noise(short, deviation, grid, seed)))
        bit = torch.tensor(0.5 if length <= clip else -0.5)
        return {
            **under("delta", short),
            **({"unclipped": bit} if self.options.quantile is not None else {}),
        }

    def _agreed_clip(self, message: Message) -> float:
        """The request's clip, as far as this client's own table allows it. An adaptive one starts
        there and follows bits that the client does not see: it can't have grown by more than its
        rule allows in all rounds, which is much where they are many.
        """
        options = self.options
        grown = 0.0
        if options.quantile is not None:  # by one round more: what is honest is not rounded away
            grown = options.clip_lr * options.quantile * (self.rounds + 1)
        # the own one first: what is no number is not below it
        clip = min(options.clip * math.exp(min(grown, FURTHEST)), float(message.meta["clip"]))
        if not clip > 0:  # a negative one would turn updates round, and make them longer
            raise NotAgreedError("a clip is above 0")
        return clip

    # --- the server's half

    @property
    def counts_on(self) -> str:
        """Against the server: whom noise in shares holds against. There is none here; an earlier
        part of the run may have had it.
        """
        return "the server and the clients that may collude with it, as the ledger says"

    @property
    def ahead(self) -> bool:
        return self.fresh

    def of(self, group: str) -> "GaussianMechanism":
        return replace(self, group=group)

    def release(
        self, total: Update, asked: Asked, state: Params, seed: Seed
    ) -> tuple[Update, Params]:
        arrived, clip = deltas(total), self._clip(state)
        grid = noise.grid_of(clip) if self.fresh else None
        sums: Params = {
            name: dense(arrived[name]) if name in arrived else _nothing(x, grid)
            for name, x in asked.model.items()
        }
        kept = {**state, CLIP: torch.tensor(clip, dtype=torch.float64)}
        if self.options.placement == "central":
            deviation = self._deviation(asked) * clip
            sums = _plus(sums, self._noise(sums, deviation, grid, derive(seed, "sum")))
            kept[CLIP] = self._next_clip(total, asked, state, derive(seed, "bits"))
        if grid is not None:  # the integers are all that is released: now they may be rounded
            sums = {name: value.double() * grid for name, value in sums.items()}
        return {name: (value / asked.expected).float() for name, value in sums.items()}, kept

    def charge(self, ledger: Ledger, asked: Asked, state: Params) -> tuple[Ledger, Params]:
        """One exchange more; `BudgetSpent` if it does not fit.

        Against a server that knows the cohort a user pays when it is asked, so what counts is how
        often that user was asked which was asked most. Under other noise each user's count begins
        again: too much rather than too little.
        """
        release = self._release(asked)
        if release.against != "public" and isinstance(release.event, Noisy):
            name = _counts_of(release, release.event)
            counts = _asked(asked, state.get(name))
            state = {**state, name: counts}
            most = max((int(counts[client]) for client in asked.cohort), default=0)
            if most <= sum(r.count for r in ledger if replace(r, count=1) == release):
                return ledger, state
        after = accounting.charge(ledger, release)
        self._check_budget(after)
        return after, state

    def _check_budget(self, ledger: Ledger) -> None:
        fits, before = self._fits(ledger)
        if ledger[-1].count > fits:
            raise BudgetSpent(
                f"{fits:,} rounds are all that an epsilon of {self.options.epsilon:g} pays for"
                + (" on top of what was spent before" if before else "")
            )

    def _fits(self, ledger: Ledger) -> tuple[int, bool]:
        """How often the last release can be paid for, and whether others came before it. A ledger
        that no epsilon covers any more has no budget to keep either.
        """
        options, bare = self.options, any(isinstance(r.event, Bare) for r in ledger)
        if options.epsilon is None or bare:
            return ledger[-1].count, False
        *before, last = self.deployment(ledger)
        own = tuple(replace(r, group="") for r in before if _same_budget(r, self.group))
        fits = rounds_within(
            options.epsilon, options.delta, own, "user", last.event, options.accountant
        )
        return fits, bool(own)

    def plan(self, ledger: Ledger, expected: float, population: int, rounds: int) -> Ledger:
        """As many rounds as there will be, or as the budget pays for; of local noise, at most."""
        if not rounds:
            return ledger
        release = replace(self.planned(expected, population), count=rounds)
        *before, last = accounting.charge(ledger, release)
        count = min(last.count, self._fits((*before, last))[0])
        return (*before, replace(last, count=count)) if count else tuple(before)

    def planned(self, expected: float, population: int) -> Release:
        """What a round with such a cohort will be charged."""
        return self._release(Asked((), expected, population, {}))

    def _release(self, asked: Asked) -> Release:
        """What one user pays for this exchange."""
        event, group = self._event(asked), self.group
        if event is None:
            why = "updates were clipped and averaged without noise"
            return Release("user", Bare(why), group=group, what=ROUND)
        if self.options.placement == "local":
            return Release("user", event, group=group, what=LOCAL_ROUND, against="everybody")
        return self.with_deployment(Release("user", event, group=group, what=ROUND))

    def deployment(self, ledger: Ledger) -> Ledger:
        """What the same rounds would have cost in the deployment whose noise they carry: as it was
        when each was made, whatever the configuration says now.
        """
        return tuple(
            release if release.deployed is None else replace(release, event=release.deployed)
            for release in ledger
        )

    def with_deployment(self, release: Release) -> Release:
        """The release, and what it would be in the deployment that this configuration speaks of."""
        cohort, population = self.options.noise_cohort, self.options.population
        if cohort is None or population is None or not _same_budget(release, release.group):
            return release
        share = self._deployed_share(cohort, population)
        return replace(release, deployed=_sampled(self._multiplier(share), share))

    def _deployed_share(self, cohort: float, population: int) -> float:
        """The chance of a user of the deployment to be in a cohort of its group."""
        return min(1.0, cohort * self.groups / population)

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
            share = self._deployed_share(options.noise_cohort, options.population)
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
        bits = dense(total.get("unclipped", torch.zeros(()))).cpu().double()
        deviation = self._bit_noise(asked) * self._scale(asked) if self._deviation(asked) else 0.0
        # bits are halves, so they are whole steps of any grid up to a half
        grid = min(0.5, noise.grid_of(deviation)) if self.fresh and deviation else None
        steps = bits if grid is None else bits / grid
        noisy = steps + self._noise({"bits": bits}, deviation, grid, seed)["bits"]
        share = noisy * (grid or 1.0) / asked.expected + 0.5
        return clip * torch.exp(-self.options.clip_lr * (share.clamp(0, 1) - self.options.quantile))

    def _clip(self, state: Params) -> float:
        return float(state[CLIP]) if CLIP in state else self.options.clip

    def _noise(self, like: Params, deviation: float, grid: float | None, seed: Seed) -> Params:
        """In steps of the grid, where there is one."""
        if deviation == 0:
            return {name: torch.zeros_like(value) for name, value in like.items()}
        if grid is not None:
            return noise.fresh_steps(like, deviation, grid)
        return noise.gaussian(like, deviation, seed)


def _nothing(like: Tensor, grid: float | None) -> Tensor:
    return torch.zeros_like(like, dtype=like.dtype if grid is None else torch.int64)


def _counts_of(release: Release, event: Noisy) -> str:
    """Under which name the mechanism's state counts who was asked for such a release."""
    kind = "" if release.against == "everybody" else f"{release.against}/"
    return f"{ASKED}/{kind}{event.noise!r}"


def _asked(asked: Asked, known: Tensor | None) -> Tensor:
    """How often each client has been asked, with this time. A group's clients need not be the first
    ones.
    """
    known = torch.zeros(asked.population, dtype=torch.int64) if known is None else known
    counts = torch.zeros(max(len(known), 1 + max(asked.cohort, default=0)), dtype=torch.int64)
    counts[: len(known)] = known
    counts[torch.tensor(list(asked.cohort), dtype=torch.int64)] += 1
    return counts


def norm(params: Params) -> float:
    """The length of all parameters as one vector, in whatever order they come."""
    return math.sqrt(math.fsum(squared_length(value) for value in params.values()))


def _plus(left: Params, right: Params) -> Params:
    return {name: value + right[name] for name, value in left.items()}


def _sampled(multiplier: float, share: float) -> Event:
    return Gaussian(multiplier) if share >= 1 else SampledGaussian(multiplier, share)


def _same_budget(release: Release, group: str) -> bool:
    """Whether it is paid from the budget of this group's training. What users randomise themselves
    has its own.
    """
    noisy = release.unit == "user" and isinstance(release.event, Noisy)
    return noisy and release.group in ("", group)
