"""Guesses beside the truth: one row per attack, attacker and cell, as means over the uploads, with
an interval.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lexfed.core.seeds import derive, numpy_generator
from lexfed.metrics import leakage

# what a row of audit.json says; null where it has no meaning
KEYS = (
    "attack", "attacker", "method", "defence", "batch", "sentences", "optimizer", "precision",
    "recall", "f1", "ptlr", "recall_at_n", "recall_interval", "prior_recall_at_n", "rare_recall",
    "auc", "auc_interval", "tpr_at_1pct_fpr", "correlation", "uploads", "nothing_to_read", "seeds",
    "seconds", "tpr_at_01pct_fpr", "exposure", "accuracy", "epsilon", "dp_limit", "majority",
    "round", "rouge_1", "rouge_2", "rouge_l", "epsilon_measured", "not_run",
    "sees", "roc", "examples",
)  # fmt: skip
FIGURES = (
    "precision", "recall", "f1", "ptlr", "recall_at_n", "prior_recall_at_n", "rare_recall", "auc",
    "tpr_at_1pct_fpr", "tpr_at_01pct_fpr", "exposure", "accuracy", "epsilon", "dp_limit",
    "majority", "rouge_1", "rouge_2", "rouge_l", "epsilon_measured",
)  # fmt: skip
RATES = {"tpr_at_1pct_fpr": 0.01, "tpr_at_01pct_fpr": 0.001}
# shares of others accused at which a curve (ROC) says how many members are found
CURVE = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


@dataclass
class Cell:
    """What was found in the uploads of one kind by one attack and attacker."""

    about: Mapping[str, Any]
    figures: list[Mapping[str, float | None]] = field(default_factory=list)
    # a score and the truth, for a correlation
    pairs: list[tuple[float, float]] = field(default_factory=list)
    # clients' own texts beside what was read of them, as many as were asked for
    examples: list[Mapping[str, Any]] = field(default_factory=list)
    nothing: int = 0  # uploads in which there was nothing to read
    seeds: set[int] = field(default_factory=set)
    seconds: float = 0.0

    def merge(self, other: "Cell") -> None:
        """Add what was found with another seed."""
        self.figures += other.figures
        self.pairs += other.pairs
        self.examples += other.examples
        self.nothing += other.nothing
        self.seeds |= other.seeds
        self.seconds += other.seconds

    @property
    def is_empty(self) -> bool:
        """There was no upload to look at, and nobody said so."""
        return not self.figures and not self.nothing and "not_run" not in self.about

    def row(self) -> dict[str, Any]:
        values = {key: _mean(one.get(key) for one in self.figures) for key in FIGURES}
        row = {
            **self.about,
            **values,
            "recall_interval": interval([one.get("recall_at_n") for one in self.figures]),
            "auc_interval": interval([one.get("auc") for one in self.figures]),
            "correlation": _correlation(self.pairs),
            "uploads": len(self.figures) + self.nothing,
            "nothing_to_read": self.nothing,
            "seeds": sorted(self.seeds),
            "seconds": self.seconds / max(len(self.figures) + self.nothing, 1),
            "roc": self._curve(),
            "examples": self.examples or None,
        }
        return {key: row.get(key) for key in KEYS}

    def _curve(self) -> list[tuple[float, float]] | None:
        means = ((rate, _mean(one.get(_point(rate)) for one in self.figures)) for rate in CURVE)
        return [(rate, mean) for rate, mean in means if mean is not None] or None


def words(
    ranking: Tensor, truth: set[int], prior: Tensor, tokens: Sequence[str]
) -> dict[str, float | None]:
    leak = leakage.score_words(ranking, truth, prior, tokens)
    names = ("precision", "recall", "f1", "ptlr", "recall_at_n", "prior_recall_at_n", "rare_recall")
    return {name: getattr(leak, name) for name in names}


def membership(members: Tensor, others: Tensor) -> dict[str, float | None]:
    """By chance an AUC of 0.5, and as many members found as others accused. 0.1 % takes 10,000
    others, else it is null.
    """
    asked = {**RATES, **{_point(rate): rate for rate in CURVE}}
    rates = {name: leakage.tpr_at(rate, members, others) for name, rate in asked.items()}
    return {"auc": leakage.auc(members, others), **rates}


def _point(rate: float) -> str:
    return f"found at {rate:g}"


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def interval(values: Sequence[float | None], draws: int = 1000) -> list[float] | None:
    """95 %, by drawing uploads again; None: there are too few to say."""
    known = np.array([value for value in values if value is not None])
    if len(known) < 3:
        return None
    rng = numpy_generator(derive(b"", "bootstrap"))
    means = known[rng.integers(len(known), size=(draws, len(known)))].mean(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return [float(low), float(high)]


def _correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    if len(pairs) < 3:
        return None
    both = torch.tensor(pairs, dtype=torch.float64).T
    return float(torch.corrcoef(both)[0, 1]) if bool((both.std(1) > 0).all()) else None
