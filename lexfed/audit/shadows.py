"""Shadow models for LiRA: many models of one configuration, each trained on some of its clients, each a target once."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lexfed.assembly import Assembly, assemble
from lexfed.audit.membership import confidence, label_matched, lira
from lexfed.config import Config
from lexfed.errors import ConfigError
from lexfed.federation import Federation, ServerState
from lexfed.models.bilstm import BiLSTMClassifier
from lexfed.models.model import Example, collate
from lexfed.params import Params
from lexfed.seeds import Seed, derive, numpy_generator
from lexfed.vocabulary.reading import SharedReader

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
