"""Defences against a server that reads its clients' uploads: what each costs it, and what stays
open.

    rotation           public vectors are turned by a secret that all clients have: a public table
                       no longer fits their span.
                       Open: one client that gives it away, about d known words, lengths (unless
                       `normalise`) and angles: some ten uploads of few words (SGD, no dropout)
                       give it away by themselves.
                       `whiten`, which hides nothing by itself, takes its price away: see
                       `vocabulary.tables.rotation`.
                       "own", a secret for each client, is for comparison: bodies trained over
                       different axes average badly.
    minimum_words      who has fewer distinct words does not send: `enough_words` says how many
    private_layers     "first": the first layer above the embedding stays too, so nothing on the
                       wire multiplies a word vector.
                       It starts from what clients share and the server lacks, so that what is
                       averaged above it fits.
    embedding_dropout  whole words are left out of a step, by chance
"""

from dataclasses import dataclass
from statistics import median
from typing import ClassVar, Literal

from lexfed.core.errors import ConfigError, PrivacyError
from lexfed.core.seeds import Seed, derive
from lexfed.corpus.population import Client, Population
from lexfed.vocabulary.word import count_words


@dataclass(frozen=True)
class Defences:
    """The `[defences]` table."""

    # of public vectors: by a secret of all clients, or of each
    rotation: Literal["none", "shared", "own"] = "none"
    normalise: bool = False  # public vectors of one length, before they are turned
    whiten: bool = False  # public vectors without axes of their own, before that
    minimum_words: int = 0  # a client with fewer distinct words sends nothing
    private_layers: Literal["embedding", "first"] = "embedding"  # first: also the layer above it
    embedding_dropout: float = 0.0  # the share of words left out of a training step

    # without them the rows that clients keep mean something else
    lasting: ClassVar[tuple[str, ...]] = ("rotation", "normalise", "whiten", "private_layers")

    def __post_init__(self) -> None:
        if self.minimum_words < 0 or not 0 <= self.embedding_dropout < 1:
            raise ConfigError(
                "defences.minimum_words is at least 0; defences.embedding_dropout at least 0 and "
                "below 1"
            )

    @property
    def of_tables(self) -> bool:
        """Whether something is done to tables that clients make for themselves."""
        return self.of_vectors or self.private_layers == "first"

    @property
    def of_vectors(self) -> bool:
        return self.rotation != "none" or self.normalise or self.whiten

    def key(self, client: Client) -> Seed | None:
        """What the client's rotation is made of."""
        if self.rotation == "none":
            return None
        return derive(
            common_secret(client) if self.rotation == "shared" else client.secret, "rotation"
        )


UNDEFENDED = Defences()
WORDS_A_DIMENSION = 5
CLIENTS_LOOKED_AT = 10


def enough_words(dimension: int) -> int:
    """Distinct words of a client with which an upload tells few of them: five times as many as a
    vector has numbers. Up to d words span a space in which each stands out; more fill it. Measured
    at d = 100, SGD, no dropout, its best case (docs/defences.md): of 110 words a reader finds 0.95,
    of 400 as many as by word frequencies alone, of 500 fewer.
    """
    return WORDS_A_DIMENSION * dimension


def readable(people: Population, dimension: int, least: int = 0) -> str:
    """Whether uploads can be read in spite of a rotation, because the median client (of the first
    few) has so few different words and sends all the same; in a sentence. Empty: no.
    """
    some = range(min(len(people), CLIENTS_LOOKED_AT))
    found = int(median(len(count_words(people.client(number).train)) for number in some))
    enough = enough_words(dimension)
    if found >= enough or found < least:
        return ""
    return (
        f"clients have about {found} different words each, and uploads of fewer than {enough} can "
        "be read in spite of the rotation (see docs/defences.md)"
    )


def common_secret(client: Client) -> Seed:
    if not client.common_secret:
        raise PrivacyError(
            "the clients share no secret: without one the server could make the same numbers"
        )
    return client.common_secret


def check(defences: Defences, own_tables: bool, words: bool) -> None:
    """Refuse what could not defend: `own_tables`, clients make them; `words`, the model reads
    words.
    """
    if defences.of_tables and not own_tables:
        raise ConfigError(
            "defences.rotation, normalise, whiten and private_layers need method = 'fedevocab': "
            "with others the server makes the word table; take them back "
            "(--set defences.rotation=none --set defences.whiten=false)"
        )
    if (defences.of_tables or defences.embedding_dropout) and not words:
        raise ConfigError(
            "[defences] but minimum_words need model.name = 'bilstm': an encoder's own table "
            "can't be hidden"
        )
