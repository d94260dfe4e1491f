"""Where the tokenizer comes from that training begins with: `tokenizer.start`."""

from collections.abc import Callable
from pathlib import Path

from lexfed.core.errors import DataError, nearest
from lexfed.core.seeds import Seed
from lexfed.corpus.population import Population
from lexfed.federation import Federation, ServerState
from lexfed.language.heavy_hitters import HeavyHitters, found_words
from lexfed.vocabulary.learned import (
    Learned,
    TokenizerOptions,
    learn,
    opened,
    public_text,
    texts_of,
)

NAMES = ("public", "oracle", "heavy_hitters")

Source = Callable[[Federation, ServerState, Seed], tuple[Learned, ServerState]]


def source(texts: TokenizerOptions, options: HeavyHitters, people: Population) -> Source:
    def public(
        federation: Federation, state: ServerState, seed: Seed
    ) -> tuple[Learned, ServerState]:
        return learn(public_text(texts), texts.kind, texts.size, f"public ({texts.public})"), state

    def oracle(
        federation: Federation, state: ServerState, seed: Seed
    ) -> tuple[Learned, ServerState]:
        """The users' own text, against all privacy: what any other source can reach at best."""
        clients = (people.client(client) for client in range(len(people)))
        words = (text for client in clients for text in texts_of(client.train, texts))
        return learn(words, texts.kind, texts.size, "oracle"), state

    def found(
        federation: Federation, state: ServerState, seed: Seed
    ) -> tuple[Learned, ServerState]:
        group = "half 1" if len(federation.clients) < len(people) else ""
        return found_words(federation, state, options, texts, group, seed)

    def file(federation: Federation, state: ServerState, seed: Seed) -> tuple[Learned, ServerState]:
        return Learned(data, {}, texts.start), state

    if texts.start in NAMES:
        return {"public": public, "oracle": oracle, "heavy_hitters": found}[texts.start]
    path = Path(texts.start)
    if not path.is_file():
        known = nearest(texts.start, NAMES)
        raise DataError(f"tokenizer.start = '{texts.start}' is no file and no source ({known})")
    data = path.read_bytes()
    opened(data)  # a damaged file shows here
    return file
