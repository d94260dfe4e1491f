"""Was this text trained on? Two attacks on the released model, and what differential privacy allows
them.

    phi_i      = log p_i / (1 - p_i)    p_i: the model's confidence in the true label of text i
    threshold  s_i = -loss_i            Yeom, Giacomelli, Fredrikson, Jha (CSF 2018)
    LiRA                                Carlini et al. (S&P 2022), Alg. 1
               for each text: shadow models that trained on it, and that did not
               mu_in, mu_out, sigma_in, sigma_out <- Gaussian fits to their phi_i
               online   s_i = log N(phi_i | mu_in, sigma_in^2) - log N(phi_i | mu_out, sigma_out^2)
               offline  s_i = (phi_i - mu_out) / sigma_out    needs no model that has seen text i

With fewer than 64 shadows a variance per text is too rough, and one for all texts is used [sec.
VI-A]: here that of the differences from each text's own mean, so that what tells easy texts from
hard ones is not part of it.

The unit is the text, and a text is part of one client: an epsilon for clients (users) holds for
texts as well. Members are texts of clients that trained; all others are of clients that did not.
Under (epsilon, delta)-DP no attack gets past

    TPR <= min(e^epsilon FPR + delta,  1 - e^-epsilon (1 - delta - FPR))
                                                             Kairouz, Oh, Viswanath (ICML 2015)
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lexfed.core.errors import DataError, PrivacyError
from lexfed.core.seeds import Seed, derive, torch_generator
from lexfed.metrics.leakage import auc, tpr_at

MANY = 64  # shadows from which each text has variances of its own

# --- the attacks ----------------------------------------------------------------------------------


def confidence(logits: Tensor, labels: Tensor) -> Tensor:  # (N, C), (N,) -> (N,) float64
    """phi, from logits: z_y - log sum_{c != y} e^z_c has no 1 - p that could round to 0."""
    z = logits.double()
    others = z.scatter(1, labels[:, None], -torch.inf).logsumexp(1)
    return z.gather(1, labels[:, None]).squeeze(1) - others


def losses(phi: Tensor) -> Tensor:  # (N,) cross entropies
    return F.softplus(-phi)


def loss_threshold(target_losses: Tensor) -> Tensor:
    """Higher for members, as every score here."""
    return -target_losses


def lira(
    target_phi: Tensor, shadow_phi: Tensor, inside: Tensor, online: bool
) -> Tensor:  # (N,), (S, N), (S, N) -> (N,)
    if shadow_phi.shape != inside.shape or shadow_phi.shape[1:] != target_phi.shape:
        raise DataError("LiRA needs a phi and a membership of every text from every shadow model")
    mu_out, sigma_out = _fit(shadow_phi, ~inside)
    # the paper's is Phi of this: the same order, without the ties of a Phi that rounds to 1
    if not online:
        return (target_phi - mu_out) / sigma_out
    mu_in, sigma_in = _fit(shadow_phi, inside)
    return _log_normal(target_phi, mu_in, sigma_in) - _log_normal(target_phi, mu_out, sigma_out)


def _fit(phi: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:  # (N,), (N,)
    """Mean and deviation of each text's phi over its chosen models; the deviation of all texts
    together where few are.
    """
    counts = chosen.sum(0)
    if int(counts.min()) < 1 or int(counts.max()) < 2:
        raise DataError(
            "every text needs shadow models that trained on it and others that did not: train "
            "more of them"
        )
    mu = torch.where(chosen, phi, 0.0).sum(0) / counts
    squares = torch.where(chosen, phi - mu, 0.0).square()
    if int(counts.min()) >= MANY // 2:
        variance = squares.sum(0) / (counts - 1)
    else:  # each text's mean was fitted, and takes one degree of freedom
        variance = (squares.sum() / (counts - 1).sum()).expand_as(mu)
    return mu, variance.clamp(min=torch.finfo(torch.float64).tiny).sqrt()


def _log_normal(x: Tensor, mu: Tensor, sigma: Tensor) -> Tensor:
    return -(((x - mu) / sigma) ** 2) / 2 - sigma.log()


def dp_limit(epsilon: float, delta: float, fpr: float) -> float:
    """The highest share of members that any attack finds when it accuses this share of the
    others.
    """
    if not (epsilon >= 0 and 0 <= delta <= 1 and 0 <= fpr <= 1):
        raise PrivacyError(
            f"epsilon {epsilon:g}, delta {delta:g} and a false positive rate of {fpr:g} can't be "
            "meant"
        )
    growth = math.exp(min(epsilon, 700.0))
    return max(0.0, min(1.0, growth * fpr + delta, 1 - (1 - delta - fpr) / growth))


# --- how well they do -----------------------------------------------------------------------------


def label_matched(labels_in: Tensor, labels_out: Tensor, seed: Seed) -> tuple[Tensor, Tensor]:
    """Positions of as many members as others of each class: else a model that knows a class better
    would tell members.
    """
    ours: list[Tensor] = []
    theirs: list[Tensor] = []
    for label in torch.unique(labels_in).tolist():
        places = [torch.nonzero(labels == label).squeeze(1) for labels in (labels_in, labels_out)]
        size = min(map(len, places))
        for side, kept, found in zip(("in", "out"), (ours, theirs), places, strict=True):
            generator = torch_generator(derive(seed, side, int(label)))
            kept.append(found[torch.randperm(len(found), generator=generator)[:size]])
    if sum(map(len, ours)) == 0:
        raise DataError("members and others have no label in common")
    return torch.cat(ours).sort().values, torch.cat(theirs).sort().values


RATES = {"tpr_at_1pct": 0.01, "tpr_at_01pct": 0.001}


@dataclass(frozen=True)
class Membership:
    """How well an attack tells members: means over the targets. Intervals (95 %) are for other
    texts, not other models.
    """

    auc: float
    tpr_at_1pct: float | None  # None: fewer than 1,000 others to a target
    tpr_at_01pct: float | None  # None: fewer than 10,000
    intervals: Mapping[str, tuple[float, float]]
    members: int  # of all targets together, as are the others
    others: int
    targets: int
    accuracy: float  # of the models: an attack on a useless one shows little


def report(
    scores: Tensor,
    is_member: Tensor,
    accuracy: float,
    seed: Seed,
    counted: Tensor | None = None,
    resamples: int = 200,
) -> Membership:
    """Of one target, (N,), or of several on the same texts, (T, N). `counted` leaves out texts that
    have no match.
    """
    counted = torch.ones_like(is_member) if counted is None else counted
    scores, inside, counted = (x[None] if x.ndim == 1 else x for x in (scores, is_member, counted))
    if not scores.shape == inside.shape == counted.shape or not scores.isfinite().all():
        raise DataError("a membership report needs one finite score and one truth for every text")
    sides = _sides(scores, inside, counted)
    figures = {name: _mean([tpr_at(rate, *side) for side in sides]) for name, rate in RATES.items()}
    generator = torch_generator(derive(seed, "bootstrap"))
    size = scores.shape[1]
    draws = (torch.randint(size, (size,), generator=generator) for _ in range(resamples))
    # a text is drawn with all of its scores: what is hard for one target is hard for the next
    drawn = [_rates(_sides(scores[:, d], inside[:, d], counted[:, d])) for d in draws]
    again = torch.stack(drawn)  # (R, 3)
    ends = again.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64), dim=0).T.tolist()
    known = {name: (low, high) for name, (low, high) in zip(("auc", *RATES), ends, strict=True)}
    return Membership(
        auc=float(_rates(sides)[0]),
        tpr_at_1pct=figures["tpr_at_1pct"],
        tpr_at_01pct=figures["tpr_at_01pct"],
        intervals={
            name: ends for name, ends in known.items() if name == "auc" or figures[name] is not None
        },
        members=sum(len(members) for members, _ in sides),
        others=sum(len(others) for _, others in sides),
        targets=len(sides),
        accuracy=accuracy,
    )


def _sides(scores: Tensor, inside: Tensor, counted: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Members' and others' scores, target by target."""
    rows = zip(scores, inside & counted, ~inside & counted, strict=True)
    sides = [(score[members], score[others]) for score, members, others in rows]
    if not all(len(members) and len(others) for members, others in sides):
        raise DataError("a membership report needs members and others for every target")
    return sides


def _rates(sides: Sequence[tuple[Tensor, Tensor]]) -> Tensor:  # (3,)
    """AUC and both shares, whatever the number of others: in a resample it differs a little."""

    def found(rate: float, members: Tensor, others: Tensor) -> float:
        threshold = others.sort(descending=True).values[int(rate * len(others) + 1e-9)]
        return float((members > threshold).double().mean())

    each = [[auc(*side), *(found(rate, *side) for rate in RATES.values())] for side in sides]
    return torch.tensor(each, dtype=torch.float64).mean(0)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None
