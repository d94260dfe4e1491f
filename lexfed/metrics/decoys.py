"""Sentences that somebody else might have written, made from one's own: what the sentence attack is
held against where nobody else's text is at hand.

    unseen <- share of own words that stand in one text alone   what a new text has that all others
                                                                lack (Good, 1953; Turing)
    a word of a decoy:  with 1 - unseen  one that stands in several own texts
                        with unseen      a public word of no own text, about as frequent as one of
                                         those that stand in one alone

So two texts have decoys of strange words, and hundreds have decoys of their own: as it is with real
texts of one kind. A decoy has no grammar, which an attack on sets of words does not see. Beside
real sentences of other clients the AUC comes out level with small clients and 0.03 to 0.15 higher
with larger ones: who judges by it is careful, not careless.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lexfed.core.seeds import Seed, numpy_generator

Ids = npt.NDArray[np.int64]
WITHIN = 2.0  # times the place in the order of frequency: about as frequent


def decoys(texts: Sequence[Sequence[int]], size: int, count: int, seed: Seed) -> list[Ids]:
    """So many, as long as the texts are. Ids are places in a public order of `size` words by
    frequency; every text has some.
    """
    rng = numpy_generator(seed)
    holders = Counter(word for text in texts for word in set(text))
    tokens = np.array([word for text in texts for word in text], dtype=np.int64)
    alone = np.array([holders[word] == 1 for word in tokens.tolist()])
    lengths = np.array([len(texts[number % len(texts)]) for number in range(count)])
    strange = rng.random(int(lengths.sum())) < alone.mean()
    made = np.empty(len(strange), dtype=np.int64)
    for kind, own in ((strange, tokens[alone]), (~strange, tokens[~alone])):
        made[kind] = rng.choice(own, int(kind.sum())) if kind.any() else 0
    made[strange] = _as_frequent(made[strange], size, rng)
    kept = ~strange | ~np.isin(made, tokens)
    parts = np.split(np.arange(len(made)), np.cumsum(lengths)[:-1])
    sentences = [made[part[kept[part]]] for part in parts]
    return [sentence for sentence in sentences if len(sentence)]


def _as_frequent(like: Ids, size: int, rng: np.random.Generator) -> Ids:
    """Other places near these; ten more, as the very first differ in little."""
    reach = np.log(WITHIN)
    places = (like + 10) * np.exp(rng.uniform(-reach, reach, len(like))) - 10
    return np.clip(places.astype(np.int64), 0, size - 1)
