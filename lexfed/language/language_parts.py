"""Language models of users: from the tables of a configuration to what their method is built
from.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from lexfed.core.errors import ConfigError
from lexfed.core.seeds import root
from lexfed.corpus.population import Data, Population
from lexfed.federation import Rounds, Study
from lexfed.federation.method import Entry, Kind
from lexfed.federation.sampling import build as sampler_of
from lexfed.federation.server_optimizer import ServerOptimizer
from lexfed.language.heavy_hitters import HeavyHitters
from lexfed.language.language_task import LanguageTask
from lexfed.language.tokenizer_source import NAMES
from lexfed.learning.classifying import Made, Noisy, not_theirs, of_text, privacy
from lexfed.learning.evaluation import Evaluation
from lexfed.learning.parts import UpdateLayer, as_it_is, loop
from lexfed.models import language_model
from lexfed.models.language_model import LanguageModelOptions
from lexfed.privacy.accounting import Ledger
from lexfed.privacy.mechanism import Account, Mechanism
from lexfed.privacy.promise import Promise
from lexfed.vocabulary.learned import TokenizerOptions


class Tables(Noisy, Protocol):
    """What is read of a configuration."""

    @property
    def tokenizer(self) -> TokenizerOptions: ...
    @property
    def language_model(self) -> LanguageModelOptions: ...
    @property
    def heavy_hitters(self) -> HeavyHitters: ...
    @property
    def server(self) -> ServerOptimizer: ...
    @property
    def evaluation(self) -> Evaluation: ...
    @property
    def data(self) -> Data: ...
    @property
    def options(self) -> Any: ...  # the method's own


@dataclass(frozen=True)
class LanguageParts:
    task: LanguageTask
    tables: Tables
    mechanism: Mechanism
    account: Account
    people: Population
    promise: Promise | None = None
    study: Study | None = None  # the method brings it
    layer: UpdateLayer = as_it_is  # around what a client does to its model (probes of an audit)

    @property
    def names(self) -> frozenset[str]:
        """Of the model's parameters: they do not depend on its tokenizer."""
        return frozenset(self.task.model.init(1, root(0)))

    def loop(self, users: int, group: str = "") -> Rounds:
        """Rounds with cohorts of so many users, of one group where there are several."""
        sampler = sampler_of(self.tables.cohort, users, self.tables.secrets == "system")
        return loop(sampler, self.mechanism, self.tables.server, self.account.of(group))

    def plan(self, ledger: Ledger, users: int, rounds: int, group: str = "") -> Ledger:
        """What so many rounds of theirs will have charged."""
        expected = sampler_of(self.tables.cohort, users).expected_size(users)
        return self.account.of(group).plan(ledger, expected, users, rounds)


def parts(tables: Tables, people: Population, entry: Entry) -> LanguageParts:
    if people.here and people.unseen == 0:
        raise ConfigError(
            "a language model is scored on users who never train: set data.unseen above 0"
        )
    groups = getattr(tables.options, "groups", 1)
    mechanism, account, promised = privacy(tables, len(people), groups)
    if promised is not None:
        promised = _of_tokenizer(promised, tables, people)
    model = language_model.build(tables.language_model)
    task = LanguageTask(
        model, tables.language_model.context, tables.train, tables.tokenizer, tables.rounds
    )
    return LanguageParts(task, tables, mechanism, account, people, promised)


def _of_tokenizer(promised: Promise, tables: Tables, people: Population) -> Promise:
    """What the tokenizer that training begins with does to a promise: it is told as it is."""
    start, users = tables.tokenizer.start, tables.data.name
    if start not in NAMES:
        return promised.noting(not_theirs(start))
    public = tables.tokenizer.public  # heavy hitters ask for its words
    key, source = ("start", start) if start == "oracle" else ("public", public)
    made = Made("tokenizer", f"tokenizer.{key} = '{source}'", source)
    return of_text(promised, made, users, people)


LANGUAGE_MODEL = Kind(
    "language model",
    parts,
    reads=(
        "data", "tokenizer", "language_model", "heavy_hitters", "cohort", "train.optimizer",
        "train.lr", "train.decay", "train.batch", "train.epochs", "train.weight_decay",
        "train.upload", "server.optimizer", "server.lr", "server.beta1", "server.beta2",
        "server.tau", "privacy", "aggregation", "malice", "evaluation.every", "evaluation.clients",
        "evaluation.samples", "audit", "secure",
    ),
    tells={
        "defences": "they are for classifiers that are averaged",
        "self_audit": "it is for classifiers that are averaged",
        "server.average": "it is for classifiers",
        "evaluation.split": "a language model is scored on users who never train",
    },
    on_devices=True,
)  # fmt: skip
