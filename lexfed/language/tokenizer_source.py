"""Where the tokenizer comes from that training begins with: `tokenizer.start`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lexfed.core.errors import DataError, nearest
from lexfed.core.seeds import Seed
from lexfed.corpus.population import Population
from lexfed.federation import Federation, ServerState
from lexfed.language.heavy_hitters import HeavyHitters, cost, found_words
from lexfed.privacy.accounting import Release
from lexfed.vocabulary.learned import (
    Learned,
    TokenizerOptions,
    learn,
    opened,
    public_text,
    texts_of,
)

NAMES = ("public", "oracle", "heavy_hitters")

Learner = Callable[[Federation, ServerState, Seed], Learned]
Cost = Callable[[Federation], Release | None]


@dataclass(frozen=True)
class Source:
    learn: Learner
    cost: Cost = lambda federation: None  # of each user; None: none is asked


def source(texts: TokenizerOptions, options: HeavyHitters, people: Population) -> Source:
    def public(federation: Federation, state: ServerState, seed: Seed) -> Learned:
        return learn(public_text(texts), texts.kind, texts.size, f"public ({texts.public})")

    def oracle(federation: Federation, state: ServerState, seed: Seed) -> Learned:
        """The users' own text, against all privacy: what any other source can reach at best."""
        clients = (people.client(client) for client in range(len(people)))
        words = (text for client in clients for text in texts_of(client.train, texts))
        return learn(words, texts.kind, texts.size, "oracle")

    def found(federation: Federation, state: ServerState, seed: Seed) -> Learned:
        return found_words(federation, state, options, texts, seed)

    def paid(federation: Federation) -> Release:
        group = "half 1" if len(federation.clients) < len(people) else ""
        return cost(options, len(federation.clients), group)

    def file(federation: Federation, state: ServerState, seed: Seed) -> Learned:
        return Learned(data, {}, texts.start)

    known = {"public": Source(public), "oracle": Source(oracle)}
    known["heavy_hitters"] = Source(found, paid)
    if texts.start in NAMES:
        return known[texts.start]
    path = Path(texts.start)
    if not path.is_file():
        nearby = nearest(texts.start, NAMES)
        raise DataError(f"tokenizer.start = '{texts.start}' is no file and no source ({nearby})")
    data = path.read_bytes()
    opened(data)  # a damaged file shows here
    return Source(file)
