import numpy as np
import pytest

from lexfed.metrics import classification as metrics

TRUTH, GUESS = [0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 0]
CONFUSION = metrics.confusion_matrix(TRUTH, GUESS, 2)


def test_confusion() -> None:
    assert CONFUSION.tolist() == [[3, 1], [1, 1]]
    assert metrics.accuracy(CONFUSION) == 4 / 6


def test_local_accuracy_re_weights_the_same_predictions() -> None:
    assert metrics.local_accuracy(CONFUSION, np.array([1.0, 0.0])) == 3 / 4
    assert metrics.local_accuracy(CONFUSION, np.array([0.0, 1.0])) == 1 / 2
    test_shares = metrics.label_shares(TRUTH, 2)
    assert metrics.local_accuracy(CONFUSION, test_shares) == pytest.approx(metrics.accuracy(CONFUSION))


def test_a_constant_guess_scores_the_majority_share() -> None:
    shares = metrics.label_shares([0, 0, 0, 1], 2)
    always_zero = metrics.confusion_matrix(TRUTH, [0] * 6, 2)
    assert metrics.local_accuracy(always_zero, shares) == metrics.majority_accuracy(shares) == 0.75


def test_macro_f1_by_hand() -> None:
    assert metrics.macro_f1(CONFUSION) == pytest.approx((2 * 3 / 8 + 2 * 1 / 4) / 2)


def test_geometric_mean_counts_zero_as_half_an_example() -> None:
    assert metrics.geometric_mean([0.25, 1.0], 10) == pytest.approx(0.5)
    assert metrics.geometric_mean([0.0, 1.0], 50) == pytest.approx(0.1)
