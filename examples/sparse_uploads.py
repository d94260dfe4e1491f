"""A verb of one's own: clients send the largest numbers of their update, and where they stand.

client k: D_k <- W_k - W after its local epochs; send the `share` largest of D_k, and their places
server:   W <- W + sum_k (n_k / n) D_k, of what was sent      (top-k: Aji and Heafield, 2017)

lexfed run examples/own_method.toml --set method=sparse_uploads:METHOD
"""

from dataclasses import dataclass, replace

import torch

import lexfed
from lexfed.core.params import ALL_SHARED
from lexfed.federation import request
from lexfed.learning.evaluation import evaluator
from lexfed.learning.private_table import Kept
from lexfed.learning.task import plain_update
from lexfed.learning.training_verbs import EVALUATE
from lexfed.wire import Array, Form, Verb, below
from lexfed.wire.verbs import ANY, CLOCK, WHOLE

# "k" is a length that both have, and the request says the last place; such columns do not add up by
# themselves, so it is a list
SPARSE = Verb(
    "sparse",
    down=Form({"model/": ANY}, (*CLOCK, "last")),
    up=Form(
        {
            "places": Array(WHOLE, ("k",), low=0, most="last"),
            "values": Array(shape=("k",)),
            "weight": Array(low=1),
        },
        needs=(("places", "values", "weight"),),
    ),
    kind="list",
)


@dataclass(frozen=True)
class Sparse:
    """The `[sparse_uploads]` table."""

    share: float = 0.1  # of the numbers of an update that are sent

    def __post_init__(self):
        if not 0 < self.share <= 1:
            raise lexfed.LexfedError("sparse_uploads.share must be above 0 and at most 1")


def flat(params):
    return torch.cat([params[name].flatten() for name in sorted(params)])


def moved(params, step):
    """The parameters, each moved by its part of the step."""
    names = sorted(params)
    parts = step.split([params[name].numel() for name in names])
    return {n: params[n] + part.view_as(params[n]) for n, part in zip(names, parts, strict=True)}


def sparse_uploads(parts, options):
    train = plain_update(parts.task)

    def send(message, client, state):
        model = below("model", message.arrays)
        seed = lexfed.derive(client.secret, "train", message.meta["step"], message.meta["ask"])
        update = flat(train(model, client, state, message, seed).params) - flat(model)
        places = update.abs().topk(max(1, round(options.share * len(update)))).indices
        weight = torch.tensor(float(len(client.train)))
        values = weight * update[places]
        return lexfed.Message({"places": places.int(), "values": values, "weight": weight}), state

    def server(federation, seed, state):
        def init(state):
            return replace(state, params=parts.task.init(lexfed.derive(seed, "init")))

        state = yield from lexfed.once(state, "init", init)
        while state.round < parts.rounds:
            here = lexfed.derive(seed, "round", state.round)
            cohort = parts.sampler.sample(federation.clients, lexfed.derive(here, "cohort"))
            total, weight = torch.zeros_like(flat(state.params)), 0.0
            message = request(state, 0, last=len(total) - 1)
            for _, reply in federation.ask(SPARSE, dict.fromkeys(cohort, message)):
                total.index_add_(0, reply.arrays["places"].long(), reply.arrays["values"])
                weight += float(reply.arrays["weight"])
            params = moved(state.params, total / weight) if weight else state.params
            state = replace(state, params=params, round=state.round + 1, step=state.step + 1)
            yield state
        return state

    client = {SPARSE: send, EVALUATE: evaluator(parts.task, ALL_SHARED, Kept(parts.task.reader))}
    return lexfed.Method(client, server, split=ALL_SHARED, rounds=parts.rounds)


METHOD = lexfed.Entry("sparse_uploads", lexfed.CLASSIFIER, sparse_uploads, Sparse)
