"""Who wrote this? A user's gender or age band, guessed from the update it uploads.

Who sees uploads (the server, or a reader of the wire) knows the attribute of some users, because
they told it, and wants that of the others. Property inference after Melis, Song, De Cristofaro,
Shmatikov (S&P 2019), with a linear attacker:

    x_k  <- R delta_k / |R delta_k|              R: a random projection to a few hundred numbers,
                                                 the same for all
    W    <- argmin_W |Y - X W|^2 + lambda |W|^2  over the auxiliary users, X and Y less their means
    s_k  <- x_k W                                the higher, the likelier the class

R has one entry of random sign in each column (Charikar, Chen, Farach-Colton, 2002): it keeps inner
products in the mean, and is applied by adding every parameter to the number it fell to. lambda is
the one with the least error when each auxiliary user is left out in turn, which ridge regression
tells without fitting again. What this attacker does not find, another may: it is a lower bound on
what uploads tell.
"""

import numpy as np
import torch
from torch import Tensor

from lexfed.core.errors import ConfigError, DataError
from lexfed.core.params import Params
from lexfed.core.seeds import Seed, derive, torch_generator
from lexfed.corpus.text import IntArray

BLOCK = 1 << 20  # parameters whose places are drawn at a time
# in units of the features' mean square: tried one after the other
RIDGES = 10.0 ** np.arange(-4, 5)
AGES = (20, 30)  # bands: teens, twenties, older


def features(delta: Params, dims: int, seed: Seed) -> Tensor:  # (dims,) float64, norm 1
    """The projected upload. An upload of zeros stays zero: it says nothing."""
    if dims < 1:
        raise ConfigError(f"a projection has at least one dimension, not {dims}")
    sums = torch.zeros(dims, dtype=torch.float64)
    for name, value in sorted(delta.items()):
        # by name: other parameters, more or fewer, change nothing
        generator = torch_generator(derive(seed, name))
        for part in torch.split(value.flatten().double(), BLOCK):
            # a place and a sign in one draw
            places = torch.randint(2 * dims, (len(part),), generator=generator)
            sums.index_add_(0, places % dims, torch.where(places < dims, part, -part))
    if not sums.isfinite().all():
        raise DataError("the upload holds values that are not numbers")
    length: Tensor = torch.linalg.vector_norm(sums)
    return sums / length.clamp(min=torch.finfo(torch.float64).tiny)


def infer(
    features_aux: Tensor, labels_aux: Tensor, features_target: Tensor, classes: int = -1
) -> Tensor:
    """(A, d), (A,), (T, d) -> (T, C). A score for every class: the highest one is the guess, for
    two the difference ranks.

    `classes` is how many there are, where the attacker may know nobody of the last one.
    """
    if len(features_aux) != len(labels_aux) or len(torch.unique(labels_aux)) < 2:
        raise DataError(
            "the attacker needs a label for each user it knows, and users of two classes at least"
        )
    x = features_aux.double()  # (A, d)
    y = torch.nn.functional.one_hot(labels_aux, classes).double()  # (A, C)
    u, s, vt = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    centred = y - y.mean(0)
    unit = float(s.square().mean()) or 1.0
    shrunk = min(
        (_shrunk(s, unit * ridge) for ridge in RIDGES),
        key=lambda k: _left_out_error(u, k * s, centred),
    )
    weights: Tensor = vt.T @ (shrunk[:, None] * (u.T @ centred))  # (d, C)
    return (features_target.double() - x.mean(0)) @ weights + y.mean(0)


def _shrunk(s: Tensor, ridge: float) -> Tensor:
    return s / (s.square() + ridge)


def _left_out_error(u: Tensor, kept: Tensor, y: Tensor) -> float:
    """The squared error on each user when it is left out: residual / (1 - its leverage); the mean
    takes 1/A of that.
    """
    residual = y - u @ (kept[:, None] * (u.T @ y))
    leverage = (u.square() * kept).sum(1) + 1 / len(y)
    return float((residual / (1 - leverage).clamp(min=1e-12)[:, None]).square().sum())


def age_bands(ages: IntArray) -> IntArray:
    return np.digitize(ages, AGES).astype(np.int64)


def figures(scores: Tensor, labels: Tensor, labels_aux: Tensor) -> list[dict[str, float]]:
    """How well the scores (T, C) tell the held-out users' labels (T,): figures of each user, whose
    means are the cell's.

    majority: of always saying the class that is most frequent among the users the attacker knows.
    """
    if len(scores) != len(labels) or len(torch.unique(labels)) < 2:
        raise DataError(
            "an attribute is scored on users of two classes at least, with scores for each user"
        )
    areas, hits = auc_shares(scores, labels).tolist(), (scores.argmax(1) == labels).tolist()
    usual = (labels == torch.bincount(labels_aux).argmax()).tolist()
    return [
        {"auc": area, "accuracy": float(hit), "majority": float(same)}
        for area, hit, same in zip(areas, hits, usual, strict=True)
    ]


def auc_shares(scores: Tensor, labels: Tensor) -> Tensor:  # (T, C), (T,) -> (T,)
    """Every user's share in the AUC (of several classes: in the mean of each against the rest):
    jackknife pseudo-values.

    T AUC - (T - 1) AUC without the user. Their mean is the AUC, and their spread over sqrt T its
    standard error, as if it were a mean over users. Pairs of users are not independent, so the
    spread of the pairs would tell too little.
    """
    shares = [
        _shares_of_class(scores[:, label], labels == label)
        for label in torch.unique(labels).tolist()
    ]
    return torch.stack(shares).mean(0)


def _shares_of_class(score: Tensor, own: Tensor) -> Tensor:  # (T,), (T,) -> (T,)
    """Without user i, of m in its class, the AUC is (m AUC - w_i) / (m - 1); w_i: its pairs that
    are ranked right.
    """
    # a tie is half
    right = torch.heaviside(score[own][:, None] - score[~own], torch.tensor(0.5, dtype=score.dtype))
    area, shares = right.mean(), torch.empty_like(score)
    for side, won in ((own, right.mean(1)), (~own, right.mean(0))):
        shares[side] = area + (len(score) - 1) / max(len(won) - 1, 1) * (won - area)
    return shares
