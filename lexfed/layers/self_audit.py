"""Self-audit: before it sends, a client attacks its own upload, as the server could.

It knows its own words, so it can say how many of them the closed-form attacks of `metrics.leakage`
would find.

    client k:  after <- U(params)                                        as its method trains
               excess <- recall at n of the attack - that of the prior   n distinct words; the
                                                                         prior is the public order
               auc    <- of the sentence attack, own sentences     decoys: `metrics.decoys`
                         against decoys
               while excess > limit or auc > sentences:
                   train on, or add more noise; if that is all, hold back

Row reading where a word table travels (FedAvg: it finds everything, so such a client never sends).
Span ranking of the first shared matrices against the public table that the client started from
where only the body does (FedeVocab); if the model drops inputs, with their masks modelled. Where
there is neither, nothing can be read in closed form, and the upload goes out.

Whom it protects from: a server with every public file. With a rotation, a server that lacks it;
`colluding = true` also tries one to which a client gave it. A server that finds a rotation in the
uploads of many clients (`gram`, of an audit) is one of these: no client can see it coming. It is
judged before clipping, rounding and a mechanism's noise, which add nothing. It tests known attacks
on one upload and is no guarantee. Noise is not differential privacy: it has no epsilon. What goes
out instead of a held-back upload: see `learning.holding_back`. The client keeps the private part it
trained.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lexfed.core.devices import at_home, device_of, placed
from lexfed.core.errors import ConfigError
from lexfed.core.params import Params
from lexfed.core.seeds import Seed, derive, numpy_generator, secret_normal
from lexfed.corpus.population import Client
from lexfed.federation import ClientState
from lexfed.learning.moved import since, whole
from lexfed.learning.parts import UpdateLayer
from lexfed.learning.private_table import PrivatePart
from lexfed.learning.task import LocalUpdate, Task, Trained
from lexfed.metrics.decoys import decoys
from lexfed.metrics.leakage import Spectrum, auc, moved_rows, sentence_scores, span
from lexfed.metrics.masked_span import masked_ranking
from lexfed.models.model import input_dropout, inputs_of
from lexfed.vocabulary.splitting import words
from lexfed.vocabulary.tables.vectors import PublicTable
from lexfed.wire import Message, below

JUDGED = 60  # own sentences at most, and decoys
DOUBLINGS = 10  # of the noise, before a client gives up: a thousand times the first


@dataclass(frozen=True)
class SelfAudit:
    """The `[self_audit]` table."""

    # the most that an attack may find of a client's words, as a share beyond what word frequencies
    # alone would guess, such as 0.1; none: no self-audit
    limit: float | None = None
    # the most that the sentence attack may tell of a client's sentences, as an AUC (0.5 is chance);
    # none: not judged
    sentences: float | None = 0.75
    # what a client does with an upload above the limit: hold it back, train on, or add noise; if
    # that does not help, it holds it back
    action: Literal["hold", "train_on", "noise"] = "hold"
    candidates: int = 20_000  # words of the public table that are tried
    epochs: int = 3  # train_on: at most so many times what a client does in a round
    # noise: its deviation in lengths of the update at first, doubled until it helps
    noise: float = 0.001
    colluding: bool = False  # with a rotation: also against who was given it

    def __post_init__(self) -> None:
        if self.limit is not None and not 0 <= self.limit < 1:
            raise ConfigError(
                "self_audit.limit is a share of a client's words: at least 0 and below 1"
            )
        if self.sentences is not None and not 0.5 <= self.sentences <= 1:
            raise ConfigError("self_audit.sentences is an AUC: at least 0.5 (chance) and at most 1")
        if min(self.candidates, self.epochs) < 1 or not self.noise > 0:
            raise ConfigError(
                "self_audit.candidates and self_audit.epochs are at least 1, self_audit.noise is "
                "above 0"
            )


OFF = SelfAudit()


@dataclass(frozen=True)
class Told:
    """What an upload tells."""

    words: float = 0.0  # recall at n above the prior's
    sentences: float = 0.5  # AUC


NOTHING = Told()
Attack = Callable[[Params, Client, ClientState], Told]  # of how the shared part moved


def excess(order: Tensor, truth: set[int], prior: Tensor) -> float:
    """Recall at n of an attacker's order, above that of the prior."""
    n = len(truth)
    found, known = (len(truth & set(ids[:n].tolist())) for ids in (order, prior))
    return (found - known) / n if n else 0.0


def reading(task: Task, private: PrivatePart, audit: SelfAudit) -> Attack:
    """By the rows of a word table, if it travels; else by the span of what multiplies word
    vectors.
    """
    rows, span = row_reading(task), span_reading(task, private, audit)

    def attack(delta: Params, client: Client, state: ClientState) -> Told:
        return (rows if task.model.word_table in delta else span)(delta, client, state)

    return attack


