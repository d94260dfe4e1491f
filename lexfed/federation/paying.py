"""That a server program pays for what it asks: a layer around the federation that it is handed.

Figures are the experimenter's. They are made without noise, so a server program can't ask for them;
the study can, and a deployment has none.

Under a promise, every ask of a charged verb is one release: a sum of updates, or a list that may
take several exchanges at one clock. What was asked is held against what the ledger was charged,
from one state to the next. Where users add noise themselves, a round moves the ledger only if it
asks the user who was asked most, and the mechanism's state counts each of them.
"""

from dataclasses import dataclass, field

import torch

from lexfed.core.errors import PrivacyError
from lexfed.core.params import Params
from lexfed.federation.asking import Requests
from lexfed.federation.state import ServerState
from lexfed.federation.sums import Federation, tapped
from lexfed.privacy import accounting
from lexfed.privacy.gaussian import ASKED
from lexfed.wire import Verb


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
        elif self.local:
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
