"""Word-level vocabularies."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Protocol

from lexfed.core.errors import ConfigError, DataError
from lexfed.corpus.sources import load
from lexfed.corpus.text import Corpus
from lexfed.vocabulary.splitting import words

UNKNOWN = "<unk>"


@dataclass(frozen=True)
class Vocabulary:
    """Tokens and how often each occurred where the vocabulary was made; a token's place is its
    id.
    """

    tokens: tuple[str, ...]
    counts: tuple[int, ...]
    version: int = 1

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def ids(self) -> Mapping[str, int]:
        return {token: i for i, token in enumerate(self.tokens)}


class Tokenizer(Protocol):
    @property
    def vocabulary(self) -> Vocabulary: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Iterable[int]) -> str: ...


@dataclass(frozen=True)
class WordTokenizer:
    """One id per word; a word the vocabulary lacks is id 0, `<unk>`. An empty text is one unknown
    word.
    """

    vocabulary: Vocabulary

    def encode(self, text: str) -> list[int]:
        ids = self.vocabulary.ids
        return [ids.get(word, 0) for word in words(text)] or [0]

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(self.vocabulary.tokens[i] for i in ids)


def count_words(corpus: Corpus) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in corpus:
        counts.update(words(text))
    return counts


def most_frequent(counts: Mapping[str, int], size: int, minimum: int) -> Vocabulary:
    """The words with at least `minimum` occurrences, most frequent first (ties in alphabetical
    order).
    """
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    kept = [(word, n) for word, n in ranked if n >= minimum][: size - 1]
    rest = sum(counts.values()) - sum(n for _, n in kept)
    return Vocabulary((UNKNOWN, *(word for word, _ in kept)), (rest, *(n for _, n in kept)))


def of_list(tokens: Iterable[str], size: int) -> Vocabulary:
    """The first words of a list that is ordered by frequency, as published tables are."""
    kept = (UNKNOWN, *(token for token in tokens if token != UNKNOWN))[:size]
    return Vocabulary(kept, (0,) * len(kept))


@dataclass(frozen=True)
class Words:
    """The `[vocabulary]` table: one word list that server and clients know."""

    # whose words: "public" is embedded text that no client holds; a data set or a file of public
    # text; "clients" pools all clients' words, and so shows them to the server
    corpus: str = "public"
    # a public table of word vectors: its words are the vocabulary, and start from them
    vectors: str | None = None
    size: int = 20_000  # words in the list at most, the unknown word included
    minimum: int = 1  # occurrences of a word before it enters the list

    def __post_init__(self) -> None:
        if self.size < 2 or self.minimum < 1:
            raise ConfigError(
                "vocabulary.size must be at least 2 and vocabulary.minimum at least 1"
            )


def public_text(users: str) -> str:
    """Embedded text, other than what the users hold."""
    return "rotten_tomatoes" if users in ("imdb", "movie_reviews") else "imdb"


# data sets that have texts in common
RELATED = (("movie_reviews", "imdb"), ("movie_reviews", "rotten_tomatoes", "sst2"))


def holds(users: str, source: str) -> bool:
    """Whether this text is known by its name to have something of what the users hold."""
    related = any(users in names and source in names for names in RELATED)
    return related or source in ("clients", users)


@cache  # a run after the other in one process reads the same public text
def _counted(source: str) -> Counter[str]:
    return count_words(load(source))


def build(
    options: Words, clients: Corpus, public: Iterable[str] | None, users: str = ""
) -> Vocabulary:
    """`users` is the name of the data set that the clients' texts are of."""
    if public is not None:
        return of_list(public, options.size)
    source = public_text(users) if options.corpus == "public" else options.corpus
    counts = count_words(clients) if source == "clients" else _counted(source)
    vocabulary = most_frequent(counts, options.size, options.minimum)
    if len(vocabulary) == 1:
        raise DataError(f"no word occurs {options.minimum} times; lower vocabulary.minimum")
    return vocabulary
