"""Words and texts that were guessed, beside the true ones. Every guess counts: there is no ranking
to cut.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lexfed.methods.fedrecon import is_private_token
from lexfed.metrics.leakage import rouge, score_words


def words(guess: Tensor, truth: set[int], tokens: Sequence[str]) -> dict[str, float | None]:
    """Precision, recall, F1 and PTLR of distinct words, as FedeVocab has them (sec. 4.2)."""
    prior, tries = torch.arange(len(tokens)), len(guess)
    leak = score_words(guess, truth, prior, tokens, guesses=tries)
    digits = {i for i in truth if is_private_token(tokens[i])}
    # a ranking's PTLR is at n; here it is the recall of the words with a digit
    ptlr = score_words(guess, digits, prior, tokens, guesses=tries).recall if digits else None
    return {"precision": leak.precision, "recall": leak.recall, "f1": leak.f1, "ptlr": ptlr}


def texts(true: Sequence[Sequence[str]], tried: Sequence[Sequence[str]]) -> dict[str, float | None]:
    """ROUGE, each text beside the best guess of its length: which of equally long texts is which,
    no gradient tells.
    """
    best = [
        max(
            (rouge(text, guess) for guess in tried if len(guess) == len(text)),
            key=lambda one: (one.longest, one.words),
        )
        for text in true
    ]
    means = {
        name: sum(getattr(one, field) for one in best) / len(best) for name, field in ROUGE.items()
    }
    return dict(means)


ROUGE = {"rouge_1": "words", "rouge_2": "pairs", "rouge_l": "longest"}
