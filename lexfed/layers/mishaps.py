"""What goes wrong with clients, by chance: `[cohort]` says how often.

    dropout   it never answers
    lost      it trains and keeps what it learnt, and dies before it sends
    stale     it sends, and loses what it learnt: next time it comes with its old state

Evaluation is for the experimenter: nothing goes wrong in it.
"""

from typing import Literal

from lexfed.core.seeds import Seed, derive, numpy_generator
from lexfed.corpus.population import Client
from lexfed.federation import Answer, ClientState, Handler, Layer
from lexfed.federation.sampling import Cohort
from lexfed.wire import Message, Verb

Fate = Literal["well", "dropout", "lost", "stale"]


def mishaps(options: Cohort, secret: Seed) -> Layer:
    """`secret` is the simulation's, not a client's: it is chance that strikes."""

    def layer(verb: Verb, handler: Handler) -> Handler:
        def handle(message: Message, client: Client, state: ClientState) -> Answer:
            clock = (int(message.meta["step"]), int(message.meta["ask"]))
            # of a sum that takes several exchanges, one may lose somebody at any of them
            path = (*clock, verb.name) if verb.phase else clock
            luck = fate(options, derive(secret, "fate", client.id, *path))
            if luck == "dropout":
                return None, state
            reply, after = handler(message, client, state)
            return None if luck == "lost" else reply, state if luck == "stale" else after

        return handler if verb.kind == "figures" else handle

    return layer


def fate(options: Cohort, seed: Seed) -> Fate:
    draw = numpy_generator(seed).random()
    if draw < options.dropout:
        return "dropout"
    if draw < options.dropout + options.lost:
        return "lost"
    return "stale" if draw < options.dropout + options.lost + options.stale else "well"
