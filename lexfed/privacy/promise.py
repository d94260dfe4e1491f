"""An epsilon in words: whom it holds against, for what unit, between which neighbours, what it
counts on, and what takes it away.

A promise knows what taints it. A word list or tokenizer that was made of the users' own texts,
rounds that were released without noise (before a fork, say), a question to clients that nobody
pays for: then there is no epsilon to print, and the reasons stand in its place. The unit is a user
where each client is one, else a client, whose texts are taken as they were parted.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from lexfed.core.errors import ConfigError
from lexfed.privacy import accounting
from lexfed.privacy.accounting import Against, Bare, Ledger, Release
from lexfed.privacy.distributed import DistributedGaussian, Shares
from lexfed.privacy.gaussian import GaussianMechanism, Privacy
from lexfed.privacy.mechanism import UNPAID, WITHOUT_NOISE, Account, Mechanism, NoPrivacy

Sampling = Literal["fixed", "poisson", "everyone"]
Secrets = Literal["seed", "system"]

NOTHING = (
    "Nothing is promised to those whose texts the model is trained on: it is trained without "
    "noise, and may give away what they wrote. The key privacy.epsilon asks for a promise "
    "(differential privacy); `lexfed privacy plan` says what noise it takes."
)
ADVERSARY: dict[Against, str] = {
    "public": "who sees the released models; the server is trusted with each clipped update",
    "everybody": "everybody, the server included",
}  # "server": the mechanism knows who must stay, and who may collude
NEIGHBOURS: dict[Against, str] = {
    "public": "one {unit} added or removed",
    "server": "one {unit}'s texts, or none in their place",
    "everybody": "any two {unit}s' texts",
}


@dataclass(frozen=True)
class Statement:
    """What is promised after some releases, as summary.json has it."""

    holds: bool
    # of a simulation that carries a deployment's noise, often the deployment alone
    holds_for: Literal["this run", "deployment"] | None
    against: str | None
    sentence: str
    taints: tuple[str, ...]  # why nothing is promised
    notes: tuple[str, ...]  # what else must be true for it to hold
    epsilon_this_run: float | None
    epsilon_deployment: float | None
    delta: float

    def to_json(self) -> dict[str, Any]:
        figures = ("epsilon_this_run", "epsilon_deployment", "delta")  # they stand by themselves
        return {key: value for key, value in asdict(self).items() if key not in figures}


@dataclass(frozen=True)
class Promise:
    mechanism: GaussianMechanism
    sampling: Sampling
    taints: tuple[str, ...] = ()  # how the configuration shows users' texts without paying
    notes: tuple[str, ...] = ()  # what lexfed can't know, and must be true
    unit: Literal["user", "client"] = "user"  # what a client is

    @property
    def delta(self) -> float:
        return self.mechanism.options.delta

    def tainted(self, *reasons: str) -> "Promise":
        return replace(self, taints=(*self.taints, *reasons))

    def noting(self, *notes: str) -> "Promise":
        return replace(self, notes=(*self.notes, *notes))

    def statement(self, ledger: Ledger, forks: Sequence[str] = ()) -> Statement:
        """What is promised to users after these releases."""
        taints = (*self.taints, *dict.fromkeys(_bare(ledger)))
        this_run, deployment = (None, None) if taints else self.epsilons(ledger)
        against = self._against(ledger)
        holds = _small(deployment)
        return Statement(
            holds=holds,
            holds_for=("this run" if _small(this_run) else "deployment") if holds else None,
            against=self._adversary(against) if holds else None,
            sentence=self._words(this_run, deployment, against, taints),
            taints=taints,
            notes=self._notes(ledger, against, forks) if holds else (),
            epsilon_this_run=this_run,
            epsilon_deployment=deployment,
            delta=self.delta,
        )

    def epsilons(self, ledger: Ledger) -> tuple[float | None, float | None]:
        """What this run spent, and what its deployment would have; None: nothing is promised."""
        if self.taints or not any(release.unit == "user" for release in ledger):
            return None, None
        this_run = self._epsilon(ledger)
        deployed = self.mechanism.deployment(ledger)
        return this_run, self._epsilon(deployed) if deployed != ledger else this_run

    def _epsilon(self, ledger: Ledger) -> float | None:
        options = self.mechanism.options
        value = accounting.epsilon(ledger, "user", options.delta, options.accountant)
        return value if math.isfinite(value) else None

    def _against(self, ledger: Ledger) -> Against:
        """The weakest of all releases: what the server saw once, it has seen."""
        met = {release.against for release in ledger if release.unit == "user"}
        return next((against for against in get_args(Against) if against in met), "everybody")

    def _adversary(self, against: Against) -> str:
        return self.mechanism.counts_on if against == "server" else ADVERSARY[against]

    def _notes(self, ledger: Ledger, against: Against, forks: Sequence[str]) -> tuple[str, ...]:
        """What must be true; of sums that were made for other thresholds, which."""
        now = getattr(self.mechanism, "what", "")
        sums = dict.fromkeys(r.what for r in ledger if r.against == "server" and r.what != now)
        others = [f"some rounds counted on others to stay: {what}" for what in sums]
        honest = [CURIOUS] if against == "server" else []
        return (*self.notes, *honest, *others, *([FORKED] if forks else []))

    def _words(
        self,
        this_run: float | None,
        deployment: float | None,
        against: Against,
        taints: Sequence[str],
    ) -> str:
        options, groups = self.mechanism.options, self.mechanism.groups
        if taints:
            return f"No promise: {'; '.join(taints)}."
        if this_run is None and deployment is None:
            return "No promise: nothing was released with noise that bounds it."
        parted = f", in {groups} groups that have nobody in common" if groups > 1 else ""
        return f"This run: {self._sentence(this_run, against)}." + (
            f" A deployment with {options.population:,} {self.unit}s{parted} and cohorts of "
            f"{options.noise_cohort:,.0f}: "
            f"{self._sentence(deployment, against)}."
            if options.noise_cohort is not None
            else ""
        )

    def _sentence(self, epsilon: float | None, against: Against) -> str:
        options = self.mechanism.options
        value = "no finite epsilon" if epsilon is None else f"epsilon {epsilon:.3g}"
        if not _small(epsilon):  # whatever else could be said of it
            return f"{value}, which promises nothing"
        unit = self.unit
        what = "a user" if unit == "user" else "a client (its texts as they were parted beforehand)"
        relation = NEIGHBOURS[against].format(unit=unit)
        secret = {
            "poisson": "counts on the cohort staying secret",
            "everyone": "everyone takes part, no secret cohort is needed",
            "fixed": "counts on no secret cohort",
        }[self.sampling if against == "public" else "fixed"]
        return (
            f"{value} at delta {options.delta:g} ({options.accountant.upper()}), unit: {what}; "
            f"neighbours: {relation}; "
            f"against: {self._adversary(against)}; {secret}"
        )


def _small(epsilon: float | None) -> bool:
    return epsilon is not None and epsilon <= accounting.LARGE


CURIOUS = "the server does as the protocol says, whatever it would like to know"
FORKED = (
    "nothing is counted but this run: what the run that it was forked from, or another fork of it, "
    "released since is not in this account"
)


def _bare(ledger: Ledger) -> list[str]:
    users = [release for release in ledger if release.unit == "user"]
    return [
        f"{r.event.why} ({r.count} {'round' if r.count == 1 else 'rounds'})"
        for r in users
        if isinstance(r.event, Bare)
    ]


def build(
    options: Privacy,
    rounds: int,
    sampling: Sampling,
    secrets: Secrets = "seed",
    groups: int = 1,
    shares: Callable[[], Shares] | None = None,
) -> tuple[Mechanism, Account, Promise | None]:
    """The mechanism of a configuration, who pays for it, and what it promises."""
    if options.placement == "none":
        return NoPrivacy(), UNPAID, None
    if options.placement == "central" and sampling == "fixed":
        raise ConfigError(
            "privacy.placement = 'central' is accounted for Poisson cohorts: set cohort.sampling "
            "= 'poisson'"
        )
    if secrets == "system" and options.noise_cohort is not None:
        raise ConfigError(
            "privacy.noise_cohort is for a simulation that carries a deployment's noise: with "
            "secrets = 'system' this run is the deployment, leave it out"
        )
    about = (options, rounds, secrets == "system", groups)
    mechanism = GaussianMechanism(*about)
    if options.placement == "distributed":
        if shares is None:
            raise ConfigError("privacy.placement = 'distributed' needs secure sums")
        mechanism = DistributedGaussian(*about, shares=shares())
    return mechanism, mechanism, Promise(mechanism, sampling)


def inherited(ledger: Ledger, options: Privacy, rounds: int, done: int) -> Ledger:
    """A ledger as this lexfed writes it, of a run that an earlier one wrote with these options.

    Then rounds without noise left no entry, and entries did not say what their deployment paid.
    """
    if options.placement == "none":
        written = any(isinstance(release.event, Bare) for release in ledger)
        bare = Release("user", Bare(WITHOUT_NOISE), done, what=UNPAID.what)
        return ledger if written or not done else accounting.charge(ledger, bare)
    if options.noise_cohort is None or options.population is None:
        return ledger
    mechanism = GaussianMechanism(options, rounds)
    return tuple(r if r.deployed else mechanism.with_deployment(r) for r in ledger)
