"""How much noise a budget asks for, and how many releases it still allows.

    noise_for:      the least z such that T releases of a sampled Gaussian cost epsilon at most,
                    at this delta
    rounds_within:  the most n such that the ledger and n releases more cost the budget at most

Both ask the ledger's own accountant, so a run that was calibrated to epsilon is later told the same
epsilon. One answer of PLD takes seconds; so the search starts at the answer of RDP, goes by secants
of log epsilon, and the noise found is kept in the user's cache folder. Every figure that is
returned was itself asked for and held: none is interpolated.
"""

import json
import math
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from lexfed.core.errors import PrivacyError
from lexfed.core.files import write_atomically
from lexfed.privacy.accounting import (
    Event,
    Gaussian,
    Ledger,
    Release,
    SampledGaussian,
    Unit,
    charge,
    epsilon,
)

Accountant = Literal["pld", "rdp"]
MOST_ROUNDS = 10_000_000
LEAST_NOISE, MOST_NOISE = 1e-3, 1e6
# noise multipliers have five digits: 1.0000, 1.0001, ... 9.9999, so many in a decade
DECADE = 90_000


def noise_for(
    epsilon: float, delta: float, probability: float, rounds: int, accountant: Accountant = "pld"
) -> float:
    """The smallest noise multiplier, of five digits, with which so many rounds cost at most epsilon
    (add or remove one).
    """
    if not (0 < epsilon < math.inf and rounds > 0):
        raise PrivacyError(
            f"{rounds} rounds within an epsilon of {epsilon:g} can't be meant: both are above 0 "
            "and finite"
        )
    _require_delta(delta)
    _event(1.0, probability)  # refuses a probability that is none
    return _kept_noise(float(epsilon), float(delta), float(probability), rounds, accountant)


def rounds_within(
    budget: float,
    delta: float,
    ledger: Ledger,
    unit: Unit,
    event: Event,
    accountant: Accountant = "pld",
) -> int:
    """How many more of these releases fit on top of the ledger; ten million if there is no end to
    them.
    """
    if not 0 < budget < math.inf:
        raise PrivacyError(f"a budget is an epsilon above 0 and finite, not {budget:g}")
    _require_delta(delta)
    return _most_rounds(budget, delta, ledger, unit, event, accountant)


@cache
def _most_rounds(
    budget: float, delta: float, ledger: Ledger, unit: Unit, event: Event, accountant: Accountant
) -> int:
    def cost(less: int) -> float:  # falls as `less` rises to 0
        return epsilon(_on_top(ledger, unit, event, -less), unit, delta, accountant)

    start = 1 if accountant == "rdp" else _most_rounds(budget, delta, ledger, unit, event, "rdp")
    found = _least(cost, budget, -MOST_ROUNDS, 0, -start, step=max(1, start))
    return 0 if found is None else -found


def _require_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise PrivacyError(f"a delta lies between 0 and 1, not at {delta:g}")


def _event(noise: float, probability: float) -> Event:
    return Gaussian(noise) if probability == 1 else SampledGaussian(noise, probability)


def _on_top(ledger: Ledger, unit: Unit, event: Event, count: int) -> Ledger:
    """What `count` charges would leave."""
    if count == 0:
        return ledger
    return charge(ledger, Release(unit, event, count))


def _search_noise(
    target: float, delta: float, probability: float, rounds: int, accountant: Accountant
) -> float | None:
    """None if no noise is enough: RDP has a least epsilon that it can show."""

    def cost(place: int) -> float:
        return epsilon(
            (Release("user", _event(_noise_at(place), probability), rounds),),
            "user",
            delta,
            accountant,
        )

    start = 1.0
    if accountant == "pld":
        # which takes the longer the less noise there is: never start below the answer
        start = _search_noise(target, delta, probability, rounds, "rdp") or MOST_NOISE
    place = _place_of(start)
    step = place - _place_of(0.88 * start)  # what PLD saves is about a tenth
    found = _least(cost, target, _place_of(LEAST_NOISE), _place_of(MOST_NOISE), place, step)
    return None if found is None else _noise_at(found)


def _noise_at(place: int) -> float:
    """All numbers of five digits in their order; place 0 is 1."""
    decade, digits = divmod(place, DECADE)
    return float(f"{10_000 + digits}e{decade - 4}")


def _place_of(noise: float) -> int:
    digits, exponent = f"{noise:.4e}".split("e")
    return int(exponent) * DECADE + round(float(digits) * 10_000) - 10_000


def _least(
    cost: Callable[[int], float], target: float, low: int, high: int, start: int, step: int
) -> int | None:
    """The least place in low..high whose cost is at most the target; the cost falls with the
    place.
    """
    good, bad = high + 1, low - 1  # at most the target from `good` on, more than it up to `bad`
    seen: list[tuple[int, float]] = []
    place = start
    while low <= place <= high:
        # 0 and infinity are far off, no more
        cut = math.log(min(max(cost(place) / target, 1e-6), 1e6))
        seen.append((place, cut))
        good, bad = (place, bad) if cut <= 0 else (good, place)
        if good - bad == 1:
            break
        if good > high:
            place = min(place + step * 4 ** (len(seen) - 1), high)
        elif bad < low:
            place = max(place - step * 4 ** (len(seen) - 1), low)
        else:
            place = min(max(_guess(seen, good, bad), bad + 1), good - 1)
    return good if good <= high else None


def _guess(seen: list[tuple[int, float]], good: int, bad: int) -> int:
    """Where the line through the last two points crosses; the middle after a dozen, so that the
    search must end.
    """
    (x, f), (y, g) = seen[-2:]
    if f == g or len(seen) > 12:
        return (good + bad) // 2
    return math.ceil(y - g * (y - x) / (g - f))


# --- what was found, kept -------------------------------------------------------------------------


@cache
def _kept_noise(
    target: float, delta: float, probability: float, rounds: int, accountant: Accountant
) -> float:
    key = f"{accountant} {version('dp-accounting')} {target!r} {delta!r} {probability!r} {rounds}"
    kept = _read_kept().get(key)
    if kept is not None:
        return kept
    noise = _search_noise(target, delta, probability, rounds, accountant)
    if noise is None:
        raise PrivacyError(
            f"no noise brings {rounds} rounds to an epsilon of {target:g} at a delta of {delta:g}"
        )
    _keep(key, noise)
    return noise


def _file() -> Path:
    return (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lexfed" / "noise.json"
    )


def _digest(kept: dict[str, float]) -> str:
    return blake2b(json.dumps(kept, sort_keys=True).encode(), digest_size=16).hexdigest()


def _read_kept() -> dict[str, float]:
    """Empty if anything about the file is wrong. The digest is there because one wrong digit would
    be too little noise.
    """
    with suppress(OSError, RuntimeError, ValueError, KeyError, TypeError):
        content = json.loads(_file().read_text())
        kept: dict[str, float] = content["noise"]
        if content["digest"] == _digest(kept):
            return kept
    return {}


def _keep(key: str, noise: float) -> None:
    """Read again just before: what another process kept meanwhile stays. A folder that can't be
    written costs time only.
    """
    with suppress(OSError, RuntimeError):
        kept = {**_read_kept(), key: noise}
        _file().parent.mkdir(parents=True, exist_ok=True)
        write_atomically(
            _file(), json.dumps({"digest": _digest(kept), "noise": kept}, indent=1).encode()
        )
