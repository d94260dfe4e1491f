"""Language models compared across tokenizers: everything per word (Bagdasaryan et al., 2022,
section 3.2).

    perplexity = exp(-log P(texts) / number of words)                                        [eq. 2]

All tokenizers score the same texts in full, cut in words by one rule
(`lexfed.vocabulary.splitting`), each with its end. A model that says <unk> for a word is asked
less than to spell it: its perplexity never stands beside that of byte-level BPE, its word accuracy
may. Word accuracy: the word's tokens are all the model's first choice, given the true tokens before
them and where the word ends; a word with an unknown token is wrong. Users are the unit of sampling.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lexfed.core.errors import DataError
from lexfed.core.seeds import Seed, numpy_generator

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TextScore:
    """Of one text, or the sum over a user's."""

    nll: float = 0.0  # in nats, over all tokens, ends of texts included
    words: int = 0
    tokens: int = 0  # without ends of texts
    right: int = 0  # words
    oov: int = 0  # words with an unknown token

    def __add__(self, other: "TextScore") -> "TextScore":
        return TextScore(
            self.nll + other.nll,
            self.words + other.words,
            self.tokens + other.tokens,
            self.right + other.right,
            self.oov + other.oov,
        )


def text_score(
    nll: npt.ArrayLike, best: npt.ArrayLike, tokens_per_word: Sequence[int], unknown: npt.ArrayLike
) -> TextScore:
    """Of one text: per token, its end last, the negative log-likelihood, whether it was the first
    choice, or is <unk>.
    """
    losses, firsts = np.asarray(nll, dtype=np.float64), np.asarray(best, dtype=bool)  # (T + 1,)
    strange = np.asarray(unknown, dtype=bool)  # (T + 1,)
    lengths = np.asarray(tokens_per_word, dtype=np.int64)  # (W,)
    tokens = int(lengths.sum())
    if not len(losses) == len(firsts) == len(strange) == tokens + 1:
        raise ValueError(f"{tokens} tokens and the end need {tokens + 1} values each")
    word = np.repeat(np.arange(len(lengths)), lengths)  # (T,)
    oov = np.bincount(word, strange[:-1], len(lengths)) > 0
    wrong = np.bincount(word, ~firsts[:-1], len(lengths)) > 0
    right = ~wrong & ~oov & (lengths > 0)  # a word without tokens was never said
    return TextScore(float(losses.sum()), len(lengths), tokens, int(right.sum()), int(oov.sum()))


def figures(users: Sequence[TextScore]) -> dict[str, float]:
    """The figures of these users together, and of the tenth (at least one) that the model serves
    worst.

    The interval is half of a 95 % one: the delta method, perplexity times 1.96 standard errors of
    the log.
    """
    users = _with_words(users)
    rate = _rate(users)
    worst = sorted(users, key=lambda user: -user.nll / user.words)[: math.ceil(len(users) / 10)]
    _, error = _ratio([user.nll for user in users], [user.words for user in users])
    return {
        **pooled_figures(_pooled(users)),
        "word_perplexity_interval": 1.96 * error * _exp(rate),
        "worst_tenth_perplexity": _exp(_rate(worst)),
    }


def pooled_figures(whole: TextScore) -> dict[str, float]:
    """What the sums over all users say."""
    return {
        "word_perplexity": _exp(whole.nll / whole.words),
        "word_accuracy": whole.right / whole.words,
        "tokens_per_word": whole.tokens / whole.words,
        "oov_rate": whole.oov / whole.words,
    }


def paired_difference(a: Sequence[TextScore], b: Sequence[TextScore]) -> tuple[float, float]:
    """log perplexity of `a` less that of `b` over the same users and words, and its standard
    error.
    """
    if [user.words for user in a] != [user.words for user in b]:
        raise ValueError("both must be scored on the same words of the same users")
    a, b = _with_words(a), _with_words(b)
    return _ratio(
        [one.nll - other.nll for one, other in zip(a, b, strict=True)], [user.words for user in a]
    )


def _with_words(users: Sequence[TextScore]) -> list[TextScore]:
    if scored := [user for user in users if user.words]:
        return scored
    raise DataError("no user has a word to score")


def _pooled(users: Sequence[TextScore]) -> TextScore:
    return sum(users, TextScore())


def _rate(users: Sequence[TextScore]) -> float:
    whole = _pooled(users)
    return whole.nll / whole.words


def _exp(rate: float) -> float:
    """A model that has left the numbers has no finite perplexity, and is no reason to stop."""
    return math.exp(rate) if rate < 700 else math.inf


def _ratio(values: Sequence[float], words: Sequence[int]) -> tuple[float, float]:
    """R = sum y / sum w over a sample of users, and its standard error sqrt(n / (n - 1) sum (y - R
    w)^2) / sum w.

    The ratio estimator: users with many words count more, and the error knows it. One user alone
    tells no error: NaN.
    """
    y, w = np.asarray(values, dtype=np.float64), np.asarray(words, dtype=np.float64)
    ratio = float(y.sum() / w.sum())
    if len(y) < 2:
        return ratio, math.nan
    with np.errstate(invalid="ignore", over="ignore"):  # of a model that has left the numbers
        spread = float(np.sqrt(len(y) / (len(y) - 1) * np.sum((y - ratio * w) ** 2)))
    return ratio, spread / float(w.sum())


# --- how far the tokenizer's training text is from the users' -------------------------------------


def unigram_kld(users: Mapping[str, int], training: Mapping[str, int], top: int = 10_000) -> float:
    """KL(users || training text) in nats, of the users' `top` most frequent words, one added to
    every count on both sides.

    The added ones weigh more on a small text, so this is not monotone in its size: compare equal
    sizes (`equal_size`).
    """
    ranked = sorted(users, key=lambda word: (-users[word], word))[:top]
    if not ranked:
        raise DataError("the users have no words to compare")
    p, q = _smoothed(users, ranked), _smoothed(training, ranked)
    return float(np.sum(p * np.log(p / q)))


def _smoothed(counts: Mapping[str, int], words: Sequence[str]) -> FloatArray:
    raised = np.array([counts.get(word, 0) + 1 for word in words], dtype=np.float64)
    return np.asarray(raised / raised.sum(), dtype=np.float64)


def equal_size(counts: Mapping[str, int], total: int, seed: Seed) -> dict[str, int]:
    """The counts of `total` of these words, drawn without putting back."""
    words = sorted(word for word in counts if counts[word] > 0)
    held = [counts[word] for word in words]
    if not 0 < total <= sum(held):
        raise DataError(f"{total} words can't be drawn from {sum(held)}")
    drawn = (
        numpy_generator(seed).multivariate_hypergeometric(held, total, method="marginals").tolist()
    )
    return {word: n for word, n in zip(words, drawn, strict=True) if n}
