"""Shadow models for LiRA: models of one configuration, each trained with some of its clients, each
a target once.

    for every pair of models, every client tosses a coin: which of the two does it join?
    a client that did not join is asked as all are, and says nothing

So a text is in half of a target's shadows, whatever their number. And in or out is one update more
or less in every sum: sampling rates and divisors stay as they are, which is what an epsilon for one
user added or removed speaks of.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lexfed.audits.membership.lira import confidence, label_matched, lira, loss_threshold, losses
from lexfed.core.errors import ConfigError
from lexfed.core.params import Params
from lexfed.core.seeds import Seed, derive, numpy_generator
from lexfed.experiment.assembly import Assembly
from lexfed.experiment.config import Config
from lexfed.federation import Federation, Requests, ServerState, Sum
from lexfed.federation.server_optimizer import released
from lexfed.learning.task import Task
from lexfed.models import registry
from lexfed.models.model import Classifier, Example, collate
from lexfed.wire import ClientId, Message, Verb

Runtime = Callable[[Assembly], Federation]  # as `simulate` makes one
Coins = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ShadowStudy:
    """All models' phi of all texts, and who was trained on what."""

    phi: Tensor  # (M, N) float64
    inside: Tensor  # (M, N) bool
    labels: Tensor  # (N,)
    accuracy: Tensor  # (M,) on the common test set
    majority: float  # of always saying the most frequent label there
    epsilon: float | None  # the dearest model's; None: nothing is promised about who took part
    delta: float | None

    def attack(self, target: int, online: bool) -> Tensor:  # (N,)
        """LiRA. The target's complement is no shadow of it: it is known by who the target's clients
        are.
        """
        others = torch.arange(len(self.phi)) // 2 != target // 2
        return lira(self.phi[target], self.phi[others], self.inside[others], online)

    def matched(self, target: int, seed: Seed) -> Tensor:  # (N,) bool
        """Which texts count: as many members as others of each class."""
        members, others = (
            torch.nonzero(side).squeeze(1) for side in (self.inside[target], ~self.inside[target])
        )
        ours, theirs = label_matched(
            self.labels[members], self.labels[others], derive(seed, "matched", target)
        )
        counted = torch.zeros_like(self.inside[target])
        counted[torch.cat([members[ours], others[theirs]])] = True
        return counted


SCORES: Mapping[str, Callable[[ShadowStudy, int], Tensor]] = {
    "threshold": lambda study, target: loss_threshold(losses(study.phi[target])),
    "lira": lambda study, target: study.attack(target, online=True),
    "lira offline": lambda study, target: study.attack(target, online=False),
}


def check(config: Config) -> None:
    """Refuse what has no model in common, before anything is trained."""
    if not registry.entry(config.model.name).reads_words or not config.entry.has("one model"):
        raise ConfigError(
            "membership is asked of a model that all share: a bilstm, by fedavg or fedprox"
        )


def shadow_study(assembly: Assembly, seed: Seed, runtime: Runtime) -> ShadowStudy:
    """Train `audit.shadows` + 2 models: a target, its complement, and its shadows, in turn."""
    config, people = assembly.config, assembly.population
    check(config)
    task: Task = assembly.parts.task
    reader, model = task.reader, task.model
    texts, test = reader.read(people.seen_text).examples, reader.read(people.common_test).examples
    labels, truth = (
        torch.tensor([example.label for example in examples]) for examples in (texts, test)
    )
    owner = np.repeat(
        np.arange(len(people)), [people.size(client) for client in range(len(people))]
    )  # (N,)
    coins = _coins(config.audit.shadows + 2, len(people), derive(seed, "coins"))
    # a client's own noise hides what it sends, not that it sent: there an epsilon does not speak of
    # in or out
    promise = assembly.promise if config.privacy.placement == "central" else None
    phi, right, epsilons = [], [], []
    for number, joins in enumerate(coins):
        state = _last(assembly, joins, derive(seed, "model", number), runtime)
        params = released(state.params, state.opt_state)
        phi.append(confidence(_logits(model, params, texts), labels))
        right.append((_logits(model, params, test).argmax(1) == truth).double().mean())
        epsilons.append(promise.epsilons(state.ledger)[0] if promise else None)
    return ShadowStudy(
        phi=torch.stack(phi),
        inside=torch.from_numpy(coins[:, owner]),
        labels=labels,
        accuracy=torch.stack(right),
        majority=float(torch.bincount(truth).max() / len(truth)),
        epsilon=None if None in epsilons else max(value for value in epsilons if value is not None),
        delta=promise.delta if promise else None,
    )


def _coins(models: int, clients: int, seed: Seed) -> Coins:  # (M, clients)
    heads = numpy_generator(seed).random((models // 2, clients)) < 0.5
    return np.stack([heads, ~heads], axis=1).reshape(models, clients)


def _last(assembly: Assembly, joins: Coins, seed: Seed, runtime: Runtime) -> ServerState:
    """The last state of a run with these clients only; the server's start, its noise and all
    secrets are the run's own.
    """
    people = replace(assembly.population, secret=derive(seed, "clients"))
    federation = joined(runtime(replace(assembly, population=people)), joins)
    return deque(
        assembly.method.server(federation, derive(seed, "server"), ServerState()), maxlen=1
    ).pop()


def joined(federation: Federation, joins: Coins) -> Federation:
    """A layer on ask: who did not join never answers."""

    def present(requests: Requests) -> Requests:
        return {client: message for client, message in requests.items() if joins[client]}

    def ask(verb: Verb, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        return federation.ask(verb, present(requests))

    def total(verb: Verb, requests: Requests) -> Sum:
        return federation.total(verb, present(requests))

    return replace(federation, ask=ask, total=total)


def _logits(model: Classifier, params: Params, examples: Sequence[Example]) -> Tensor:  # (N, C)
    """In the order of the examples, though neighbours in length are read together."""
    order = sorted(range(len(examples)), key=lambda i: -len(examples[i].ids))
    with torch.no_grad():  # batches keep this order: they sort by length again, and equals stay
        parts = [
            model.logits(params, collate([examples[i] for i in order[start : start + 256]]), None)
            for start in range(0, len(order), 256)
        ]
    return torch.cat(parts)[torch.tensor(order).argsort()]
