"""Sentences that somebody else might have written, made from one's own: what the sentence attack is
held against where nobody else's text is at hand.

    a text of one's own, as the others see it:
        a word that no other own text has  -> a public word of no own text, about as frequent; of
                                              two such the one nearer to one's own words
        a word that one other has          -> some word of a single own text
        a word that more others have       -> it stays

The share of the first is what a new text has that all others lack (Good, 1953, after Turing), and
behind a word of the second a new text leaves one text, not two. So two texts have decoys of strange
words, and hundreds have decoys of their own: as it is with real texts of one kind. Strange words
are nearer than chance because other people's film reviews are film reviews. A decoy has no grammar,
which an attack on sets of words does not see.

Beside real sentences of other clients (reviews; GloVe, or vectors that know of no topics) the AUC
comes out level, or up to 0.2 higher between 16 and 64 texts: who judges by it is careful.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from lexfed.core.seeds import Seed, numpy_generator

Ids = npt.NDArray[np.int64]
DRAWN = 5  # public words for a strange one
NEARER = 2  # of those that are not own, the first so many: the nearest of them is taken
WITHIN = 2.0  # times the place in the order of frequency: about as frequent


def decoys(texts: Sequence[Sequence[int]], vectors: Tensor, count: int, seed: Seed) -> list[Ids]:
    """So many, as long as the texts are. Ids are rows of `vectors` (C, d), the most frequent first;
    every text has some.
    """
    rng = numpy_generator(seed)
    tokens = np.array([word for text in texts for word in text], dtype=np.int64)
    counts = Counter(word for text in texts for word in set(text))
    held = np.array([counts[word] for word in tokens.tolist()])
    lengths = np.array([len(texts[number % len(texts)]) for number in range(count)])
    drawn = rng.integers(len(tokens), size=int(lengths.sum()))
    made, once = tokens[drawn], tokens[held == 1]
    alone, twice = held[drawn] == 1, held[drawn] == 2
    if len(once):
        made[twice] = rng.choice(once, int(twice.sum()))
    made[alone] = _strange(made[alone], tokens, vectors, rng)
    parts = np.split(made, np.cumsum(lengths)[:-1])
    return [kept for part in parts if len(kept := part[part >= 0])]


def _strange(like: Ids, own: Ids, vectors: Tensor, rng: np.random.Generator) -> Ids:
    """A word for each, or -1 where only own ones were drawn."""
    reach = np.log(WITHIN)
    # ten more, as the very first differ in little
    places = (like[:, None] + 10) * np.exp(rng.uniform(-reach, reach, (len(like), DRAWN))) - 10
    words = np.clip(places.astype(np.int64), 0, len(vectors) - 1)
    new = ~np.isin(words, own)
    topic = normalize(vectors[torch.from_numpy(np.unique(own))]).mean(0)
    near = (
        (normalize(vectors[torch.from_numpy(words.ravel())]) @ topic).numpy().reshape(words.shape)
    )
    first = new & (np.cumsum(new, 1) <= NEARER)
    best = np.where(first, near, -np.inf).argmax(1)
    found: Ids = np.where(first.any(1), words[np.arange(len(words)), best], -1)
    return found
