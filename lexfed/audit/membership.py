"""Was this text trained on? Two attacks on the released model, and what differential privacy allows them.

    phi_i     = log p_i / (1 - p_i)                           p_i: the model's confidence in the true label of text i
    threshold   s_i = -loss_i                                  Yeom, Giacomelli, Fredrikson, Jha (CSF 2018)
    LiRA      for each text: shadow models that trained on it, and that did not        Carlini et al. (S&P 2022), Alg. 1
                mu_in, mu_out, sigma_in, sigma_out <- Gaussian fits to their phi_i
                online    s_i = log N(phi_i | mu_in, sigma_in^2) - log N(phi_i | mu_out, sigma_out^2)
                offline   s_i = (phi_i - mu_out) / sigma_out   needs no model that has seen text i

With fewer than 64 shadows a variance per text is too rough, and one for all texts is used [sec. VI-A]: here that of the
differences from each text's own mean, so that what tells easy texts from hard ones is not part of it.

The unit is the text, and a text is part of one client: an epsilon for clients (users) holds for texts as well. Members are
texts of clients that trained; all others are of clients that did not. Under (epsilon, delta)-DP no attack gets past

    TPR <= min(e^epsilon FPR + delta,  1 - e^-epsilon (1 - delta - FPR))             Kairouz, Oh, Viswanath (ICML 2015)
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lexfed.assembly import Assembly, assemble
from lexfed.config import Config
from lexfed.errors import ConfigError, DataError, PrivacyError
from lexfed.federation import Federation, ServerState
from lexfed.metrics.leakage import auc, tpr_at
from lexfed.models.bilstm import BiLSTMClassifier
from lexfed.models.model import Example, collate
from lexfed.params import Params
from lexfed.seeds import Seed, derive, numpy_generator, torch_generator
from lexfed.vocabulary.reading import SharedReader

MANY = 64  # shadows from which each text has variances of its own

# --- the attacks ------------------------------------------------------------------------------------------------------


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


def lira(target_phi: Tensor, shadow_phi: Tensor, inside: Tensor, online: bool) -> Tensor:  # (N,), (S, N), (S, N) -> (N,)
    if shadow_phi.shape != inside.shape or shadow_phi.shape[1:] != target_phi.shape:
        raise DataError("LiRA needs a phi and a membership of every text from every shadow model")
    mu_out, sigma_out = _fit(shadow_phi, ~inside)
    if not online:  # the paper's is Phi of this: the same order, without the ties of a Phi that rounds to 1
        return (target_phi - mu_out) / sigma_out
    mu_in, sigma_in = _fit(shadow_phi, inside)
    return _log_normal(target_phi, mu_in, sigma_in) - _log_normal(target_phi, mu_out, sigma_out)


def _fit(phi: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:  # (N,), (N,)
    """Mean and deviation of each text's phi over its chosen models; the deviation of all texts together where few are."""
    counts = chosen.sum(0)
    if int(counts.min()) < 1 or int(counts.max()) < 2:
        raise DataError("every text needs shadow models that trained on it and others that did not: train more of them")
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
    """The highest share of members that any attack finds when it accuses this share of the others."""
    if not (epsilon >= 0 and 0 <= delta <= 1 and 0 <= fpr <= 1):
        raise PrivacyError(f"epsilon {epsilon:g}, delta {delta:g} and a false positive rate of {fpr:g} can't be meant")
    growth = math.exp(min(epsilon, 700.0))
    return max(0.0, min(1.0, growth * fpr + delta, 1 - (1 - delta - fpr) / growth))


# --- how well they do -------------------------------------------------------------------------------------------------


def label_matched(labels_in: Tensor, labels_out: Tensor, seed: Seed) -> tuple[Tensor, Tensor]:
    """Positions of as many members as others of each class: else a model that knows a class better would tell members."""
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
    """How well an attack tells members: means over the targets. Intervals (95 %) are for other texts, not other models."""

    auc: float
    tpr_at_1pct: float | None  # None: fewer than 1,000 others to a target
    tpr_at_01pct: float | None  # None: fewer than 10,000
    intervals: Mapping[str, tuple[float, float]]
    members: int  # of all targets together, as are the others
    others: int
    targets: int
    accuracy: float  # of the models: an attack on a useless one shows little


