"""Clients in this process, one after the other: the runtime that all others must equal, bit for bit."""

from collections.abc import Iterator
from dataclasses import dataclass

from lexfed.assembly import Assembly
from lexfed.federation import Ask, Federation, Requests, plain
from lexfed.runtime.store import Store
from lexfed.wire import ClientId, Message, Verb, check, check_outgoing


@dataclass(frozen=True)
class Site:
    """Where clients live: the one place in which a request becomes a reply."""

    assembly: Assembly
    store: Store

    def answer(self, verb: Verb, client: ClientId, message: Message) -> Message:
        check(verb, "down", message)
        clock = (int(message.meta["step"]), int(message.meta["ask"]))
        method = self.assembly.method
        state = self.store.load(client, clock)
        reply, after = method.client[verb](message, self.assembly.population.client(client), state)
        check_outgoing(verb, reply, method.split)
        if verb != "evaluate":  # what evaluation changes is discarded
            self.store.save(client, clock, after)
        return reply


def sequential(site: Site) -> Ask:
    def ask(verb: Verb, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        for client, message in requests.items():
            yield client, site.answer(verb, client, message)

    return ask


def simulate(site: Site) -> Federation:
    ask = sequential(site)
    return Federation(range(len(site.assembly.population)), ask, plain(ask))
