"""Word vectors of organisations: from the tables of a configuration to what their method is built
from.
"""

from dataclasses import dataclass, field
from typing import Protocol

from lexfed.agreement.protocol import Agreement, enough
from lexfed.corpus.population import Population
from lexfed.federation.method import Entry, Kind, Study
from lexfed.federation.sampling import Cohort, Sampler
from lexfed.federation.sampling import build as sampler_of
from lexfed.privacy.promise import Promise, Secrets
from lexfed.secure.secure_options import Secure
from lexfed.word2vec.options import Word2Vec


class Tables(Protocol):
    """What is read of a configuration."""

    @property
    def rounds(self) -> int: ...
    @property
    def cohort(self) -> Cohort: ...
    @property
    def agreement(self) -> Agreement: ...
    @property
    def word2vec(self) -> Word2Vec: ...
    @property
    def secrets(self) -> Secrets: ...
    @property
    def secure(self) -> Secure: ...


@dataclass(frozen=True)
class VectorParts:
    sampler: Sampler
    word2vec: Word2Vec
    agreement: Agreement
    rounds: int
    people: Population
    secure: Secure = field(default_factory=Secure)
    fresh: bool = False  # secrets come from the operating system: no attempt repeats another
    study: Study | None = None  # the method brings it
    promise: Promise | None = None  # noise per user has no meaning between organisations

    @property
    def names(self) -> frozenset[str]:
        from lexfed.models.skipgram import INPUT, OUTPUT  # compiled: loaded when first needed

        return frozenset({INPUT, OUTPUT})


def parts(tables: Tables, people: Population, entry: Entry) -> VectorParts:
    enough(len(people), tables.agreement)
    fresh = tables.secrets == "system"
    sampler = sampler_of(tables.cohort, len(people), fresh)
    return VectorParts(
        sampler, tables.word2vec, tables.agreement, tables.rounds, people, tables.secure, fresh
    )


WORD_VECTORS = Kind(
    "word vectors",
    parts,
    reads=(
        "data", "agreement", "word2vec", "cohort", "malice", "evaluation.every", "audit", "secure",
        "vocabulary.vectors",  # whose words an attacker tries out against the agreed hashes
    ),
    tells={
        "privacy": (
            "word vectors are trained by organisations: noise per user has no meaning; "
            "see agreement.rule = 'dp'"
        ),
        "aggregation": "word vectors travel as rows, which have no median",
        "train": "word vectors are trained as [word2vec] says",
    },
)  # fmt: skip
