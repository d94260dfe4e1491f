"""Self-audit: before it sends, a client attacks its own upload, as the server could.

It knows its own words, so it can say how many of them the closed-form attacks of `metrics.leakage` would find.

    client k:  after <- U(params)                                       as its method trains
               excess <- recall at n of the attack - that of the prior   n distinct words; the prior is the public order
               while excess > limit:  train on, or add more noise; if that is all, hold back

Row reading where a word table travels (FedAvg: it finds everything, so such a client never sends). Span ranking of the first
shared matrices against the public table that the client started from where only the body does (FedeVocab). Where there is
neither, nothing can be read in closed form, and the upload goes out.

Whom it protects from: a server with every public file. With a rotation, a server that lacks it; `colluding = true` also
tries one to which a client gave it. It is judged before clipping, rounding and a mechanism's noise, which add nothing.
It tests known attacks on one upload and is no guarantee. Noise is not differential privacy: it has no epsilon.
What goes out instead of a held-back upload: see `defences`. The client keeps the private part it trained.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lexfed.corpus.population import Client
from lexfed.errors import ConfigError
from lexfed.federation import ClientState, Handler
from lexfed.methods.defences import HELD, counted
from lexfed.methods.private_table import PrivateTable, WordTable
from lexfed.methods.training import LocalUpdate, Task, Trained
from lexfed.metrics.leakage import moved_rows, ranking, span
from lexfed.models.bilstm import INPUTS
from lexfed.params import Params
from lexfed.privacy.mechanism import NoPrivacy
from lexfed.seeds import Seed, derive, secret_normal
from lexfed.vocabulary.vectors import PublicTable
from lexfed.vocabulary.word import words
from lexfed.wire import Message, below

DOUBLINGS = 10  # of the noise, before a client gives up: a thousand times the first


@dataclass(frozen=True)
class SelfAudit:
    """The `[self_audit]` table."""

    limit: float | None = None  # recall at n above the prior's that a client lets pass, such as 0.1; none: no audit
    action: Literal["hold", "train_on", "noise"] = "hold"  # above the limit; what does not help ends in holding back
    candidates: int = 20_000  # words of the public table that are tried
    epochs: int = 3  # train_on: at most so many times what a client does in a round
    noise: float = 0.001  # noise: its deviation in lengths of the update at first, doubled until it helps
    colluding: bool = False  # with a rotation: also against who was given it

    def __post_init__(self) -> None:
        if self.limit is not None and not 0 <= self.limit < 1:
            raise ConfigError("self_audit.limit is a share of a client's words: at least 0 and below 1")
        if min(self.candidates, self.epochs) < 1 or not self.noise > 0:
            raise ConfigError("self_audit.candidates and self_audit.epochs are at least 1, self_audit.noise is above 0")


OFF = SelfAudit()


def check(audit: SelfAudit, method: str, model: str) -> None:
    if audit.limit is None:
        return
    if method not in ("fedevocab", "fedavg", "fedavg_finetune"):
        raise ConfigError(f"[self_audit] is for method = 'fedevocab', 'fedavg' and 'fedavg_finetune', not for '{method}'")
    if method == "fedevocab" and model != "bilstm":
        raise ConfigError("[self_audit] with method = 'fedevocab' needs model.name = 'bilstm'")


Attack = Callable[[Params, Client, ClientState], float]  # how the shared part moved -> excess


def excess(order: Tensor, truth: set[int], prior: Tensor) -> float:
    """Recall at n of an attacker's order, above that of the prior."""
    n = len(truth)
    found, known = (len(truth & set(ids[:n].tolist())) for ids in (order, prior))
    return (found - known) / n if n else 0.0


