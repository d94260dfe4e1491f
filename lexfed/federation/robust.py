"""Robust aggregation: what a cohort says when some of its clients lie (`layers/malice.py`).

    delta_k  <-  (n_k delta_k) / n_k    one client, one vote:
                                        nobody can check the n_k that it claims
    trimmed mean:  of n values of a coordinate, without the ceil(share n)
                   largest and smallest                                   [1, definition 2]
    median:        the middle value of a coordinate; of two, their mean   [1, definition 1]
    norm bound:    the mean of delta_k min(1, M / |delta_k|)              [2]

[1] Yin et al., Byzantine-robust distributed learning, ICML 2018. [2] Sun et al., Can you really
backdoor federated learning?, 2019. A rule that cuts k values at either end withstands k liars;
norms only bound what a liar does in a round.

A word that few clients have looks like a lie. Its row moves at those who have it and rests at the
others, so a rule that cuts k does not move the row of a word that k clients or fewer hold; the
median wants half of the cohort. The norm bound keeps such rows. A median is no sum either: noise
that was made for a sum does not fit it, and a secure sum can't make it.

Differs from [1]: the number cut is rounded up, so that a client that drops out does not let a liar
in.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median as middle
from typing import Literal

import torch
from torch import Tensor

from lexfed.core.errors import ConfigError
from lexfed.core.params import Params, Update, add_all
from lexfed.privacy.mechanism import deltas
from lexfed.wire import Message, under, unpack

# From the cohort's weighted updates to one update that stands for their sum; nobody answered: an
# empty one.
Rule = Callable[[Iterable[Params]], Update]


@dataclass(frozen=True)
class Aggregation:
    """The `[aggregation]` table: how a cohort's updates become one."""

    # how a cohort's updates become one
    rule: Literal["mean", "trimmed_mean", "median", "norm_bound"] = "mean"
    trim: float = 0.1  # trimmed_mean: share that is cut at either end
    norm: float = 1.0  # norm_bound: how long one client's delta may be
    most_texts: int = 10_000  # texts that a client counts for at most; who claims more is not heard

    def __post_init__(self) -> None:
        if not 0 <= self.trim < 0.5:
            raise ConfigError(
                "aggregation.trim is cut at either end: at least 0 and below 0.5 (which is rule = "
                "'median')"
            )
        if not self.norm > 0:
            raise ConfigError("aggregation.norm must be above 0")
        if self.most_texts < 1:
            raise ConfigError("aggregation.most_texts must be at least 1")


def rule_of(options: Aggregation) -> Rule | None:
    """None is the mean, which is made of sums."""
    rules: Mapping[str, Rule] = {
        "trimmed_mean": trimmed_mean(options.trim),
        "median": median,
        "norm_bound": norm_bound(options.norm),
    }
    return rules.get(options.rule)


def dense_only(requests: Iterable[Message]) -> None:
    if any("rows" in request.meta for request in requests):
        raise ConfigError(
            "rows of a table are added up, they have no median: set aggregation.rule = 'mean'"
        )


def heard(reply: Message) -> Params | None:
    """A sound reply as the rules take it: dense, with a weight; None: its client held back."""
    update = {n: value for n, value in unpack(reply.arrays).items() if isinstance(value, Tensor)}
    return update if "weight" in update else None


# --- by coordinate --------------------------------------------------------------------------------

# coordinates that are sorted at a time: of all replies together, only so many are copied
_PIECE = 1 << 14


def trimmed_mean(share: float) -> Rule:
    def rule(updates: Iterable[Params]) -> Update:
        replies = list(updates)
        if not replies:
            return {}
        # 0.1 * 30 is a little more than 3
        cut = min(math.ceil(share * len(replies) - 1e-9), (len(replies) - 1) // 2)
        names = dict.fromkeys(name for reply in replies for name in reply if name != "weight")
        return {
            **{name: _trimmed(name, replies, cut) for name in names},
            "weight": torch.tensor(1.0),
        }

    return rule


median = trimmed_mean(0.5)


def _trimmed(name: str, replies: Sequence[Params], cut: int) -> Tensor:
    """One entry, the loss included. Who does not send it says zero, as in a sum."""
    first = next(reply[name] for reply in replies if name in reply)
    columns = [reply.get(name, torch.zeros_like(first)).reshape(-1) for reply in replies]
    weights = torch.stack([reply["weight"] for reply in replies])  # (n,)
    result = torch.empty_like(columns[0])
    for start in range(0, len(result), _PIECE):
        slices = [column[start : start + _PIECE] for column in columns]
        piece = torch.stack(slices, 1) / weights  # (p, n)
        if piece.device.type == "cpu":
            piece.numpy().sort(axis=1)  # several times as fast as torch's
        else:
            piece = piece.sort(1).values
        result[start : start + _PIECE] = piece[:, cut : len(replies) - cut].mean(1)
    return result.reshape(first.shape)


# --- by client ------------------------------------------------------------------------------------


def norm_bound(limit: float) -> Rule:
    """A sum, so replies are added as they come. A loss has no norm: of the losses, the median."""

    def rule(updates: Iterable[Params]) -> Update:
        losses: list[float] = []

        def clipped() -> Iterator[Update]:
            for update in updates:
                losses.append(float(update.get("loss", 0.0)) / float(update["weight"]))
                yield {**_clipped(update, limit), "weight": torch.tensor(1.0)}

        total = add_all(clipped())
        return {**total, "loss": torch.tensor(middle(losses) * len(losses))} if total else {}

    return rule


def _clipped(update: Params, limit: float) -> Update:
    weighted = {name: value for name, value in deltas(update).items() if isinstance(value, Tensor)}
    norm = math.sqrt(sum(float(value.double().square().sum()) for value in weighted.values()))
    scale = min(1 / float(update["weight"]), limit / norm if norm else 1.0)
    return under("delta", {name: value * scale for name, value in weighted.items()})
