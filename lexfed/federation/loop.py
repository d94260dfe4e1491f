"""The loop of rounds that every method runs, and who pays for them. This module knows neither
models nor text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from lexfed.core.errors import PrivacyError
from lexfed.core.params import Params
from lexfed.core.seeds import Seed, derive
from lexfed.federation.asking import Requests
from lexfed.federation.sampling import Sampler
from lexfed.federation.server_optimizer import Stepper
from lexfed.federation.state import ServerState, Steps, request
from lexfed.federation.sums import Federation, tapped
from lexfed.privacy import accounting
from lexfed.privacy.gaussian import ASKED
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


# --- that a server program pays for what it asks --------------------------------------------------
#
# Figures are the experimenter's. They are made without noise, so a server program can't ask for
# them; the study can, and a deployment has none. Under a promise, every ask of a charged verb is
# one release: a sum of updates, or a list that may take several exchanges at one clock. What was
# asked is held against what the ledger was charged, from one state to the next. Where users add
# noise themselves, a round moves the ledger only if it asks the user who was asked most, and the
# mechanism's state counts each of them.


def without_figures(federation: Federation) -> Federation:
    def look(verb: Verb, requests: Requests) -> None:
        if verb.kind == "figures":
            raise PrivacyError(
                f"'{verb.name}' is for figures, which nobody pays for: the server program can't "
                "ask for them, the study can (Method.study)"
            )

    return tapped(federation, down=look)


@dataclass
class Books:
    """Of one server program: what it asked for, and what it has paid."""

    local: bool  # users add the noise
    ahead: bool  # a charge is kept before anybody is asked
    state: ServerState
    releases: int = 0  # asked for and not yet paid; below 0: paid, and not yet asked for
    users: int = 0  # local: how often users were asked and not yet paid
    last: str = ""  # verb that was asked for
    lists: set[tuple[str, int]] = field(default_factory=set)

    def watched(self, federation: Federation) -> Federation:
        return tapped(federation, down=self._ask)

    def _ask(self, verb: Verb, requests: Requests) -> None:
        if not verb.charged:  # it has taken the promise away already
            return
        self.last = verb.name
        if verb.kind == "list":
            steps = {(verb.name, int(message.meta["step"])) for message in requests.values()}
            self.releases += len(steps - self.lists)
            self.lists |= steps
        elif self.local and verb.moves:
            self.users += len(requests)
        else:
            self.releases += 1
        if self.ahead:
            self.check()

    def settle(self, after: ServerState) -> None:
        """The next state, with what was charged on the way to it."""
        before, self.state = self.state, after
        if accounting.lacks(after.ledger, before.ledger) or self._lost(after):
            raise PrivacyError(
                "the server program's ledger holds less than was charged: what was released stays "
                "in it"
            )
        self.releases -= accounting.times(after.ledger) - accounting.times(before.ledger)
        self.users -= _asked(after, before)
        self.check()

    def _lost(self, after: ServerState) -> bool:
        """Local: whether a user was asked more often than the ledger says."""
        counts = _counts(after).values() if self.local else ()
        most = max((int(asked.max()) for asked in counts if len(asked)), default=0)
        return most > accounting.times(after.ledger)

    def check(self) -> None:
        if self.releases > 0 or self.users > 0:
            raise PrivacyError(
                f"the server program asked users for '{self.last}' without a charge: under "
                "[privacy] its ledger is charged for every ask (Rounds does it, parts.account)"
            )


def _asked(after: ServerState, before: ServerState) -> int:
    """How often users were asked; another model's count begins anew."""
    known = _counts(before)
    none = torch.zeros(1, dtype=torch.int64)
    return sum(
        max(0, int(counts.sum() - known.get(name, none).sum()))
        for name, counts in _counts(after).items()
    )


def _counts(state: ServerState) -> Params:
    """Of each user, as the mechanism keeps it."""
    return {
        name: counts
        for name, counts in state.mechanism_state.items()
        if name.startswith(f"{ASKED}/")
    }
