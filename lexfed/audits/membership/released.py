"""Membership in the released model: is a text told by the model alone, with no message of any
client?

The configuration is trained as it is, all of its rounds, by `audit.shadows` + 2 halves of its
clients (see `shadows`). Each of these models is attacked in turn; beside what is found stand how
useful the model is, and what its epsilon allows.
"""

import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from lexfed.audits import score
from lexfed.audits.membership.lira import dp_limit
from lexfed.audits.membership.shadows import SCORES, ShadowStudy, shadow_study
from lexfed.audits.scene import Figures, Findings, timed
from lexfed.audits.score import Cell
from lexfed.core.seeds import Seed, derive, root
from lexfed.experiment.assembly import Assembly
from lexfed.runtime.simulation import simulate, site_of
from lexfed.runtime.store import Store

FPR = 0.01  # where the limit is told


def membership(about: Mapping[str, Any], assembly: Assembly) -> Mapping[tuple[Any, ...], Cell]:
    """A cell for each attack, with figures of every target; LiRA's seconds are those of its shadows
    too.
    """
    findings = Findings(about, assembly.config.seed)
    seed = derive(root(assembly.config.seed), "audit", "membership")
    started = time.perf_counter()
    study = studied(assembly, seed)
    trained = time.perf_counter() - started
    for attack in SCORES:
        cell = findings.cell(
            attack, "the released model" if attack == "threshold" else "shadow models"
        )
        cell.seconds += 0.0 if attack == "threshold" else trained
        for target in range(len(study.phi)):
            timed(cell, partial(_figures, study, attack, target, study.matched(target, seed)))
    return findings.cells


def studied(assembly: Assembly, seed: Seed) -> ShadowStudy:
    """The study of a configuration, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        return shadow_study(
            assembly, seed, lambda some: simulate(site_of(some, Store(Path(folder))))
        )


def limit(study: ShadowStudy) -> float | None:
    """The most that any attack finds at 1 % of false accusations; None: nothing is promised."""
    return (
        None
        if study.epsilon is None or study.delta is None
        else dp_limit(study.epsilon, study.delta, FPR)
    )


def _figures(study: ShadowStudy, attack: str, target: int, counted: Tensor) -> Figures:
    scores, inside = SCORES[attack](study, target), study.inside[target]
    found = score.membership(scores[inside & counted], scores[~inside & counted])
    return {
        **found,
        "accuracy": float(study.accuracy[target]),
        "epsilon": study.epsilon,
        "dp_limit": limit(study),
    }
