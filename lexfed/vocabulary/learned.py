"""A tokenizer that was learned here, what it was learned from, and the `[tokenizer]` table."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from lexfed.core.errors import ConfigError, DataError
from lexfed.corpus.sources import load as load_corpus
from lexfed.corpus.text import Corpus
from lexfed.vocabulary import tokenizer as trained
from lexfed.vocabulary.splitting import words as split
from lexfed.vocabulary.tokenizer import Kind, TrainedTokenizer

KEPT = 50_000  # words of its text whose counts are kept, for its distance to the users' text


@dataclass(frozen=True)
class TokenizerOptions:
    """The `[tokenizer]` table: how users' texts are read, and the tokenizer that training begins
    with.
    """

    kind: Kind = "bpe"  # of the tokenizer
    size: int = 10_000  # tokens, special ones included
    # learned from public text; "oracle": from the users'; "heavy_hitters"; or a tokenizer.json
    start: str = "public"
    public: str = "wikitext2"  # the public text: a data set, or a file
    lowercase: bool = False  # read all text in lower case
    words_per_user: int = 1_600  # at most so many words of a user are read

    def __post_init__(self) -> None:
        if self.size < 10 or self.words_per_user < 1:
            raise ConfigError(
                "tokenizer.size must be at least 10, tokenizer.words_per_user at least 1"
            )


@dataclass(frozen=True)
class Learned:
    data: bytes  # tokenizer.json
    words: Mapping[str, int]  # of the text it was learned from
    source: str

    @property
    def tokenizer(self) -> TrainedTokenizer:
        return opened(self.data)

    def to_bytes(self) -> bytes:
        return json.dumps(
            {"source": self.source, "words": dict(self.words), "tokenizer": self.data.decode()}
        ).encode()


@lru_cache(maxsize=4)  # one request after the other brings the same tokenizer
def opened(data: bytes) -> TrainedTokenizer:
    return trained.load(data)


@lru_cache(maxsize=4)
def from_bytes(data: bytes) -> Learned:
    kept = json.loads(data)
    return Learned(kept["tokenizer"].encode(), kept["words"], kept["source"])


def learn(texts: Iterable[Sequence[str]], kind: Kind, size: int, source: str) -> Learned:
    """A tokenizer of these texts, which are cut in words."""
    texts = list(texts)
    counts: Counter[str] = Counter()
    for words in texts:
        counts.update(words)
    return Learned(trained.train(texts, kind, size), dict(counts.most_common(KEPT)), source)


def learn_from_counts(counts: Mapping[str, int], kind: Kind, size: int, source: str) -> Learned:
    if not counts:
        raise DataError(
            f"no word was found by {source}: there is nothing to learn a tokenizer from"
        )
    return Learned(
        trained.train_on_counts(counts, kind, size), dict(Counter(counts).most_common(KEPT)), source
    )


def public_text(options: TokenizerOptions) -> Iterable[list[str]]:
    """The public corpus, in words; of a corpus with splits only what is there to train on."""
    corpus = load_corpus(options.public)
    corpus = corpus.where("splits", "train") if corpus.splits is not None else corpus
    return (split(text, options.lowercase, "single") for text in corpus)


def texts_of(corpus: Corpus, options: TokenizerOptions) -> list[list[str]]:
    """A user's texts in words, as far as they are read."""
    left, texts = options.words_per_user, []
    for text in corpus:
        words = split(text, options.lowercase, "single")[:left]
        if words:
            texts.append(words)
            left -= len(words)
        if not left:
            break
    return texts
