"""The federation: asking clients, adding up what they say, and the loop of rounds that every method runs.

    server program ── ask / total ──> runtime ──> handlers
          │ <──────── replies, or their sum ────────┘
          └─ yields ServerState ──> whoever consumes it

A runtime is a function (`Ask`), and a sum is a function of it (`Total`). A method is two halves: handlers by verb on the
client, a generator on the server. This module knows neither models nor text.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lexfed.corpus.population import Client
from lexfed.optim import Stepper
from lexfed.params import ALL_SHARED, ParameterSplit, Params, Update, add_all
from lexfed.privacy.accounting import Ledger
from lexfed.privacy.mechanism import UNPAID, Account, Asked, Releaser
from lexfed.privacy.robust import Rule, heard
from lexfed.privacy.sampling import Sampler
from lexfed.seeds import Seed, derive
from lexfed.wire import ClientId, Message, Meta, Verb, size, under, unpack, well_formed

# At most one reply per client, in the order asked; who is missing or malformed has dropped out.
Requests = Mapping[ClientId, Message]
Ask = Callable[[Verb, Requests], Iterator[tuple[ClientId, Message]]]


@dataclass(frozen=True)
class Sum:
    """What a cohort's replies add up to."""

    update: Update = field(default_factory=dict)
    clients: int = 0
    bytes_up: int = 0


def add_up(sums: Iterable[Sum]) -> Sum:
    """In the order given, tensors as they come."""
    clients = bytes_up = 0

    def updates() -> Iterator[Update]:
        nonlocal clients, bytes_up
        for part in sums:
            clients, bytes_up = clients + part.clients, bytes_up + part.bytes_up
            yield part.update

    update = add_all(updates())
    return Sum(update, clients, bytes_up)


Total = Callable[[Verb, Requests], Sum]

BLOCKS = 16


