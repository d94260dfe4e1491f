"""The `[audit]` table: which uploads are attacked, and how."""

from dataclasses import dataclass
from typing import Literal

from lexfed.core.errors import ConfigError

Attack = Literal[
    "rows",
    "span",
    "norms",
    "sentences",
    "labels",
    "inversion",
    "agreement",
    "canaries",
    "membership",
    "attributes",
    "epsilon",
]


@dataclass(frozen=True)
class Audit:
    """The `[audit]` table: which uploads `lexfed audit` attacks, and how. Every combination of
    methods, defences, sentences, optimizers, batches and seeds is tried; one is called a cell.
    """

    attacks: tuple[Attack, ...] = (
        "rows",
        "span",
        "norms",
        "sentences",
        "labels",
        "agreement",
        "canaries",
    )  # which attacks run
    methods: tuple[str, ...] = ()  # default: the configuration's own
    # each is tried in turn: the settings that switch it on, with ";" between several, such as
    # "privacy.placement=central; privacy.noise=1"; "none" is no defence
    defences: tuple[str, ...] = ("none",)
    sentences: tuple[int, ...] = ()  # texts of a client; default: all it has
    optimizers: tuple[str, ...] = ()  # default: train.optimizer
    batches: tuple[int, ...] = ()  # default: train.batch
    seeds: tuple[int, ...] = ()  # default: seed
    clients: int = 10  # whose uploads are attacked in each cell; all of them, if there are fewer
    rounds: int = 1  # rounds that are recorded, of the same clients if there are several
    candidates: int = 20_000  # words that the attacker considers
    # inversion: how often a gradient is compared; 300 take some ten seconds
    inversion_steps: int = 300
    # sentences that are not the client's; from 10,000 on the TPR at 0.1 % is told too
    others: int = 1_000
    canaries: int = 0  # clients that get a phrase planted in their text
    # what is guessed of users, where the data tells it
    attributes: tuple[str, ...] = ("gender", "age")
    shadows: int = 8  # membership: models that an attacker trains for each that it attacks
    # epsilon: users of our own making that are sent through a run; more can show a larger epsilon
    probes: int = 2_000
    # uploads of each row whose texts the report shows beside what was read of them: clients' own
    examples: int = 0

    def __post_init__(self) -> None:
        if self.examples < 0:
            raise ConfigError("audit.examples must be at least 0")
        if self.inversion_steps < 1:
            raise ConfigError("audit.inversion_steps must be at least 1")
        if not 0 <= self.canaries <= self.clients:
            raise ConfigError(
                "audit.canaries is at least 0 and at most audit.clients: who has one must be asked"
            )
        if min(self.clients, self.rounds, self.candidates, self.others) < 1 or any(
            n < 1 for n in self.sentences
        ):
            raise ConfigError(
                "audit.clients, rounds, candidates, others and sentences must be at least 1"
            )
        if self.probes < 100:
            raise ConfigError("audit.probes must be at least 100: fewer refute nothing")
        if self.shadows < 4 or self.shadows % 2:  # in pairs: a text is in one of the two
            raise ConfigError(
                f"audit.shadows must be an even number, at least 4, not {self.shadows}"
            )
