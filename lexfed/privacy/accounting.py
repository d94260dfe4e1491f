"""The ledger: what was released about whom, and what it costs.

A mechanism writes down its noisy releases; an accountant reads them. The two are apart, so that the
same ledger can be read with a tighter accountant later. An epsilon counts for one unit (a user, a
document, an organisation) and against those who see what was released; neighbours differ by one
unit, added or removed.
"""

import logging
import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from lexfed.core.errors import PrivacyError

Unit = Literal["user", "document", "organisation"]


@dataclass(frozen=True)
class Gaussian:
    """A sum to which each unit adds a vector of norm at most 1, with noise of this deviation."""

    noise: float

    def __post_init__(self) -> None:
        if not self.noise > 0:
            raise PrivacyError(
                "a release without noise has no finite epsilon: raise the noise above 0"
            )


@dataclass(frozen=True)
class SampledGaussian:
    """The same, of a cohort that each unit joins by its own coin, heads with this probability, and
    that stays secret.
    """

    noise: float
    probability: float

    def __post_init__(self) -> None:
        Gaussian(self.noise)
        if not 0 < self.probability <= 1:
            raise PrivacyError(
                f"a sampling probability is above 0 and at most 1, not {self.probability:g}"
            )


@dataclass(frozen=True)
class SummedGaussian:
    """A sum of whole numbers to which each unit adds a vector of norm at most 1, and of whose noise
    several each drew a part: together of this deviation at least, whoever of them was there.

    A sum of n discrete Gaussians is none. It is near to one (Kairouz, Liu and Steinke, ICML 2021,
    Theorem on convolutions): with parts of s steps, s >= 1/2, the chances of every number are
    within e^tau of those of the one Gaussian,

        tau = 10 sum_(k = 1)^(n - 1) exp(-2 pi^2 s^2 k / (k + 1))

    So vectors of d numbers are within e^(d tau) of it, a release costs 2 d tau more than the
    Gaussian's, and its delta is e^(d tau) times as large. The cost is computed, not left out; from
    some four steps on it is nothing.
    """

    noise: float
    parts: int  # n, at most
    steps: int  # s, of the grid, at least
    numbers: int = 1 << 40  # d, at most: no model is larger

    def __post_init__(self) -> None:
        Gaussian(self.noise)
        if min(self.parts, self.steps, self.numbers) < 1:
            raise PrivacyError("noise is drawn in one part or more, each of one step or more")

    @property
    def apart(self) -> float:
        """d tau. All but its first term are at most exp(-4/3 pi^2 s^2)."""
        if self.parts == 1:
            return 0.0
        square = (math.pi * self.steps) ** 2
        terms = math.exp(-square) + (self.parts - 2) * math.exp(-4 / 3 * square)
        return 10 * self.numbers * terms


@dataclass(frozen=True)
class Pure:
    """An answer of which any two units' laws are within e^epsilon of each other: local
    randomisation.
    """

    epsilon: float

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise PrivacyError("a randomiser's epsilon must be above 0")


@dataclass(frozen=True)
class Bare:
    """Something of units that was released as it is. Nothing pays for it: no epsilon is finite."""

    why: str  # in words, for people


Noisy = Gaussian | SampledGaussian | SummedGaussian
Event = Noisy | Pure | Bare
KINDS: Mapping[str, type[Event]] = {
    "gaussian": Gaussian, "sampled_gaussian": SampledGaussian, "summed_gaussian": SummedGaussian,
    "pure": Pure, "bare": Bare,
}  # fmt: skip
WHOLE = ("parts", "steps", "numbers")  # of an event's fields
# from the weakest to the strongest
Against = Literal["public", "server", "everybody"]


@dataclass(frozen=True)
class Release:
    unit: Unit
    event: Event
    count: int = 1  # times in a row
    # of each, beside the event's: the chance that more was released than it says
    delta: float = 0.0
    # of units, where they are parted: what is released about one group costs the others nothing
    group: str = ""
    what: str = ""  # was released, in words
    # who learns no more than the event says: those who see what the server releases; the server
    # too, as far as it learns sums alone; or the server too, whatever it asks for
    against: Against = "public"
    # what the same release would be in the deployment whose noise it carries, as it was when it was
    # made
    deployed: Event | None = None


Ledger = tuple[Release, ...]


def charge(ledger: Ledger, release: Release) -> Ledger:
    """One release more. The same one again only counts: five thousand rounds are one entry."""
    last = ledger[-1] if ledger else None
    if last is not None and replace(last, count=release.count) == release:
        return (*ledger[:-1], replace(last, count=last.count + release.count))
    return (*ledger, release)


def lacks(ledger: Ledger, earlier: Ledger) -> bool:
    """Whether it holds less than an earlier one: a charge is never taken back. (In which words it
    was written down is another lexfed's.)
    """
    counts, before = _counts(ledger), _counts(earlier)
    return any(counts[release] < count for release, count in before.items())


def times(ledger: Ledger) -> int:
    """How many releases about users it was charged with."""
    return sum(release.count for release in ledger if release.unit == "user")