def row_reading(task: Task) -> Attack:
    """The rows of the word table that moved are the words; the first stands for unknown ones and
    tells nothing. Sentences are not judged: who reads all words needs no guess.
    """

    def attack(delta: Params, client: Client, state: ClientState) -> Told:
        table = delta[task.model.word_table]
        moved = moved_rows(table)
        truth = {i for example in task.reader.read(client.train).examples for i in example.ids} - {
            0
        }
        return Told(excess(moved[moved != 0], truth, torch.arange(1, len(table))))

    return attack


def span_reading(task: Task, private: PrivatePart, audit: SelfAudit) -> Attack:
    inputs, rate = inputs_of(task.model), input_dropout(task.model)

    def attack(delta: Params, client: Client, state: ClientState) -> Told:
        public, first = private.public(state), [delta[name] for name in inputs if name in delta]
        if public is None or not first or first[0].shape[1] != public.dimension:
            # random vectors, or a private projection, or a private layer: no public row is in the
            # span
            return NOTHING
        tried, ids = _head(public, audit.candidates), public.ids
        size = len(tried)
        texts = (words(text)[: task.options.max_length] for text in client.train)
        own = [[i for word in text if (i := ids.get(word, size)) < size] for text in texts]
        truth, prior = {i for text in own for i in text}, torch.arange(size)
        q = private.rotation(state) if audit.colluding else None
        # G Q^T spans the x of rows x Q
        views = [first] if q is None else [first, [matrix @ q.T for matrix in first]]
        spans = [span(*view) for view in views]
        found = [excess(masked_ranking(one, tried, rate), truth, prior) for one in spans]
        judged = [text for text in own if text] if audit.sentences is not None else []
        told = [sentences_told(one, judged, tried, client) for one in spans if judged]
        return Told(max(found), max(told, default=NOTHING.sentences))

    return attack


def sentences_told(
    spectrum: Spectrum, own: Sequence[Sequence[int]], tried: Tensor, client: Client
) -> float:
    """The AUC of own sentences against decoys."""
    seed = derive(client.secret, "decoys")
    some = numpy_generator(derive(seed, "own")).permutation(len(own))[:JUDGED]
    others = decoys(own, tried, JUDGED, seed)
    if not others:
        return NOTHING.sentences
    ids = [np.array(own[i]) for i in some] + others
    vectors = tried[torch.from_numpy(np.concatenate(ids))]
    scores = sentence_scores(spectrum, torch.split(vectors, [len(one) for one in ids]))
    return auc(scores[: len(some)], scores[len(some) :])


@lru_cache(maxsize=4)
def _head(public: PublicTable, size: int) -> Tensor:  # (C, d)
    return torch.from_numpy(np.asarray(public.vectors[:size], dtype=np.float32))


def self_audit(audit: SelfAudit) -> UpdateLayer:
    """A layer around what a client does to its model: what tells too much is held back."""

    def layer(update: LocalUpdate, task: Task, private: PrivatePart) -> LocalUpdate:
        return (
            update
            if audit.limit is None
            else audited(update, reading(task, private, audit), audit, audit.limit)
        )

    return layer


def audited(update: LocalUpdate, attack: Attack, audit: SelfAudit, limit: float) -> LocalUpdate:
    def passes(told: Told) -> bool:
        return told.words <= limit and (
            audit.sentences is None or told.sentences <= audit.sentences
        )

    def watched(
        params: Params, client: Client, state: ClientState, message: Message, seed: Seed
    ) -> Trained:
        shared = placed(below("model", message.arrays), device_of(params))
        for after in attempts(audit, update, params, client, state, message, seed):
            # from the very tensors that training began with, as the upload is made
            moves = {name: since(after.params, name, params[name]) for name in shared}
            delta = at_home({name: whole(move, params[name]) for name, move in moves.items()})
            # what is no number can't be judged
            if all(bool(v.isfinite().all()) for v in delta.values()) and passes(
                attack(delta, client, state)
            ):
                return after
        # the private part is kept, unless it is no number: then the one from before
        sound = all(bool(value.isfinite().all()) for value in after.params.values())
        return replace(
            after, params={**(after.params if sound else params), **shared}, held_back=True
        )

    return watched


def attempts(
    audit: SelfAudit,
    update: LocalUpdate,
    params: Params,
    client: Client,
    state: ClientState,
    message: Message,
    seed: Seed,
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
            yield noised(
                after,
                placed(below("model", message.arrays), device_of(after.params)),
                audit.noise * 2**number,
                derive(seed, "noise", number),
            )


def noised(after: Trained, shared: Params, multiplier: float, seed: Seed) -> Trained:
    """Gaussian noise on every shared number, its deviation that many lengths of the whole
    update.
    """
    length = torch.stack(
        [(after.params[name] - value).norm() for name, value in shared.items()]
    ).norm()
    params = dict(after.params)
    for name in shared:
        drawn = secret_normal(derive(seed, name), *params[name].shape).to(params[name].device)
        params[name] = params[name] + multiplier * length * drawn
    return replace(after, params=params)
