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
from lexfed.privacy import accounting
from lexfed.privacy.accounting import Gaussian, Ledger, Pure, Release, SampledGaussian
from lexfed.site.policy import Policy, RefusedError
from lexfed.wire import Verb


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
        except FileNotFoundError:
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


def charged(spent: Spent, policy: Policy, assembly: Assembly, verb: Verb, where: str) -> Spent:
    """With one answer more; refused, if that is more than the site grants. `where`: the
    federation.
    """
    if spent.exchanges >= policy.exchanges:
        raise RefusedError(
            f"this site has answered {spent.exchanges:,} requests, and no more are granted "
            "(policy.exchanges)"
        )
    after = replace(spent, exchanges=spent.exchanges + 1)
    releases = _releases(assembly, verb)
    if any(isinstance(release.event, Pure) for release in releases):
        token = f"{where} {verb.name}"
        if token in spent.once:
            return after
        after = replace(after, once=(*after.once, token))
    ledger = spent.ledger
    for release in releases:
        ledger = accounting.charge(ledger, release)
    if releases and policy.epsilon is not None:
        total = accounting.epsilon(ledger, "user", policy.delta)
        if total > policy.epsilon:
            raise RefusedError(
                f"one more exchange would cost an epsilon of {total:.3g}, and this site grants "
                f"{policy.epsilon:g} (policy.epsilon)"
            )
    return replace(after, ledger=ledger)


def weighed(spent: Spent, policy: Policy, size: int) -> Spent:
    """With the bytes of an answer."""
    if spent.bytes + size > policy.bytes:
        raise RefusedError(f"this site sends no more than {policy.bytes:,} bytes (policy.bytes)")
    return replace(spent, bytes=spent.bytes + size)


def _releases(assembly: Assembly, verb: Verb) -> list[Release]:
    """What an answer to this verb tells, by the federation's own plan. Of a secure sum, the masked
    answer is what is paid for.
    """
    said = _base(assembly, verb)
    if said is None or said.kind == "figures" or not said.charged:
        return []
    plan = [replace(r, count=1, group="", deployed=None) for r in assembly.planned()]
    if said.moves:
        rounds = [r for r in plan if not isinstance(r.event, Pure)][:1]
        return [replace(r, event=_without_a_secret_cohort(r)) for r in rounds]
    return [release for release in plan if isinstance(release.event, Pure)]


MASKED = "-masked"


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
