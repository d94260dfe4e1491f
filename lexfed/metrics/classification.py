"""Accuracy of text classifiers on a common test set, told honestly.

Global: each client's model on the common test set. Local: the same predictions, re-weighted to the
client's own label shares, so that nothing is sampled and no training text can leak into it. Beside
local accuracy always stands what the majority class alone would score: much of a "local" gain is
the label prior.
"""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Confusion = npt.NDArray[np.int64]  # (C, C): rows are the true classes, columns the predicted ones


def confusion_matrix(truth: npt.ArrayLike, guess: npt.ArrayLike, classes: int) -> Confusion:
    pairs = np.asarray(truth, dtype=np.int64) * classes + np.asarray(guess, dtype=np.int64)
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def accuracy(confusion: Confusion) -> float:
    return float(np.trace(confusion) / confusion.sum())


def class_accuracy(confusion: Confusion) -> FloatArray:
    """The share of each class's texts that is right; 0 for a class without texts."""
    return np.asarray(np.diag(confusion) / np.maximum(confusion.sum(1), 1), dtype=np.float64)


def local_accuracy(confusion: Confusion, shares: FloatArray) -> float:
    """sum_c p_k(c) * accuracy of class c, over the classes that the test set has."""
    tested = shares * (confusion.sum(1) > 0)
    return float(tested @ class_accuracy(confusion) / tested.sum()) if tested.sum() > 0 else 0.0


def standard_error(confusion: Confusion, shares: FloatArray) -> float:
    """Of the accuracy so weighted, for texts drawn class by class: sqrt of sum_c p(c)^2 a_c (1 -
    a_c) / n_c.
    """
    right, texts = class_accuracy(confusion), confusion.sum(1)
    tested = shares * (texts > 0)
    weights = tested / max(tested.sum(), 1e-12)
    return float(np.sqrt(np.sum(weights**2 * right * (1 - right) / np.maximum(texts, 1))))


def half_interval(error: float, spread: float, clients: int) -> float:
    """Half of the 95 % interval of a mean over clients, both texts and clients being a sample:
    from the clients' mean standard error and the spread of their accuracies.

    All clients are scored on the same texts, so their errors from the choice of texts do not
    average out.
    """
    return float(1.96 * np.hypot(error, spread / np.sqrt(clients)))


def majority_accuracy(shares: FloatArray) -> float:
    """What a client scores on its own label shares by always saying its most frequent class."""
    return float(shares.max())


def macro_f1(confusion: Confusion) -> float:
    hits, truths, guesses = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    return float(np.mean(2 * hits / np.maximum(truths + guesses, 1)))


def label_shares(labels: npt.ArrayLike, classes: int) -> FloatArray:
    counts = np.bincount(np.asarray(labels, dtype=np.int64), minlength=classes)
    return np.asarray(counts / counts.sum(), dtype=np.float64)


def lost(accuracy: float, examples: int) -> float:
    """-log of an accuracy, where zero counts as half an example. Its mean over clients is that of
    their geometric mean, as FedeVocab reports it.
    """
    return float(-np.log(max(accuracy, 1 / (2 * examples))))
