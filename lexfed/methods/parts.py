"""What every method is built from: the configuration's tables, already turned into things."""

from collections.abc import Sequence
from dataclasses import dataclass

from lexfed.federation import Requests, Rounds, ServerState, request
from lexfed.methods.training import Task
from lexfed.optim import ServerOptimizer
from lexfed.privacy.mechanism import UNPAID, Account, Mechanism
from lexfed.privacy.sampling import Sampler
from lexfed.vocabulary.vectors import PublicTable
from lexfed.wire import ClientId


@dataclass(frozen=True)
class Parts:
    task: Task
    sampler: Sampler
    mechanism: Mechanism
    optimizer: ServerOptimizer
    rounds: int
    public: PublicTable | None = None
    shared_words: int = 0  # how many of its words the methods with one vocabulary know
    account: Account = UNPAID

    def loop(self) -> Rounds:
        return loop(self.sampler, self.mechanism, self.optimizer, self.account)


def loop(sampler: Sampler, mechanism: Mechanism, optimizer: ServerOptimizer, account: Account) -> Rounds:
    """Rounds in which one message goes to everybody: the model, and what the mechanism tells."""

    def requests(state: ServerState, cohort: Sequence[ClientId], ask: int) -> Requests:
        return dict.fromkeys(cohort, request(state, ask, **mechanism.tell(state.mechanism_state)))

    return Rounds(sampler, mechanism, optimizer, requests, account)
