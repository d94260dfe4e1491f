"""What the rows of a table that travels are called, and which of them a text would move.

    classifiers      the shared vocabulary: a word list, or the tokens of a pretrained model
    word vectors     the list that was agreed on. Chosen among hashes or not, it is sent in the
                     clear: the server can name it
    language models  the tokenizer that went with the model

The prior is their order by frequency in public text. A list of words has it already (a union that
was agreed on without counts is in the order of the alphabet, and its prior tells nothing). Tokens
are counted.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice

import torch
from torch import Tensor

from lexfed.agreement import word_list as agreed
from lexfed.agreement.protocol import VOCABULARY
from lexfed.audits.uploads import Upload
from lexfed.corpus.catalogue import load
from lexfed.corpus.text import Corpus
from lexfed.experiment.assembly import Assembly
from lexfed.language.language_task import TOKENIZER
from lexfed.vocabulary import learned
from lexfed.vocabulary.learned import TokenizerOptions
from lexfed.vocabulary.pretrained import PretrainedTokenizer
from lexfed.vocabulary.splitting import words

PUBLIC_TEXT = "imdb"  # embedded, so everybody has it: pretrained tokens are counted in it
COUNTED = 500  # public texts: enough to order the frequent tokens


@dataclass(frozen=True, eq=False)
class RowNames:
    tokens: tuple[str, ...]  # by row
    prior: Tensor  # rows, the most frequent first
    ids: Callable[[str], set[int]]  # the rows of a text
    # those of a client's texts, as far as it reads them: the truth
    read: Callable[[Corpus], set[int]]
    always: frozenset[int] = frozenset()  # in every text: to find them tells nothing


def row_names(assembly: Assembly, upload: Upload) -> RowNames:
    if VOCABULARY in upload.blobs:
        return _agreed(upload.blobs[VOCABULARY])
    if TOKENIZER in upload.blobs:
        return _learned(assembly.config.tokenizer, upload.blobs[TOKENIZER])
    return _shared(assembly)


def _shared(assembly: Assembly) -> RowNames:
    tokenizer, limit = assembly.tokenizer, assembly.config.train.max_length
    if tokenizer is None:
        raise ValueError("a table travels whose rows nobody can name")
    tokens = tokenizer.vocabulary.tokens
    special, prior = frozenset[int](), torch.arange(len(tokens))
    if isinstance(tokenizer, PretrainedTokenizer):
        special, prior = special_ids(tokenizer), pretrained_order(tokenizer)

    def ids(text: str) -> set[int]:
        return set(tokenizer.encode(text)[:limit]) - special

    return RowNames(tokens, prior, ids, partial(_of_all, ids), special)


def _agreed(data: bytes) -> RowNames:
    vocabulary = agreed.from_bytes(data)

    def ids(text: str) -> set[int]:
        return {vocabulary.ids[word] for word in words(text) if word in vocabulary.ids}

    return RowNames(vocabulary.tokens, torch.arange(len(vocabulary)), ids, partial(_of_all, ids))


def _of_all(ids: Callable[[str], set[int]], texts: Corpus) -> set[int]:
    return set[int]().union(*map(ids, texts))


@lru_cache(maxsize=4)  # of all uploads of a round
def _learned(options: TokenizerOptions, data: bytes) -> RowNames:
    tokenizer = learned.opened(data)
    always = frozenset({tokenizer.bos, tokenizer.eos})

    def ids(text: str) -> set[int]:
        return set(tokenizer.encode_words(words(text, options.lowercase, "single"))[0])

    def read(texts: Corpus) -> set[int]:
        return {
            token
            for text in learned.texts_of(texts, options)
            for token in tokenizer.encode_words(text)[0]
        }

    some = islice(learned.public_text(options), COUNTED)
    counted = by_frequency(
        (tokenizer.encode_words(text)[0] for text in some), len(tokenizer.tokens)
    )
    return RowNames(tokenizer.tokens, without(counted, always), ids, read, always)


@lru_cache(maxsize=2)
def pretrained_order(tokenizer: PretrainedTokenizer) -> Tensor:
    """Tokens by their frequency in public text, without those that are in every text."""
    texts = islice(load(PUBLIC_TEXT), COUNTED)
    counted = by_frequency(map(tokenizer.encode, texts), len(tokenizer.vocabulary))
    return without(counted, special_ids(tokenizer))


@lru_cache(maxsize=2)
def used(listed: tuple[str, ...]) -> Tensor:  # (C,)
    """How often public text uses each word of a list."""
    counts = Counter(word for text in islice(load(PUBLIC_TEXT), COUNTED) for word in words(text))
    return torch.tensor([counts[word] for word in listed], dtype=torch.float64)


def special_ids(tokenizer: PretrainedTokenizer) -> frozenset[int]:
    return frozenset(tokenizer.tokenizer.all_special_ids)


def by_frequency(texts: Iterable[list[int]], size: int) -> Tensor:  # (size,)
    """All ids, the most frequent first; those that don't occur in their own order."""
    counts = torch.bincount(
        torch.tensor([token for text in texts for token in text], dtype=torch.int64), minlength=size
    )
    return counts.argsort(descending=True, stable=True)


def without(ids: Tensor, left_out: frozenset[int]) -> Tensor:
    return ids[~torch.isin(ids, torch.tensor(sorted(left_out), dtype=torch.int64))]