def blocks(cohort: Sequence[ClientId]) -> list[Sequence[ClientId]]:
    """The cohort in at most 16 runs of equal length: a function of the cohort alone, never of the workers.

    Replies are added within a block, then the blocks in order. A block is the unit of work a worker takes, so only sums
    cross process borders, and the result does not depend on who made them.
    """
    length = -(-len(cohort) // BLOCKS) or 1
    return [cohort[start : start + length] for start in range(0, len(cohort), length)]


def add_replies(verb: Verb, requests: Requests, replies: Iterator[tuple[ClientId, Message]]) -> Sum:
    """The sum of a block. A malformed reply counts as none: its client has dropped out."""
    return add_up(
        Sum(unpack(reply.arrays), 1, size(reply))
        for client, reply in replies
        if well_formed(verb, requests[client], reply)
    )  # fmt: skip


def plain(ask: Ask) -> Total:
    """Add up here, block by block."""

    def total(verb: Verb, requests: Requests) -> Sum:
        cohort = [{client: requests[client] for client in block} for block in blocks(list(requests))]
        return add_up(add_replies(verb, asked, ask(verb, asked)) for asked in cohort)

    return total


def robust(ask: Ask, rule: Rule) -> Total:
    """Not a sum of blocks: every reply comes to this process, whoever answered for the client."""

    def total(verb: Verb, requests: Requests) -> Sum:
        sizes: list[int] = []

        def updates() -> Iterator[Params]:
            for client, reply in ask(verb, requests):
                update = heard(verb, requests[client], reply)
                if update is not None:
                    sizes.append(size(reply))
                    yield update

        return Sum(rule(updates()), len(sizes), sum(sizes))

    return total


@dataclass(frozen=True)
class Federation:
    """All that a server program sees of the world."""

    clients: Sequence[ClientId]
    ask: Ask
    total: Total


@dataclass(frozen=True)
class ServerState:
    """What the server knows between two steps: exactly what a resumed run would miss."""

    params: Params = field(default_factory=dict)
    opt_state: Mapping[str, Params] = field(default_factory=dict)
    mechanism_state: Params = field(default_factory=dict)
    vocabulary: bytes = b""  # the list that was agreed on (`vocabulary.agreed`)
    ledger: Ledger = ()  # what was released with noise, and has to be paid for
    round: int = 0
    step: int = 0  # counts yields: the server's clock
    done: frozenset[str] = frozenset()


Steps = Generator[ServerState, None, ServerState]


def request(state: ServerState, ask: int, **meta: Meta) -> Message:
    """The model, stamped with the clock: the state's step, and the number of this ask within the step."""
    clock = {"step": state.step, "ask": ask, "round": state.round}
    return Message(under("model", state.params), {**clock, **meta})


def broadcast(state: ServerState, cohort: Sequence[ClientId], ask: int) -> Requests:
    return dict.fromkeys(cohort, request(state, ask))


@dataclass(frozen=True)
class Rounds:
    """The loop: choose a cohort, ask it to train, release what its sum says, take a step.

    It contains no branch on method, runtime or defence: a new need is a layer on ask, a layer on a handler, or a Mechanism.
    """

    sampler: Sampler
    mechanism: Releaser
    optimizer: Stepper
    requests: Callable[[ServerState, Sequence[ClientId], int], Requests] = broadcast
    account: Account = UNPAID
    group: str = ""  # of users, where rounds are held with several that have nobody in common
    since: int = 0  # the round that counts as the first: where cohorts are to be those of another run
    verb: Verb = "train"
    asks: int = 1  # exchanges between two states that are kept: FedSGD makes many

    def __call__(self, federation: Federation, state: ServerState, until: int, seed: Seed) -> Steps:
        while state.round < until:
            here = derive(seed, "round", state.round - self.since)
            cohort = self.sampler.sample(federation.clients, derive(here, "cohort"))
            expected = self.sampler.expected_size(len(federation.clients))
            for ask in range(self.asks):
                asked = Asked(cohort, expected, len(federation.clients), state.params, self.group)
                state = replace(state, ledger=self.account.charge(state.ledger, asked, state.mechanism_state))
                if self.account.ahead:  # paid for before it is released: a repeated round pays again
                    state = replace(state, step=state.step + 1)
                    yield state
                total = federation.total(self.verb, self.requests(state, cohort, ask))
                noise = derive(here, "noise", ask)
                update, kept = self.mechanism.release(total.update, asked, state.mechanism_state, noise)
                params, slots = self.optimizer.step(state.params, update, state.opt_state)
                state = replace(state, params=params, opt_state=slots, mechanism_state=kept)
            state = replace(state, round=state.round + 1, step=state.step + 1)
            yield state
        return state


def once(state: ServerState, name: str, work: Callable[[ServerState], ServerState]) -> Steps:
    """One-off work between rounds, skipped by a run that resumes behind it."""
    if name not in state.done:
        after = work(state)
        state = replace(after, step=state.step + 1, done=state.done | {name})
        yield state
    return state


@dataclass(frozen=True)
class ClientState:
    """What a client keeps between rounds. It never leaves the client."""

    params: Params = field(default_factory=dict)
    blobs: Mapping[str, bytes] = field(default_factory=dict)


Handler = Callable[[Message, Client, ClientState], tuple[Message, ClientState]]


# Figures of a state; at the last round all of them, on the way what is cheap.
Score = Callable[[Federation, ServerState, bool], Mapping[str, Any]]


def never(state: ServerState) -> bool:
    return False


@dataclass(frozen=True)
class Method:
    """Client half, server half, and the names that may never travel."""

    client: Mapping[Verb, Handler]
    server: Callable[[Federation, Seed, ServerState], Steps]
    split: ParameterSplit
    rounds: int
    open_verbs: frozenset[Verb] = frozenset()  # in which, knowingly, nothing is private (a warm start by FedAvg)
    # what the experimenter does around it, where it is not what classifiers need
    score: Score | None = None
    artifacts: Callable[[ServerState, Path], None] | None = None
    # a simulation: clients of this machine hold by reference what the server holds; True: they did before a resume
    hold: Callable[[ServerState, bool], None] | None = None
    summarise: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]] | None = None  # figures of all records together
    milestone: Callable[[ServerState], bool] = never  # states of which all figures are due, though no round has ended
    threads: bool = False  # its handlers hold no lock and share memory: workers are threads, not processes

    def split_for(self, verb: Verb) -> ParameterSplit:
        return ALL_SHARED if verb in self.open_verbs else self.split
