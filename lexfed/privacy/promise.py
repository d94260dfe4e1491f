"""An epsilon in words: whom it holds against, for what unit, between which neighbours, and what it
counts on.
"""

import math
from dataclasses import dataclass
from typing import Literal

from lexfed.core.errors import ConfigError
from lexfed.privacy import accounting
from lexfed.privacy.accounting import Ledger
from lexfed.privacy.gaussian import GaussianMechanism, Privacy
from lexfed.privacy.mechanism import UNPAID, Account, Mechanism, NoPrivacy

Sampling = Literal["fixed", "poisson", "everyone"]

ADVERSARY = {
    "central": "who sees the released models; the server is trusted with each clipped update",
    "local": "everybody, the server included",
}


@dataclass(frozen=True)
class Promise:
    mechanism: GaussianMechanism
    sampling: Sampling

    @property
    def delta(self) -> float:
        return self.mechanism.options.delta

    def epsilons(self, ledger: Ledger) -> tuple[float | None, float | None]:
        """What this run spent, and what its deployment would have; None: no noise was added,
        nothing is promised.
        """
        if not any(release.unit == "user" for release in ledger):
            return None, None
        this_run = self._epsilon(ledger)
        deployed = self.mechanism.deployment(ledger)
        return this_run, self._epsilon(deployed) if deployed != ledger else this_run

    def _epsilon(self, ledger: Ledger) -> float | None:
        options = self.mechanism.options
        value = accounting.epsilon(ledger, "user", options.delta, options.accountant)
        return value if math.isfinite(value) else None

    def words(self, this_run: float | None, deployment: float | None) -> str:
        options = self.mechanism.options
        if this_run is None and deployment is None:
            return "Updates were clipped; no finite epsilon is promised."
        return f"This run: {self._sentence(this_run)}." + (
            f" A deployment with {options.population:,} users and cohorts of "
            f"{options.noise_cohort:,.0f}: "
            f"{self._sentence(deployment)}."
            if options.noise_cohort is not None
            else ""
        )

    def _sentence(self, epsilon: float | None) -> str:
        options = self.mechanism.options
        value = "no finite epsilon" if epsilon is None else f"epsilon {epsilon:.3g}"
        if epsilon is None or epsilon > accounting.LARGE:  # whatever else could be said of it
            return f"{value}, which promises nothing"
        relation = (
            "one user added or removed"
            if options.placement == "central"
            else "any two users' texts"
        )
        secret = {
            "poisson": "counts on the cohort staying secret",
            "everyone": "everyone takes part, no secret cohort is needed",
            "fixed": "counts on no secret cohort",
        }[self.sampling if options.placement == "central" else "fixed"]
        return (
            f"{value} at delta {options.delta:g} ({options.accountant.upper()}), unit: a user; "
            f"neighbours: {relation}; "
            f"against: {ADVERSARY[options.placement]}; {secret}"
        )


def build(
    options: Privacy, rounds: int, sampling: Sampling
) -> tuple[Mechanism, Account, Promise | None]:
    """The mechanism of a configuration, who pays for it, and what it promises."""
    if options.placement == "none":
        return NoPrivacy(), UNPAID, None
    if options.placement == "central" and sampling == "fixed":
        raise ConfigError(
            "privacy.placement = 'central' is accounted for Poisson cohorts: set cohort.sampling "
            "= 'poisson'"
        )
    mechanism = GaussianMechanism(options, rounds)
    return mechanism, mechanism, Promise(mechanism, sampling)
