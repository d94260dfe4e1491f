"""The loop of rounds that every method runs. This module knows neither models nor text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lexfed.core.seeds import Seed, derive
from lexfed.federation.asking import Requests
from lexfed.federation.sampling import Sampler
from lexfed.federation.server_optimizer import Stepper
from lexfed.federation.state import ServerState, Steps, request
from lexfed.federation.sums import Federation
from lexfed.privacy.mechanism import UNPAID, Account, Asked, Releaser
from lexfed.wire import ClientId, Verb

Pay = Callable[[ServerState, Asked], Steps]  # the state with the exchange charged to its ledger


def paid_by(account: Account) -> Pay:
    """Charged with the release that it pays for."""

    def pay(state: ServerState, asked: Asked) -> Steps:
        yield from ()
        return _charged(account, state, asked)

    return pay


def paid_ahead_by(account: Account) -> Pay:
    """Charged, and kept, before anything is released: a repeated round pays again."""

    def pay(state: ServerState, asked: Asked) -> Steps:
        state = _charged(account, state, asked)
        state = replace(state, step=state.step + 1)
        yield state
        return state

    return pay


UNPAID_ROUNDS = paid_by(UNPAID)  # what is released without noise is written down


def _charged(account: Account, state: ServerState, asked: Asked) -> ServerState:
    ledger, kept = account.charge(state.ledger, asked, state.mechanism_state)
    return replace(state, ledger=ledger, mechanism_state=kept)


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
    pay: Pay = UNPAID_ROUNDS
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
                # two forks of one run never share noise: their difference would be bare
                noise = derive(here, "noise", ask, *state.forks)
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
