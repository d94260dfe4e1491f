"""Noise that nobody adds alone: each client a share of it, inside a secure sum.

    client k:  x_k <- delta_k, clipped to S, in whole steps of the grid (towards zero)
               x_k + N_Z(0, s^2),    s = ceil(z S / (grid sqrt(h))),    h = t - c
    server:    opens the sum of t of the n or more, and no single one

t clients must stay, else nothing is opened: no step is taken, and it stays charged. c of them may
collude with the server: their noise hides nothing from it. The h = t - c others' noise makes up for
z S; of more there is more. So the epsilon is that of z against the server too, which knows the
cohort: no secret draw makes it smaller, and a user pays whenever it is asked. Neighbours: one
user's texts, or none in their place (that it takes part, the server knows).

A client sizes its share by its own `[privacy]` and `[secure]` tables and by the n that all clients
of the sum have signed. It refuses another clip, another grid, or a cohort of another size.

Why discrete Gaussians, not Skellam's: the sampler is there, exact, in integers, from the operating
system (1.4 million numbers take about a second of one core); the cost of their sum is that of
one (`SummedGaussian`), while Skellam's has terms of the 1-norm beside it.

The ring has 2^bits numbers. The grid is the finest with which n (S / grid + 16 s) stays below
2^(bits-2), so nothing is cut and nothing wraps: sixteen sigmas are passed with a chance of 2^-190.
If the grid became too coarse for the noise, the configuration is refused.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

import torch

from lexfed.core.errors import ConfigError, NotAgreedError
from lexfed.core.params import Params, Update, in_double
from lexfed.core.seeds import Seed
from lexfed.privacy import noise
from lexfed.privacy.accounting import Event, Release, SummedGaussian
from lexfed.privacy.gaussian import GaussianMechanism, norm
from lexfed.privacy.mechanism import Asked, deltas, dense, whole
from lexfed.wire import Message, Meta, under
from lexfed.wire.verbs import COHORT

LEAST_STEPS = 1 << 10  # of a share's sigma: sums of coarser noise would show their grid
TAIL = 16  # sigmas that no number of the noise is ever away


class Crowd(Protocol):
    """What the `[secure]` table says of cohorts."""

    @property
    def sums(self) -> bool: ...
    @property
    def least(self) -> int: ...
    @property
    def bits(self) -> int: ...
    @property
    def threshold(self) -> float: ...
    @property
    def colluding(self) -> float: ...

    def stay(self, clients: int) -> int: ...
    def collude(self, clients: int) -> int: ...


@dataclass(frozen=True)
class Shares:
    """Among how many the noise is parted."""

    crowd: Crowd
    sizes: range  # of cohorts that may be
    usual: int  # clients of a cohort, in the mean

    def __post_init__(self) -> None:
        if not self.crowd.sums:
            raise ConfigError(
                "privacy.placement = 'distributed' adds noise inside a secure sum: set "
                "secure.sums = true"
            )
        if not self.sizes or self.sizes[0] < self.crowd.least:
            raise ConfigError(
                "no cohort is ever large enough for a secure sum: raise cohort.size, or lower "
                "secure.least"
            )
        alone = next((n for n in self.sizes if self.honest(n) < 1), None)
        if alone is not None:
            raise ConfigError(
                f"of {alone} clients {self.crowd.stay(alone)} must stay, and as many may collude: "
                "nobody's noise would be left; raise secure.threshold or lower secure.colluding"
            )

    def honest(self, clients: int) -> int:
        """h: clients whose noise hides something, in any sum that is opened."""
        return self.crowd.stay(clients) - self.crowd.collude(clients)

    @cached_property
    def most(self) -> int:
        return max(self.honest(n) for n in self.sizes)


def shares(
    crowd: Crowd,
    sampling: Literal["fixed", "poisson", "everyone"],
    size: int,
    users: int,
    groups: int = 1,
) -> Shares:
    usual = size if sampling != "everyone" else users // groups
    known = sampling == "fixed" or (sampling == "everyone" and groups == 1)
    sizes = range(usual, usual + 1) if known else range(crowd.least, users + 1)
    return Shares(crowd, sizes, usual)


@dataclass(frozen=True)
class DistributedGaussian(GaussianMechanism):
    shares: Shares = field(kw_only=True)

    def __post_init__(self) -> None:
        if not self._multiplier(1.0) > 0:
            raise ConfigError(
                "privacy.placement = 'distributed' needs privacy.noise above 0, or privacy.epsilon"
            )
        if self.share(self.shares.most) < LEAST_STEPS:
            raise ConfigError(
                f"numbers of {self.shares.crowd.bits} bits leave too few steps for the noise of "
                f"{self.shares.sizes[-1]:,} clients: set secure.bits = 64, or raise privacy.noise"
            )

    @cached_property
    def grid(self) -> float:
        """A power of two: the same for all cohorts."""
        clip, deviation = self.options.clip, self._multiplier(1.0) * self.options.clip
        finest = max(
            noise.grid_of(min(clip, deviation / math.sqrt(self.shares.most))),
            noise.grid_of(clip) * 2.0**-20,  # an update's numbers are exact in any case
        )
        room = 2.0 ** (self.shares.crowd.bits - 2) - 2 * TAIL * self.shares.sizes[-1]
        spreads = [(n, deviation / math.sqrt(self.shares.honest(n))) for n in self.shares.sizes]
        largest = max(n * (clip + TAIL * spread) for n, spread in spreads)
        widest = max(spread for _, spread in spreads)
        if room <= 0:
            return 2.0**99  # which is refused
        return max(finest, _power(largest / room), 2 * _power(widest / noise.MOST_STEPS))

    def share(self, honest: int) -> int:
        """s: the sigma of a client's noise, in steps, where so many others' is sure to be there."""
        deviation = self._multiplier(1.0) * self.options.clip
        return math.ceil(deviation / (self.grid * math.sqrt(honest)))

    # --- the client's half

    def tell(self, state: Params) -> Mapping[str, Meta]:
        return {"clip": self.options.clip, "grid": self.grid}

    def bound(
        self, delta: Update, examples: int, loss: float, message: Message, seed: Seed
    ) -> Update:
        """Rounded before the noise: what is not on its grid shows through it."""
        sigma = self.share(self.shares.honest(self._agreed(message)))
        steps = noise.in_steps(_clipped(whole(delta), self.options.clip), self.grid)
        more = noise.steps_of(steps, sigma, None if self.fresh else seed)
        return under("delta", {name: value + more[name] for name, value in steps.items()})

    def _agreed(self, message: Message) -> int:
        """The size of the cohort; refused, if anything differs from this client's own tables."""
        told = {name: message.meta.get(name) for name in self.tell({})}
        clients = message.meta.get(COHORT)
        if told != self.tell({}) or not isinstance(clients, int):
            raise NotAgreedError("a share of noise is for this clip and grid, and for secure sums")
        if clients not in self.shares.sizes:
            raise NotAgreedError(f"no cohort has {clients} clients")
        return clients

    # --- the server's half

    def release(
        self, total: Update, asked: Asked, state: Params, seed: Seed
    ) -> tuple[Update, Params]:
        """All noise is in the sum. A sum that was not opened moves nothing."""
        steps = {name: dense(value).double() for name, value in deltas(total).items()}
        return {
            name: (value * self.grid / asked.expected).float() for name, value in steps.items()
        }, state

    @property
    def counts_on(self) -> str:
        crowd, n = self.shares.crowd, self.shares.usual
        colluders = crowd.collude(n)
        clients = "colluding client" if colluders == 1 else "colluding clients"
        others = ", and of other cohorts in proportion" if len(self.shares.sizes) > 1 else ""
        return (
            f"the server and up to {colluders} {clients}, as long as {crowd.stay(n)} of {n} stay"
            f"{others} (of fewer nothing is opened)"
        )

    @property
    def what(self) -> str:
        """In the ledger: what other thresholds released is another release."""
        crowd = self.shares.crowd
        return (
            "a round of training: a secure sum of clipped updates, each with its share of the "
            f"noise ({crowd.threshold:.4g} of a cohort must stay, {crowd.colluding:.4g} may "
            "collude)"
        )

    def _release(self, asked: Asked) -> Release:
        return Release(
            "user", self._event(asked), group=self.group, what=self.what, against="server"
        )

    def _event(self, asked: Asked) -> Event:
        """The same for every cohort: parts as many, and as small, as they may be."""
        parts, steps = self.shares.sizes[-1], self.share(self.shares.most)
        return SummedGaussian(self._multiplier(1.0), parts, steps)


def _clipped(delta: Params, clip: float) -> Params:
    """In double, and a hair shorter: the length itself was computed."""
    length = norm(delta)
    if not (math.isfinite(length) and length > 0):  # training exploded: say nothing
        return {name: torch.zeros_like(value) for name, value in delta.items()}
    factor = min(1.0, clip * (1 - 2.0**-40) / length)
    return {name: in_double(value) * factor for name, value in delta.items()}


def _power(number: float) -> float:
    """The next power of two."""
    return 2.0 ** math.ceil(math.log2(number))