def row_reading(task: Task) -> Attack:
    """The rows of the word table that moved are the words; the first stands for unknown ones and tells nothing."""

    def attack(delta: Params, client: Client, state: ClientState) -> float:
        table = delta[task.model.word_table]
        moved = moved_rows(table)
        truth = {i for example in task.reader.read(client.train).examples for i in example.ids} - {0}
        return excess(moved[moved != 0], truth, torch.arange(1, len(table)))

    return attack


def span_reading(table: PrivateTable, limit: int, audit: SelfAudit) -> Attack:
    """`limit` is how many words of a text are read."""

    def attack(delta: Params, client: Client, state: ClientState) -> float:
        if not isinstance(table, WordTable):
            raise ConfigError("the span of an encoder's inputs is not audited: set model.name = 'bilstm'")
        public, first = table.public(state), [delta[name] for name in INPUTS if name in delta]
        if public is None or not first or first[0].shape[1] != public.dimension:
            return 0.0  # random vectors, or a private projection, or a private layer: no public row is in the span
        read = {word for text in client.train for word in words(text)[:limit]}
        tried = _head(public, audit.candidates)
        truth, prior = {i for word in read if (i := public.ids.get(word, len(tried))) < len(tried)}, torch.arange(len(tried))
        q = table.rotation(state) if audit.colluding else None
        views = [first] if q is None else [first, [matrix @ q.T for matrix in first]]  # G Q^T spans the x of rows x Q
        return max(excess(ranking(span(*view), tried), truth, prior) for view in views)

    return attack


@lru_cache(maxsize=4)
def _head(public: PublicTable, size: int) -> Tensor:  # (C, d)
    return torch.from_numpy(np.asarray(public.vectors[:size], dtype=np.float32))


Make = Callable[[LocalUpdate], Handler]


def audited(make: Make, update: LocalUpdate, attack: Attack, audit: SelfAudit, mechanism: object) -> Handler:
    """The handler that `make` builds of an update, audited. Without a limit, as it is."""
    limit = audit.limit
    if limit is None:
        return make(update)

    def handle(message: Message, client: Client, state: ClientState) -> tuple[Message, ClientState]:
        held = False

        def watched(params: Params, client: Client, started: ClientState, message: Message, seed: Seed) -> Trained:
            nonlocal held
            shared = below("model", message.arrays)
            for after in attempts(audit, update, params, client, started, message, seed):
                delta = {name: after.params[name] - value for name, value in shared.items()}
                # what is no number can't be judged
                if all(bool(v.isfinite().all()) for v in delta.values()) and attack(delta, client, started) <= limit:
                    return after
            held = True
            # an update of zeros; the private part is kept, unless it is no number: then the one from before
            sound = all(bool(value.isfinite().all()) for value in after.params.values())
            return replace(after, params={**(after.params if sound else params), **shared})

        reply, after = make(watched)(message, client, state)
        sent = Message() if held and isinstance(mechanism, NoPrivacy) else reply
        return sent, counted(HELD, int(held), state, after)

    return handle


def attempts(
    audit: SelfAudit, update: LocalUpdate, params: Params, client: Client, state: ClientState, message: Message, seed: Seed
) -> Iterator[Trained]:
    """What the client could send: as its method trains, then what its action makes of it."""
    after = update(params, client, state, message, seed)
    yield after
    if audit.action == "train_on":
        for number in range(audit.epochs):
            after = update(after.params, client, state, message, derive(seed, "on", number))
            yield after
    if audit.action == "noise":
        for number in range(DOUBLINGS):
            yield noised(after, below("model", message.arrays), audit.noise * 2**number, derive(seed, "noise", number))


def noised(after: Trained, shared: Params, multiplier: float, seed: Seed) -> Trained:
    """Gaussian noise on every shared number, its deviation that many lengths of the whole update."""
    length = torch.stack([(after.params[name] - value).norm() for name, value in shared.items()]).norm()
    params = dict(after.params)
    for name in shared:
        params[name] = params[name] + multiplier * length * secret_normal(derive(seed, name), *params[name].shape)
    return replace(after, params=params)
