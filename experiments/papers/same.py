"""Are two runs of one row the same?

On the same processor and build of torch every figure and every number of the model must be the
same. On another one the last bits of a sum may differ: there figures are compared to five digits,
the model is not, and whoever asks is told.
"""

import math
from collections.abc import Mapping
from typing import Any

# from run to run, by nature; and the list of all figures that are the experimenter's alone
MOVES = ("seconds", "device", "made", "experimenter")
DIGITS = 5


def differences(kept: Mapping[str, Any], again: Mapping[str, Any]) -> list[str]:
    """As far as they may not differ. A figure that nobody knew of then is none."""
    return _differing(kept, again, exact=same_machine(kept, again))


def _differing(kept: Mapping[str, Any], again: Mapping[str, Any], exact: bool) -> list[str]:
    names = sorted(kept.keys() - set(MOVES))
    found = [name for name in names if not same(kept.get(name), again.get(name), exact)]
    models = [run.get("made", {}).get("model") for run in (kept, again)]
    if exact and (None in models or models[0] != models[1]):
        found.append("the model")
    return found


def same_machine(kept: Mapping[str, Any], again: Mapping[str, Any]) -> bool:
    """As far as is known: the oldest runs did not say what they ran on."""
    then, now = kept.get("made", {}), again.get("made", {})
    return all(key in then and then[key] == now.get(key) for key in ("torch", "cpu"))


def same(one: Any, other: Any, exact: bool) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[k], other[k], exact) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(same(a, b, exact) for a, b in pairs)
    if not exact and isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=10.0**-DIGITS)
    return bool(one == other)


def likeness(kept: Mapping[str, Any], again: Mapping[str, Any]) -> str:
    if not _differing(kept, again, exact=True):
        return "bit for bit"
    if differ := differences(kept, again):
        return f"differs in {', '.join(differ)}"
    return f"to {DIGITS} digits (not known to be made by the same processor and torch)"
