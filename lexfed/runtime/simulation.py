"""Clients in this process, one after the other: the runtime that all others must equal, bit for bit."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from lexfed.assembly import Assembly
from lexfed.federation import Ask, Federation, Requests, plain
from lexfed.privacy.sampling import Cohort
from lexfed.runtime.malice import layered
from lexfed.runtime.recording import Recorder
from lexfed.runtime.store import Store
from lexfed.seeds import Seed, derive, numpy_generator
from lexfed.wire import ClientId, Message, Verb, check, check_outgoing

Fate = Literal["well", "dropout", "lost", "stale"]


@dataclass(frozen=True)
class Site:
    """Where clients live: the one place in which a request becomes a reply."""

    assembly: Assembly
    store: Store
    recorder: Recorder | None = None

    def answer(self, verb: Verb, client: ClientId, message: Message) -> Message | None:
        """The client's reply; None if it dropped out."""
        check(verb, "down", message)
        clock = (int(message.meta["step"]), int(message.meta["ask"]))
        method, population = self.assembly.method, self.assembly.population
        # evaluation is for the experimenter: nobody drops out of it, and what it changes is discarded
        mishaps = Cohort() if verb == "evaluate" else self.assembly.config.cohort
        luck = fate(mishaps, derive(population.secret, "fate", client, *clock))
        if luck == "dropout":
            return None
        handler = layered(method.client[verb], verb, client, self.assembly)
        reply, after = handler(message, population.client(client), self.store.load(client, clock))
        check_outgoing(verb, reply, method.split_for(verb))
        if verb != "evaluate" and luck != "stale":
            self.store.save(client, clock, after)
        if luck == "lost":
            return None
        if self.recorder is not None:
            self.recorder.up(verb, client, message, reply)
        return reply


def fate(mishaps: Cohort, seed: Seed) -> Fate:
    draw = numpy_generator(seed).random()
    if draw < mishaps.dropout:
        return "dropout"
    if draw < mishaps.dropout + mishaps.lost:
        return "lost"
    return "stale" if draw < mishaps.dropout + mishaps.lost + mishaps.stale else "well"


def sequential(site: Site) -> Ask:
    def ask(verb: Verb, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        for client, message in requests.items():
            reply = site.answer(verb, client, message)
            if reply is not None:
                yield client, reply

    return ask


def simulate(site: Site) -> Federation:
    ask = sequential(site)
    return Federation(range(len(site.assembly.population)), ask, plain(ask))
