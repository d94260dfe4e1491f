"""Who wrote this? A user's gender or age band, guessed from the update it uploads.

Who sees uploads (the server, or a reader of the wire) knows the attribute of some users, because they told it, and wants
that of the others. Property inference after Melis, Song, De Cristofaro, Shmatikov (S&P 2019), with a linear attacker:

    x_k  <- R delta_k / |R delta_k|                 R: a random projection to a few hundred numbers, the same for all
    W    <- argmin_W |Y - X W|^2 + lambda |W|^2     over the auxiliary users, X and Y less their means
    s_k  <- x_k W                                   the higher, the likelier the class

R has one entry of random sign in each column (Charikar, Chen, Farach-Colton, 2002): it keeps inner products in the mean,
and is applied by adding every parameter to the number it fell to. lambda is the one with the least error when each
auxiliary user is left out in turn, which ridge regression tells without fitting again. What this attacker does not
find, another may: it is a lower bound on what uploads tell.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lexfed.corpus.text import IntArray
from lexfed.errors import ConfigError, DataError
from lexfed.metrics.leakage import auc, wilson
from lexfed.params import Params
from lexfed.seeds import Seed, derive, torch_generator

BLOCK = 1 << 20  # parameters whose places are drawn at a time
RIDGES = 10.0 ** np.arange(-4, 5)  # in units of the features' mean square: tried one after the other
AGES = (20, 30)  # bands: teens, twenties, older


def features(delta: Params, dims: int, seed: Seed) -> Tensor:  # (dims,) float64, norm 1
    """The projected upload. An upload of zeros stays zero: it says nothing."""
    if dims < 1:
        raise ConfigError(f"a projection has at least one dimension, not {dims}")
    sums = torch.zeros(dims, dtype=torch.float64)
    for name, value in sorted(delta.items()):
        generator = torch_generator(derive(seed, name))  # by name: other parameters, more or fewer, change nothing
        for part in torch.split(value.flatten().double(), BLOCK):
            places = torch.randint(2 * dims, (len(part),), generator=generator)  # a place and a sign in one draw
            sums.index_add_(0, places % dims, torch.where(places < dims, part, -part))
    if not sums.isfinite().all():
        raise DataError("the upload holds values that are not numbers")
    length: Tensor = torch.linalg.vector_norm(sums)
    return sums / length.clamp(min=torch.finfo(torch.float64).tiny)


def infer(features_aux: Tensor, labels_aux: Tensor, features_target: Tensor) -> Tensor:  # (A, d), (A,), (T, d) -> (T, C)
    """A score for every class: the class is the highest one, and for two the difference ranks."""
    if len(features_aux) != len(labels_aux) or len(torch.unique(labels_aux)) < 2:
        raise DataError("the attacker needs a label for each user it knows, and users of two classes at least")
    x, y = features_aux.double(), torch.nn.functional.one_hot(labels_aux).double()  # (A, d), (A, C)
    u, s, vt = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    centred = y - y.mean(0)
    unit = float(s.square().mean()) or 1.0
    shrunk = min((_shrunk(s, unit * ridge) for ridge in RIDGES), key=lambda k: _left_out_error(u, k * s, centred))
    weights: Tensor = vt.T @ (shrunk[:, None] * (u.T @ centred))  # (d, C)
    return (features_target.double() - x.mean(0)) @ weights + y.mean(0)


def _shrunk(s: Tensor, ridge: float) -> Tensor:
    return s / (s.square() + ridge)


def _left_out_error(u: Tensor, kept: Tensor, y: Tensor) -> float:
    """The squared error on each user when it is left out: residual / (1 - its leverage); the mean takes 1/A of that."""
    residual = y - u @ (kept[:, None] * (u.T @ y))
    leverage = (u.square() * kept).sum(1) + 1 / len(y)
    return float((residual / (1 - leverage).clamp(min=1e-12)[:, None]).square().sum())


def age_bands(ages: IntArray) -> IntArray:
    return np.digitize(ages, AGES).astype(np.int64)


@dataclass(frozen=True)
class AttributeResult:
    users: int  # held out from the attacker
    accuracy: float
    interval: tuple[float, float]  # Wilson's, 95 %, over users
    majority: float  # of always saying the class that is most frequent among the users the attacker knows
    auc: float  # of several classes: the mean of each against the rest
    auc_interval: tuple[float, float]  # 95 %, by bootstrap over users


def result(scores: Tensor, labels: Tensor, labels_aux: Tensor, seed: Seed, resamples: int = 500) -> AttributeResult:
    """How well the scores (T, C) tell the held-out users' labels (T,)."""
    if len(scores) != len(labels) or len(torch.unique(labels)) < 2:
        raise DataError("an attribute is scored on users of two classes at least, with scores for each user")
    hits = int((scores.argmax(1) == labels).sum())
    generator = torch_generator(derive(seed, "bootstrap"))
    draws = (torch.randint(len(labels), (len(labels),), generator=generator) for _ in range(resamples))
    again = [_auc(scores[draw], labels[draw]) for draw in draws if len(torch.unique(labels[draw])) > 1]
    low, high = np.quantile(again, [0.025, 0.975])
    return AttributeResult(
        users=len(labels),
        accuracy=hits / len(labels),
        interval=wilson(hits, len(labels)),
        majority=float((labels == torch.bincount(labels_aux).argmax()).double().mean()),
        auc=_auc(scores, labels),
        auc_interval=(float(low), float(high)),
    )


def _auc(scores: Tensor, labels: Tensor) -> float:
    """Of two classes both say the same, as the scores of a user add up to 1."""
    classes = torch.unique(labels).tolist()
    each = [auc(scores[labels == label, label], scores[labels != label, label]) for label in classes]
    return sum(each) / len(each)
