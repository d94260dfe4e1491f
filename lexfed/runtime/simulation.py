"""Clients in this process, one after the other: the runtime that all others must equal, bit for
bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from lexfed.corpus.population import Population
from lexfed.experiment.assembly import Assembly
from lexfed.federation import (
    Ask,
    Federation,
    Handler,
    Layer,
    Method,
    Replies,
    Requests,
    gated,
    plain,
)
from lexfed.runtime.recording import Recorder
from lexfed.runtime.store import Store
from lexfed.wire import ClientId, Message, Verb, check, check_outgoing, echoing


@dataclass(frozen=True)
class Site:
    """Where clients live: the one place in which a request becomes a reply."""

    method: Method
    population: Population
    store: Store
    layers: Sequence[Layer] = ()  # around every handler, the outermost last
    recorder: Recorder | None = None

    @cached_property
    def handlers(self) -> dict[Verb, Handler]:
        handlers = dict(self.method.client)
        for layer in self.layers:
            handlers = {verb: layer(verb, handler) for verb, handler in handlers.items()}
        return handlers

    def answer(self, verb: Verb, client: ClientId, message: Message) -> Message | None:
        """The client's reply; None if it does not answer."""
        check(verb, "down", message)
        clock = (int(message.meta["step"]), int(message.meta["ask"]) - verb.prepares)
        before = self.store.load(client, clock)
        reply, after = self.handlers[verb](message, self.population.client(client), before)
        if reply is not None:
            check_outgoing(verb, reply, self.method.split)
            reply = echoing(message, reply)
        if verb.kind != "figures" and after is not before:  # what evaluation changes is discarded
            self.store.save(client, clock, after)
        if reply is not None and self.recorder is not None:
            self.recorder.up(verb, client, message, reply)
        return reply


def site_of(assembly: Assembly, store: Store, recorder: Recorder | None = None) -> Site:
    people = assembly.population
    if assembly.config.secrets == "system":  # clients keep theirs: nobody can derive it
        people = replace(people, secret=store.secret())
    return Site(assembly.method, people, store, assembly.layers, recorder)


def sequential(site: Site) -> Ask:
    def ask(verb: Verb, requests: Requests) -> Replies:
        for client, message in requests.items():
            reply = site.answer(verb, client, message)
            if reply is not None:
                yield client, reply

    return ask


def simulate(site: Site) -> Federation:
    ask = sequential(site)
    return gated(Federation(range(len(site.population)), ask, plain(ask)))
