"""Text as integers: each client's words as ids, in a file that is mapped into memory and that
nobody else can open.
"""

import mmap
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import numpy as np

from lexfed.core.seeds import Seed, derive, numpy_generator
from lexfed.corpus.text import Corpus
from lexfed.models.skipgram import Text
from lexfed.vocabulary.splitting import words

# words: a longer text is cut, so that one book can be shuffled and parted like many letters
PIECE = 1000


def encode(corpus: Corpus, ids: Mapping[str, int]) -> Text:
    """The corpus in the vocabulary's ids; words it lacks are left out. Memory does not grow with
    the text.

    The file has no name: it is gone with this process, and no other user or process can read it.
    """
    starts = [0]
    with tempfile.TemporaryFile(prefix="lexfed-") as file:
        texts = iter(corpus)
        while batch := list(islice(texts, 1024)):
            known = [[i for i in map(ids.get, words(text)) if i is not None] for text in batch]
            for text in known:
                starts.extend(_ends(starts[-1], len(text)))
            file.write(np.array([i for text in known for i in text], dtype=np.int32).tobytes())
        file.flush()
        total = starts[-1]
        if not total:
            return Text(np.empty(0, np.int32), np.zeros(1, np.int64))
        mapped = mmap.mmap(file.fileno(), 4 * total, access=mmap.ACCESS_READ)
        # pieces are read in random order: reading ahead would only fill memory
        if hasattr(mmap, "MADV_RANDOM"):
            mapped.madvise(mmap.MADV_RANDOM)
        tokens = np.frombuffer(mapped, dtype=np.int32)
    return Text(tokens, np.array(starts, dtype=np.int64))


def _ends(start: int, length: int) -> Iterator[int]:
    """Where the pieces of a text end."""
    for end in range(PIECE, length, PIECE):
        yield start + end
    if length:
        yield start + length


def pieces(text: Text, numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Text:
    """These pieces of a text, in this order."""
    lengths = np.diff(text.starts)[numbers]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    # the position of every word: its piece's start, and how far into the piece it is
    places = np.repeat(text.starts[numbers] - starts[:-1], lengths) + np.arange(starts[-1])
    return Text(np.asarray(text.tokens[places], dtype=np.int32), starts)


def joined(texts: Sequence[Text], seed: Seed) -> Text:
    """Several texts as one, their pieces in random order."""
    if len(texts) == 1:
        return texts[0]
    starts = np.concatenate([[0], *(np.diff(text.starts) for text in texts)]).cumsum()
    whole = Text(np.concatenate([text.tokens for text in texts]), starts.astype(np.int64))
    return pieces(whole, numpy_generator(derive(seed, "joined")).permutation(len(starts) - 1))