def report(
    scores: Tensor, is_member: Tensor, accuracy: float, seed: Seed, counted: Tensor | None = None, resamples: int = 200
) -> Membership:
    """Of one target, (N,), or of several on the same texts, (T, N). `counted` leaves out texts that have no match."""
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
    again = torch.stack([_rates(_sides(scores[:, d], inside[:, d], counted[:, d])) for d in draws])  # (R, 3)
    ends = again.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64), dim=0).T.tolist()
    known = {name: (low, high) for name, (low, high) in zip(("auc", *RATES), ends, strict=True)}
    return Membership(
        auc=float(_rates(sides)[0]),
        tpr_at_1pct=figures["tpr_at_1pct"],
        tpr_at_01pct=figures["tpr_at_01pct"],
        intervals={name: ends for name, ends in known.items() if name == "auc" or figures[name] is not None},
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


# --- shadow models ----------------------------------------------------------------------------------------------------

Runtime = Callable[[Assembly], Federation]  # as `simulate` makes one


@dataclass(frozen=True, eq=False)
class Study:
    """Models of one configuration, each trained on some of the clients: each is a target, and others are its shadows."""

    phi: Tensor  # (M, N) float64
    inside: Tensor  # (M, N) bool
    labels: Tensor  # (N,)
    accuracy: Tensor  # (M,) on the common test set
    majority: float  # of always saying the most frequent label there
    epsilon: float | None  # the dearest model's; None: nothing is promised
    delta: float | None

    def attack(self, target: int, online: bool) -> Tensor:  # (N,)
        """LiRA. The target's complement is no shadow of it: it is known by who the target's clients are."""
        others = torch.arange(len(self.phi)) // 2 != target // 2
        return lira(self.phi[target], self.phi[others], self.inside[others], online)

    def matched(self, target: int, seed: Seed) -> Tensor:  # (N,) bool
        """Which texts count: as many members as others of each class."""
        members, others = (torch.nonzero(side).squeeze(1) for side in (self.inside[target], ~self.inside[target]))
        ours, theirs = label_matched(self.labels[members], self.labels[others], derive(seed, "matched", target))
        counted = torch.zeros_like(self.inside[target])
        counted[torch.cat([members[ours], others[theirs]])] = True
        return counted


def shadow_study(config: Config, shadows: int, seed: Seed, runtime: Runtime) -> Study:
    """Train `shadows` + 2 models in pairs: each client's coin says which of the two it joins.

    So every text is in half of a target's shadows. And in or out is one client more or less, as a central epsilon has it.
    """
    if shadows < 4 or shadows % 2:
        raise ConfigError(f"a shadow study needs an even number of shadow models, at least 4, not {shadows}")
    if config.model.name != "bilstm" or config.method not in ("fedavg", "fedprox"):
        raise ConfigError("a shadow study is of a model that all share: a bilstm, by fedavg or fedprox")
    assembly = assemble(config)
    people, reader = assembly.population, SharedReader(assembly.tokenizer, config.train.max_length)
    model = BiLSTMClassifier(config.model, people.classes)
    texts, test = reader.read(people.seen_text).examples, reader.read(people.common_test).examples
    labels, truth = (torch.tensor([example.label for example in examples]) for examples in (texts, test))
    owner = np.repeat(np.arange(len(people)), [people.size(client) for client in range(len(people))])  # (N,)
    coins = _coins(shadows + 2, len(people), derive(seed, "coins"))
    phi, right, epsilons = [], [], []
    for number, joins in enumerate(coins):
        state = _released(assembly, joins, derive(seed, "model", number), runtime)
        phi.append(confidence(_logits(model, state.params, texts), labels))
        right.append((_logits(model, state.params, test).argmax(1) == truth).double().mean())
        epsilons.append(assembly.promise.epsilons(state.ledger)[0] if assembly.promise else None)
    return Study(
        phi=torch.stack(phi),
        inside=torch.from_numpy(coins[:, owner]),
        labels=labels,
        accuracy=torch.stack(right),
        majority=float(torch.bincount(truth).max() / len(truth)),
        epsilon=None if None in epsilons else max(value for value in epsilons if value is not None),
        delta=assembly.promise.delta if assembly.promise else None,
    )


def _coins(models: int, clients: int, seed: Seed) -> npt.NDArray[np.bool_]:  # (M, clients)
    heads = numpy_generator(seed).random((models // 2, clients)) < 0.5
    return np.stack([heads, ~heads], axis=1).reshape(models, clients)


def _released(assembly: Assembly, joins: npt.NDArray[np.bool_], seed: Seed, runtime: Runtime) -> ServerState:
    """The last state of a run with these clients only; the server's start, its noise and all secrets are the run's own."""
    people = assembly.population
    rows = [np.arange(people.starts[client], people.starts[client + 1]) for client in np.flatnonzero(joins)]
    starts = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    some = replace(
        people, train=people.train.take(np.concatenate(rows)), starts=starts, unseen=0, secret=derive(seed, "clients")
    )
    federation = runtime(replace(assembly, population=some))
    return deque(assembly.method.server(federation, derive(seed, "server"), ServerState()), maxlen=1).pop()


def _logits(model: BiLSTMClassifier, params: Params, examples: Sequence[Example]) -> Tensor:  # (N, C)
    """In the order of the examples, though neighbours in length are read together."""
    order = sorted(range(len(examples)), key=lambda i: -len(examples[i].ids))
    with torch.no_grad():  # batches keep this order: they sort by length again, and equals stay
        parts = [
            model.logits(params, collate([examples[i] for i in order[start : start + 256]]), None)
            for start in range(0, len(order), 256)
        ]
    return torch.cat(parts)[torch.tensor(order).argsort()]
