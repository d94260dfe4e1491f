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
    assert metrics.local_accuracy(CONFUSION, test_shares) == pytest.approx(
        metrics.accuracy(CONFUSION)
    )


def test_a_constant_guess_scores_the_majority_share() -> None:
    shares = metrics.label_shares([0, 0, 0, 1], 2)
    always_zero = metrics.confusion_matrix(TRUTH, [0] * 6, 2)
    assert metrics.local_accuracy(always_zero, shares) == metrics.majority_accuracy(shares) == 0.75


def test_macro_f1_by_hand() -> None:
    assert metrics.macro_f1(CONFUSION) == pytest.approx((2 * 3 / 8 + 2 * 1 / 4) / 2)


def test_geometric_mean_counts_zero_as_half_an_example() -> None:
    for accuracies, examples, expected in (([0.25, 1.0], 10, 0.5), ([0.0, 1.0], 50, 0.1)):
        lost = np.mean([metrics.lost(accuracy, examples) for accuracy in accuracies])
        assert np.exp(-lost) == pytest.approx(expected)


def test_the_standard_error_is_what_drawing_texts_again_gives() -> None:
    rng = np.random.default_rng(0)
    rights, texts, shares = (0.9, 0.6), (40, 60), np.array([0.8, 0.2])
    scores, errors = [], []
    for _ in range(4000):
        hits = rng.binomial(texts, rights)
        confusion = np.array([[hits[0], texts[0] - hits[0]], [texts[1] - hits[1], hits[1]]])
        scores.append(metrics.local_accuracy(confusion, shares))
        errors.append(metrics.standard_error(confusion, shares))
    assert np.mean(errors) == pytest.approx(np.std(scores), rel=0.05)


def test_the_interval_covers_the_truth_about_95_times_in_100() -> None:
    """Clients that all guess alike: more of them do not make the texts more."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(2000):
        confusion = np.diag(rng.binomial(100, 0.7, 1))
        confusion = np.array([[confusion[0, 0], 100 - confusion[0, 0]], [0, 0]])
        score = metrics.accuracy(confusion)
        error = metrics.standard_error(confusion, np.array([1.0, 0.0]))
        covered += abs(score - 0.7) <= metrics.half_interval(error, 0.0, 50)
    assert 0.92 < covered / 2000 < 0.97
