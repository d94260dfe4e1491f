"""What every averaged classifier is built from: the configuration's tables, already turned into
things.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lexfed.core.seeds import root
from lexfed.corpus.population import Population
from lexfed.federation import Requests, Rounds, ServerState, Study, paid_ahead_by, paid_by, request
from lexfed.federation.sampling import Sampler
from lexfed.federation.server_optimizer import ServerOptimizer
from lexfed.learning.defences import UNDEFENDED, Defences
from lexfed.learning.private_table import PrivatePart
from lexfed.learning.task import LocalUpdate, Task
from lexfed.learning.training_verbs import TRAIN
from lexfed.privacy.mechanism import UNPAID, Account, Mechanism
from lexfed.privacy.promise import Promise
from lexfed.vocabulary.tables.vectors import PublicTable
from lexfed.vocabulary.word import Tokenizer
from lexfed.wire import ClientId, Verb

UpdateLayer = Callable[[LocalUpdate, Any, PrivatePart], LocalUpdate]  # of its kind's task


def as_it_is(update: LocalUpdate, task: Any, private: PrivatePart) -> LocalUpdate:
    return update


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
    tokenizer: Tokenizer | None = None  # that all share; None: every client has its own
    defences: Defences = UNDEFENDED
    layer: UpdateLayer = as_it_is  # around what a client does to its model (self-audit, probes)
    people: Population | None = None
    study: Study | None = None
    promise: Promise | None = None

    @property
    def names(self) -> frozenset[str]:
        """Of the model's parameters: they do not depend on its word list."""
        return frozenset(self.task.model.init(1, root(0)))

    def loop(self, verb: Verb = TRAIN) -> Rounds:
        return loop(self.sampler, self.mechanism, self.optimizer, self.account, verb)


def loop(
    sampler: Sampler,
    mechanism: Mechanism,
    optimizer: ServerOptimizer,
    account: Account,
    verb: Verb = TRAIN,
) -> Rounds:
    """Rounds in which one message goes to everybody: the model, and what the mechanism tells."""

    def requests(state: ServerState, cohort: Sequence[ClientId], ask: int) -> Requests:
        return dict.fromkeys(cohort, request(state, ask, **mechanism.tell(state.mechanism_state)))

    pay = paid_ahead_by(account) if account.ahead else paid_by(account)
    return Rounds(sampler, mechanism, optimizer, verb, requests, pay)
