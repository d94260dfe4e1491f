"""Clients in this process, one after the other: the runtime that all others must equal, bit for
bit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from lexfed.core.errors import WireError
from lexfed.corpus.population import Client, Population
from lexfed.experiment.assembly import Assembly, chance, liars
from lexfed.experiment.config import Config
from lexfed.federation import (
    Answer,
    Ask,
    ClientState,
    Federation,
    Handler,
    Layer,
    Method,
    Replies,
    Requests,
    gated,
    plain,
    tapped,
)
from lexfed.runtime.recording import Recorder
from lexfed.runtime.store import Clock, Store
from lexfed.secure.identity import simulated
from lexfed.secure.member import securing
from lexfed.wire import (
    ClientId,
    Message,
    Verb,
    check,
    check_outgoing,
    echoing,
    flaw,
    left_the_numbers,
    misshapen,
)
from lexfed.wire.verbs import CLOCK


@dataclass(frozen=True)
class Site:
    """Where clients live: the one place in which a request becomes a reply."""

    method: Method
    population: Population
    store: Store
    layers: Sequence[Layer] = ()  # around every handler, the outermost last
    recorder: Recorder | None = None
    # the names of all parameters, where some are private
    parameters: frozenset[str] = frozenset()

    @cached_property
    def handlers(self) -> dict[Verb, Handler]:
        # the method's own handlers are honest: what a layer does to their replies comes after
        handlers = {verb: self._sound(verb, own) for verb, own in self.method.client.items()}
        for layer in self.layers:
            handlers = {verb: layer(verb, handler) for verb, handler in handlers.items()}
        return handlers

    def answer(self, verb: Verb, client: ClientId, message: Message) -> Message | None:
        """The client's reply; None if it does not answer."""
        check(verb, "down", message)
        clock = clock_of(verb, message)
        before = self.store.load(client, clock)
        reply, after = self.handlers[verb](message, self.population.client(client), before)
        if reply is not None:
            self._gate(verb, reply, before, after)
            reply = echoing(message, reply)
        if verb.kind != "figures" and after is not before:  # what evaluation changes is discarded
            self.store.save(client, clock, after)
        if reply is not None and self.recorder is not None:
            self.recorder.up(verb, client, message, reply)
        return reply

    def _gate(self, verb: Verb, reply: Message, before: ClientState, after: ClientState) -> None:
        known = {*self.parameters, *before.params, *after.params}
        check_outgoing(verb, reply, self.method.split, known)

    def _sound(self, verb: Verb, handler: Handler) -> Handler:
        """A server leaves out replies that it can't use. If a method's own handler makes one, its
        author should hear of it. (How long an update is, is left to the server: it counts those
        that are too long, with the reason.)
        """

        def handle(message: Message, client: Client, before: ClientState) -> Answer:
            answer = handler(message, client, before)
            if not _is_answer(answer):
                raise WireError(
                    f"the handler of '{verb.name}' must return a Message (or None) and a "
                    f"ClientState, not {_shown(answer)}"
                )
            reply, after = answer
            if reply is None:
                return answer
            self._gate(verb, reply, before, after)
            said = echoing(message, reply)
            if misshapen(verb, message, said) is None:
                return answer
            wrong = flaw(verb, message, said)
            # training may explode: the server counts that, and ends
            if wrong is not None and not left_the_numbers(wrong):
                raise WireError(f"the handler of '{verb.name}' made a reply of no use: {wrong}")
            return answer

        return handle


def clock_of(verb: Verb, request: Message) -> Clock:
    """The moment at which a request finds a client's state."""
    return int(request.meta["step"]), int(request.meta["ask"]) - verb.prepares


def _is_answer(answer: object) -> bool:
    return (
        isinstance(answer, tuple)
        and len(answer) == 2
        and (answer[0] is None or isinstance(answer[0], Message))
        and isinstance(answer[1], ClientState)
    )


def _shown(answer: object) -> str:
    if not isinstance(answer, tuple):
        return type(answer).__name__
    return f"({', '.join(type(part).__name__ for part in answer)})"


def site_of(assembly: Assembly, store: Store, recorder: Recorder | None = None) -> Site:
    people, config = assembly.population, assembly.config
    if config.secrets == "system":  # clients keep theirs: nobody can derive it
        people = replace(people, secret=store.secret())
    layers = (*liars(config, people), *chance(config, people))
    site = Site(assembly.method, people, store, layers, recorder, assembly.parameters)
    return _secured(site, config) if config.secure.sums else site


def _secured(site: Site, config: Config) -> Site:
    """Clients that add up securely. What a liar sends, it masks like everybody."""
    # the gate sees what a handler says before masks hide it
    client = {verb: site._sound(verb, own) for verb, own in site.method.client.items()}
    people = site.population
    for layer in liars(config, people):
        client = {verb: layer(verb, handler) for verb, handler in client.items()}
    member = simulated(config.secure, people, site.store.root)
    method = replace(site.method, client=securing(client, member))
    return replace(site, method=method, layers=chance(config, people))


def sequential(site: Site) -> Ask:
    def ask(verb: Verb, requests: Requests) -> Replies:
        for client, message in requests.items():
            reply = site.answer(verb, client, message)
            if reply is not None:
                yield client, reply

    return ask


def simulate(site: Site) -> Federation:
    ask = sequential(site)
    return checked(gated(Federation(range(len(site.population)), ask, plain(ask))), site.method)


def checked(federation: Federation, method: Method) -> Federation:
    """A server program that asks for what can't be answered hears of it before anybody is asked."""

    def look(verb: Verb, requests: Requests) -> None:
        if verb not in method.client:
            known = ", ".join(f"'{known.name}'" for known in method.client)
            raise WireError(
                f"'{verb.name}' was asked, and Method.client has no handler for it (it has {known})"
            )
        if not isinstance(requests, Mapping):
            raise WireError(
                f"requests of '{verb.name}' must be a dict, a Message for each client: "
                "dict.fromkeys(federation.clients, clock(state, 0))"
            )
        for message in {id(message): message for message in requests.values()}.values():
            _check_request(verb, message)

    return tapped(federation, down=look)


def _check_request(verb: Verb, message: Message) -> None:
    if not isinstance(message, Message):
        raise WireError(
            f"a request of '{verb.name}' is a Message, not {type(message).__name__}; make it with "
            "clock(state, 0)"
        )
    missing = [key for key in CLOCK if key not in message.meta]
    if missing:
        raise WireError(
            f"a request of '{verb.name}' lacks '{missing[0]}'; make it with clock(state, 0)"
        )
    check(verb, "down", message)
