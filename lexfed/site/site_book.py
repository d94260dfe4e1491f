"""The site's own account: what it has answered, over its lifetime, and what that costs.

It is written before an answer leaves. The same request again is the same answer, and costs nothing
more. The epsilon is the site's own reckoning: no secret cohort is counted on, as the one who asks
knows whom it asked.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lexfed.core import formats
from lexfed.core.errors import CheckpointError, PrivacyError
from lexfed.core.files import OWNER_ONLY, write_atomically
from lexfed.experiment.assembly import Assembly
from lexfed.language.heavy_hitters import PAID_AS
from lexfed.privacy import accounting
from lexfed.privacy.accounting import Bare, Gaussian, Ledger, Pure, Release, SampledGaussian
from lexfed.site.policy import Policy, RefusedError
from lexfed.wire import Form, Verb


@dataclass(frozen=True)
class Spent:
    """What a site has given so far."""

    exchanges: int = 0
    bytes: int = 0
    ledger: Ledger = ()
    once: tuple[str, ...] = ()  # what is paid once in a federation, and was


@dataclass(frozen=True)
class Book:
    path: Path

    def read(self) -> Spent:
        try:
            kept = json.loads(self.path.read_text())
            formats.check(kept["format"], formats.LEDGER, str(self.path))
            ledger = accounting.from_json(kept["ledger"])
            return Spent(int(kept["exchanges"]), int(kept["bytes"]), ledger, tuple(kept["once"]))
        except FileNotFoundError as error:
            if any(self.path.parent.glob("federations/*/newest")):
                raise CheckpointError(
                    f"{self.path} is gone, and this site has answered: restore it from a copy"
                ) from error
            return Spent()
        except (OSError, ValueError, KeyError, TypeError, PrivacyError) as error:
            raise CheckpointError(
                f"{self.path} is damaged: without it nobody knows what this site has given; "
                "restore it from a copy"
            ) from error

    def write(self, spent: Spent) -> None:
        """It is on disk when this returns."""
        kept: Mapping[str, Any] = {
            "format": formats.LEDGER,
            **{"exchanges": spent.exchanges, "bytes": spent.bytes, "once": spent.once},
            "ledger": accounting.to_json(spent.ledger),
        }
        write_atomically(self.path, (json.dumps(kept, indent=1) + "\n").encode(), OWNER_ONLY)


def charged(spent: Spent, policy: Policy, assembly: Assembly, verb: Verb, clock: str) -> Spent:
    """With one answer more; refused, if that is more than the site grants. `clock`: the federation
    and its step. A list that the server itself makes noisy (votes) may take several exchanges at
    one clock; what the site randomises is paid for each time. Where only the site's own noise
    counts, what others would make noisy is not told at all.
    """
    if spent.exchanges >= policy.exchanges:
        raise RefusedError(
            f"this site has answered {spent.exchanges:,} requests, and no more are granted "
            "(policy.exchanges)"
        )
    after = replace(spent, exchanges=spent.exchanges + 1)
    release = _release(assembly, verb)
    if release is None or (isinstance(release.event, Bare) and release in spent.ledger):
        return after
    public = release.against == "public" and not isinstance(release.event, Bare)
    if public and policy.noise == "own":
        raise RefusedError(
            f"'{verb.name}' is answered without noise of this site's own, and no other counts "
            "(policy.noise)"
        )
    if public and isinstance(release.event, Pure):
        token = f"{clock} {verb.name}"
        if token in spent.once:
            return after
        after = replace(after, once=(*after.once, token))
    ledger = accounting.charge(spent.ledger, release)
    if policy.epsilon is not None:
        _check_epsilon(ledger, policy.epsilon, policy.delta)
    return replace(after, ledger=ledger)


def _check_epsilon(ledger: Ledger, granted: float, delta: float) -> None:
    if any(isinstance(release.event, Bare) for release in ledger):
        raise RefusedError(
            "this or an earlier answer is without noise, which no epsilon covers (policy.epsilon)"
        )
    total = accounting.epsilon(ledger, "user", delta)
    if total > granted:
        raise RefusedError(
            f"one more exchange would cost an epsilon of {total:.3g}, and this site grants "
            f"{granted:g} (policy.epsilon)"
        )


def weighed(spent: Spent, policy: Policy, size: int) -> Spent:
    """With the bytes of an answer."""
    if spent.bytes + size > policy.bytes:
        raise RefusedError(f"this site sends no more than {policy.bytes:,} bytes (policy.bytes)")
    return replace(spent, bytes=spent.bytes + size)


def _release(assembly: Assembly, verb: Verb) -> Release | None:
    """What an answer to this verb tells, by the federation's own plan; None: nothing. Of a secure
    sum, the masked answer is what is paid for. What the plan does not pay for is written down as
    what it is: bare.
    """
    said = _base(assembly, verb)
    if said is None or said.up == Form():
        return None
    plan = [replace(r, count=1, group="", deployed=None) for r in assembly.planned()]
    paid = [r for r in plan if isinstance(r.event, Pure) != said.moves and _pays(r, said)]
    if not paid or not said.charged or said.kind == "figures":
        return Release("user", Bare(WITHOUT_NOISE), what=f"answers to '{said.name}'")
    dearest = min(paid, key=_noise)
    return replace(dearest, unit="user", event=_without_a_secret_cohort(dearest))


def _pays(release: Release, verb: Verb) -> bool:
    """Whether this is what is paid for such an answer. Words are asked for in several ways, and the
    noise of one is not that of another.
    """
    if verb in PAID_AS:
        return release.what == PAID_AS[verb]
    return release.what not in PAID_AS.values()


def _noise(release: Release) -> float:
    """Less is dearer."""
    event = release.event
    if isinstance(event, Bare):
        return 0.0
    return 1 / event.epsilon if isinstance(event, Pure) else event.noise


MASKED = "-masked"
WITHOUT_NOISE = "an organisation answered without noise"


def _base(assembly: Assembly, verb: Verb) -> Verb | None:
    """The verb whose answer this is; None: an exchange that carries no answer."""
    if not verb.phase:
        return verb
    if not verb.name.endswith(MASKED):
        return None
    return assembly.method.verb(verb.name.removesuffix(MASKED))


def _without_a_secret_cohort(release: Release) -> Any:
    event = release.event
    return Gaussian(event.noise) if isinstance(event, SampledGaussian) else event
