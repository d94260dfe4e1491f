"""The loop of rounds that every method runs. This module knows neither models nor text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lexfed.core.seeds import Seed, derive
from lexfed.federation.asking import Requests
from lexfed.federation.sampling import Sampler
from lexfed.federation.server_optimizer import Stepper
from lexfed.federation.state import ServerState, Steps, request
from lexfed.federation.sums import Federation
from lexfed.privacy.mechanism import Account, Asked, Releaser
from lexfed.wire import ClientId, Verb

Pay = Callable[[ServerState, Asked], Steps]  # the state with the exchange charged to its ledger


def for_nothing(state: ServerState, asked: Asked) -> Steps:
    """Nothing is promised, so nothing is charged."""
    yield from ()
    return state


def paid_by(account: Account) -> Pay:
    """Charged with the release that it pays for."""

    def pay(state: ServerState, asked: Asked) -> Steps:
        yield from ()
        return replace(state, ledger=account.charge(state.ledger, asked, state.mechanism_state))

    return pay


def paid_ahead_by(account: Account) -> Pay:
    """Charged, and kept, before anything is released: a repeated round pays again."""

    def pay(state: ServerState, asked: Asked) -> Steps:
        ledger = account.charge(state.ledger, asked, state.mechanism_state)
        state = replace(state, ledger=ledger, step=state.step + 1)
        yield state
        return state

    return pay


def broadcast(state: ServerState, cohort: Sequence[ClientId], ask: int) -> Requests:
    return dict.fromkeys(cohort, request(state, ask))


@dataclass(frozen=True)
class Rounds:
    """The loop: choose a cohort, ask it to train, release what its sum says, take a step.

    It contains no branch on method, runtime or defence: a new need is a layer on ask, a layer on a
    handler, or a Mechanism.
    """

    sampler: Sampler
    mechanism: Releaser
    optimizer: Stepper
    verb: Verb
    requests: Callable[[ServerState, Sequence[ClientId], int], Requests] = broadcast
    pay: Pay = for_nothing
    asks: int = 1  # exchanges between two states that are kept: FedSGD makes many

    def __call__(
        self, federation: Federation, state: ServerState, until: int, seed: Seed, first: int = 0
    ) -> Steps:
        """Rounds up to `until`. Their randomness is counted from round `first` on."""
        while state.round < until:
            here = derive(seed, "round", state.round - first)
            cohort = self.sampler.sample(federation.clients, derive(here, "cohort"))
            expected = self.sampler.expected_size(len(federation.clients))
            for ask in range(self.asks):
                asked = Asked(cohort, expected, len(federation.clients), state.params)
                state = yield from self.pay(state, asked)
                total = federation.total(self.verb, self.requests(state, cohort, ask))
                noise = derive(here, "noise", ask)
                update, kept = self.mechanism.release(
                    total.update, asked, state.mechanism_state, noise
                )
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