def _counts(ledger: Ledger) -> Counter[Release]:
    counts: Counter[Release] = Counter()
    for release in ledger:
        counts[replace(release, count=1, what="", deployed=None)] += release.count
    return counts


LARGE = 50.0  # an epsilon above it promises nothing, and PLD may take for ever to find it


def epsilon(
    ledger: Ledger, unit: Unit, delta: float, accountant: Literal["pld", "rdp"] = "pld"
) -> float:
    """The epsilon of all releases about this unit together, at this delta. `rdp` is faster and
    looser than `pld`.

    No unit is in two groups, so the dearest group is what anybody pays. Where RDP says more than
    50, its figure stands.
    """
    own = [release for release in ledger if release.unit == unit]
    groups = {release.group for release in own} or {""}
    return max(
        _dearest([r for r in own if r.group in ("", group)], delta, accountant) for group in groups
    )


def _dearest(own: Sequence[Release], delta: float, accountant: Literal["pld", "rdp"]) -> float:
    if any(isinstance(release.event, Bare) for release in own):
        return float("inf")
    rough = _composed(own, delta, "rdp")
    return rough if accountant == "rdp" or rough > LARGE else _composed(own, delta, "pld")


def _composed(own: Sequence[Release], delta: float, accountant: Literal["pld", "rdp"]) -> float:
    import dp_accounting  # a second and a half: only who asks for an epsilon waits
    from dp_accounting import pld, rdp

    # it tells of every order of Renyi's that it leaves out
    logging.getLogger("absl").setLevel(logging.ERROR)

    pure = sum(
        release.count * release.event.epsilon for release in own if isinstance(release.event, Pure)
    )
    noisy = [(release.event, release.count) for release in own if isinstance(release.event, Noisy)]
    apart = math.fsum(
        count * event.apart for event, count in noisy if isinstance(event, SummedGaussian)
    )
    left = delta - sum(release.count * release.delta for release in own)
    left *= math.exp(-apart) if apart < LARGE else 0.0
    if left <= 0 and own:
        return float("inf")
    if not noisy:
        return pure
    # whatever the accountant: add or remove one
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    total = {"pld": pld.PLDAccountant, "rdp": rdp.RdpAccountant}[accountant](
        neighboring_relation=relation
    )
    for event, count in noisy:
        noise = dp_accounting.GaussianDpEvent(event.noise)
        if isinstance(event, SampledGaussian):
            noise = dp_accounting.PoissonSampledDpEvent(event.probability, noise)
        total.compose(noise, count)
    return pure + 2 * apart + float(total.get_epsilon(left))


def gaussian_noise(epsilon: float, delta: float) -> float:
    """The deviation of a Gaussian that costs this epsilon at this delta; rounded up, so that no
    accountant finds more.
    """
    import dp_accounting

    return float(dp_accounting.get_sigma_gaussian(epsilon, delta)) * (1 + 1e-4)


def to_json(ledger: Ledger) -> list[dict[str, Any]]:
    """Plain numbers and names: a ledger is read back without running anything that it says."""
    return [
        {
            "unit": r.unit,
            **_event_to_json(r.event),
            "count": r.count,
            "delta": r.delta,
            **({"group": r.group} if r.group else {}),
            "what": r.what,
            "against": r.against,
            **({"deployed": _event_to_json(r.deployed)} if r.deployed is not None else {}),
        }
        for r in ledger
    ]


def _event_to_json(event: Event) -> dict[str, Any]:
    name = next(name for name, kind in KINDS.items() if type(event) is kind)
    return {"event": name, **vars(event)}


def from_json(entries: Sequence[Mapping[str, Any]]) -> Ledger:
    return tuple(_release(entry) for entry in entries)


def _release(entry: Mapping[str, Any]) -> Release:
    """One entry; an event that is not known is refused, not left out: what it cost would be
    missing.
    """
    try:
        fields = dict(entry)
        unit, count, delta = (fields.pop(key) for key in ("unit", "count", "delta"))
        words = {key: fields.pop(key) for key in ("group", "what", "against") if key in fields}
        deployed = fields.pop("deployed", None)
        release = Release(
            unit, _event(fields), count, float(delta), **words,
            deployed=None if deployed is None else _event(dict(deployed)),
        )  # fmt: skip
        good = (
            unit in get_args(Unit)
            and all(isinstance(word, str) for word in words.values())
            and release.against in get_args(Against)
            and type(count) is int
            and count > 0
            and 0 <= release.delta < 1
        )
    except (KeyError, TypeError, ValueError, PrivacyError) as error:
        raise PrivacyError(f"the ledger holds an entry that can't be read: {entry!r}") from error
    if not good:
        raise PrivacyError(f"the ledger holds an entry that can't be read: {entry!r}")
    return release


def _event(fields: dict[str, Any]) -> Event:
    kind = KINDS[fields.pop("event")]
    if kind is Bare:
        return Bare(**{key: str(value) for key, value in fields.items()})
    numbers = {k: operator.index(x) if k in WHOLE else float(x) for k, x in fields.items()}
    return kind(**numbers)  # type: ignore[arg-type]
