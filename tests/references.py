"""Slow, obvious or whole computations that the package does piece by piece, or in another way."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lexfed.core.errors import PrivacyError
from lexfed.core.seeds import Seed, derive, numpy_generator
from lexfed.metrics.leakage import CHUNK, Spectrum, distances
from lexfed.vocabulary import splitting
from lexfed.vocabulary.sketch import NO_WORD, Accumulated, Ints, Sketch, places
from lexfed.vocabulary.trie import END, Parameters, grow, vote
from lexfed.vocabulary.word import Vocabulary


def token_words(text: str, lowercase: bool = False) -> list[str]:
    """A text cut as tokenizers have it: symbols one by one."""
    return splitting.words(text, lowercase, "single")


def discover(
    words_by_user: Sequence[Sequence[str]], params: Parameters, seed: Seed
) -> dict[str, int]:
    """All levels, simulated: the words that reached their mark, with the votes for it, which the
    server keeps to itself.
    """
    if len(words_by_user) != params.users:
        raise PrivacyError(
            f"the parameters are for {params.users:,} users, not for {len(words_by_user):,}"
        )
    rng = numpy_generator(derive(seed, "sample"))
    prefixes, found = {"": params.users}, dict[str, int]()
    for level in range(1, params.length + 1):
        drawn = rng.choice(params.users, params.sample, replace=False).tolist()
        votes = [
            vote(words_by_user[user], prefixes, level, derive(seed, "user", user)) for user in drawn
        ]
        prefixes = grow(prefixes, votes, params.theta)
        found |= {
            prefix[:-1]: number for prefix, number in prefixes.items() if prefix.endswith(END)
        }
    return found


def encode_many(sketch: Sketch, words_of_users: Iterable[Sequence[str]], seed: Seed) -> Accumulated:
    """The sum of all these users' reports, drawn from the law of that sum instead of one by one."""
    rng, counts = numpy_generator(seed), Counter(chain.from_iterable(words_of_users))
    true = _true_signs(sketch, counts, rng)  # (k, m)
    reports = true.sum(axis=1)
    # In row j every report flips every column by itself: of the t reports with +1 at a column
    # Bin(t, 1 - p) stay, of the n_j - t others Bin(n_j - t, p) turn, and columns are independent.
    # So nothing is approximated.
    plus = rng.binomial(true, 1 - sketch.flip) + rng.binomial(reports[:, None] - true, sketch.flip)
    return Accumulated(2 * plus - reports[:, None], reports)


def _true_signs(sketch: Sketch, counts: Counter[str], rng: np.random.Generator) -> Ints:
    """How many reports have their +1 at each row and column, before the flips."""
    known = [word for word in counts if word != NO_WORD]
    times = np.array([counts[word] for word in known], dtype=np.int64)
    # (W, k), the rows that reports took
    drawn = rng.multinomial(times, np.full(sketch.hashes, 1 / sketch.hashes))
    cells = sketch.hashes * sketch.width
    true = np.bincount(rng.integers(cells, size=counts[NO_WORD]), minlength=cells).reshape(
        sketch.hashes, sketch.width
    )
    np.add.at(true, (np.arange(sketch.hashes)[:, None], places(sketch, known)), drawn.T)
    return true


def transformer_inputs(
    words: Tensor, positions: Tensor, kind: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-12
) -> Iterator[Tensor]:  # (c, P, d)
    """What the first layer reads for each word (V, d) at each position (P, d), some words at a
    time.
    """
    for part in torch.split(words, max(1, CHUNK // len(positions))):
        yield F.layer_norm(part[:, None] + positions + kind, gamma.shape, gamma, beta, eps)


# (V,), (V,)
def placed_ranking(spectrum: Spectrum, inputs: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Words from the most to the least likely, each at its best position, and these positions."""
    parts = [distances(spectrum, x.flatten(0, 1)).view(x.shape[:2]).min(1) for x in inputs]
    order = torch.cat([part.values for part in parts]).argsort(stable=True)
    return order, torch.cat([part.indices for part in parts])[order]


def keyed_vectors(vocabulary: Vocabulary, vectors: Tensor) -> Any:
    """gensim's `KeyedVectors`, a copy, with the words as they are and their counts."""
    from gensim.models import KeyedVectors  # takes seconds to import

    keyed = KeyedVectors(vectors.shape[1], count=len(vectors))
    keyed.index_to_key = list(vocabulary.tokens)
    keyed.key_to_index = dict(vocabulary.ids)
    keyed.next_index = len(vectors)
    torch.from_numpy(keyed.vectors).copy_(vectors.detach())
    keyed.allocate_vecattrs(["count"], [int])
    keyed.expandos["count"][:] = vocabulary.counts
    return keyed
