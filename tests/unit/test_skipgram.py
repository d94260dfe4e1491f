"""The compiled loops against a dense torch reference that is slow and obvious."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lexfed.core.params import Rows, Update
from lexfed.core.seeds import root
from lexfed.models import skipgram
from lexfed.models.skipgram import INPUT, OUTPUT, Text, unigrams
from lexfed.word2vec.options import Word2Vec
from lexfed.word2vec.passes import (
    NEAR,
    Moment,
    Pairs,
    draw_batch,
    draw_negatives,
    gather,
    gradient,
    local_pass,
    stretch,
)

V, D = 60, 9
RNG = np.random.default_rng(0)
TABLES = {name: RNG.normal(0, 0.7, (V, D)).astype(np.float32) for name in (INPUT, OUTPUT)}
COUNTS = np.arange(V, 0, -1) ** 2
TEXT = Text(RNG.integers(0, V, 400).astype(np.int32), np.array([0, 37, 37, 200, 400]))


def dense_loss(tables: dict[str, Tensor], pairs: Pairs, weight: float) -> Tensor:
    """Every pair with every shared negative, as the formula says."""
    v, u = tables[INPUT][pairs.centres], tables[OUTPUT][pairs.contexts]
    negative = tables[OUTPUT][pairs.negatives]  # (S, d)
    return -F.logsigmoid((v * u).sum(1)).sum() - weight * F.logsigmoid(-v @ negative.T).sum()


def dense(update: Update, name: str) -> Tensor:
    table, rows = torch.zeros(V, D), update[f"delta/{name}"]
    assert isinstance(rows, Rows)
    table[rows.ids] = rows.values
    return table


def leaves() -> dict[str, Tensor]:
    return {name: torch.tensor(table, requires_grad=True) for name, table in TABLES.items()}


def test_the_fused_gradient_equals_autograd() -> None:
    options = Word2Vec(dimension=D, batch=300, shared=8, negatives=5, lr=1.0)
    frequencies = unigrams(COUNTS, 0.0)
    update = gradient(TABLES, TEXT, frequencies, options, Moment(0, 1), root(3))
    tables = leaves()
    pairs = draw_batch(TEXT, frequencies, options, root(3))
    assert len(set(pairs.negatives.tolist())) < 8 or len(pairs.negatives) == 8
    loss = dense_loss(tables, pairs, 5 / 8)
    loss.backward()  # type: ignore[no-untyped-call]
    for name in (INPUT, OUTPUT):
        grad = tables[name].grad
        assert grad is not None
        torch.testing.assert_close(dense(update, name), -grad, atol=1e-5, rtol=1e-5)
    mean = update["loss"]
    assert isinstance(mean, Tensor)
    torch.testing.assert_close(mean, loss.detach(), rtol=1e-5, atol=1e-5)


def test_counts_are_how_often_each_row_was_met() -> None:
    options = Word2Vec(dimension=D, batch=100, shared=8)
    pairs = draw_batch(TEXT, unigrams(COUNTS, 0.0), options, root(3))
    update = gradient(TABLES, TEXT, unigrams(COUNTS, 0.0), options, Moment(0, 1), root(3))
    rows = update[f"delta/{INPUT}"]
    assert isinstance(rows, Rows)
    assert rows.counts is not None
    assert (
        rows.counts.tolist() == np.bincount(pairs.centres, minlength=V)[rows.ids.numpy()].tolist()
    )


def slow_pass(
    text: Text, options: Word2Vec, low: np.ndarray, high: np.ndarray, negatives: np.ndarray
) -> dict[str, Tensor]:  # type: ignore[type-arg]
    """SGD, centre after centre, rows as word2vec moves them: all pairs of a centre are scored, then
    each moves its output row, and the centre's row moves once, when all are done.
    """
    tables = {name: torch.tensor(table) for name, table in TABLES.items()}
    lr = options.lr
    for i, centre in enumerate(text.tokens):
        contexts = [j for j in range(low[i], high[i]) if j != i]
        step = torch.zeros(D)
        v = tables[INPUT][centre]
        pairs = [(text.tokens[j], 1.0, 1) for j in contexts] + [
            (n, -1.0, len(contexts)) for n in (negatives[i] if contexts else [])
        ]
        scores = [v @ tables[OUTPUT][word] for word, _, _ in pairs]
        for (word, sign, times), score in zip(pairs, scores, strict=True):
            u = tables[OUTPUT][word]
            g = lr * times * sign * torch.sigmoid(-sign * score)
            step += g * u
            tables[OUTPUT][word] = u + g * v
        tables[INPUT][centre] = v + step
    return tables


def test_a_local_pass_equals_the_slow_one() -> None:
    options = Word2Vec(dimension=D, window=3, negatives=4, lr=0.05, subsample=0.0)
    low, high = skipgram.windows(TEXT.starts, 3, 11)
    negatives = skipgram.draw(unigrams(COUNTS, 0.0).table, (400, 4), 12)
    rows = gather(TABLES, TEXT.tokens, TEXT.tokens, negatives)
    counts = np.zeros(len(rows.v_ids), np.int64), np.zeros(len(rows.u_ids), np.int64)
    places, spans, rates = (rows.centres, rows.words), (low, high), (0.05, 0.05)
    skipgram.sgd_pass(
        rows.v_rows, rows.u_rows, places, spans, rows.negatives, 1.0, rates, counts
    )  # fmt: skip
    slow = slow_pass(TEXT, options, low, high, negatives)
    torch.testing.assert_close(
        torch.from_numpy(rows.v_rows), slow[INPUT][rows.v_ids], atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(
        torch.from_numpy(rows.u_rows), slow[OUTPUT][rows.u_ids], atol=1e-5, rtol=1e-5
    )


def test_a_pass_moves_only_the_rows_it_names_and_lowers_the_loss() -> None:
    tables = {INPUT: TABLES[INPUT] * 0.01, OUTPUT: np.zeros((V, D), np.float32)}
    options = Word2Vec(dimension=D, lr=0.1, subsample=0.0)
    first = local_pass(tables, TEXT, unigrams(COUNTS, 0.0), options, Moment(0, 1), root(1))
    for _ in range(20):
        update = local_pass(tables, TEXT, unigrams(COUNTS, 0.0), options, Moment(0, 1), root(1))
        for name in (INPUT, OUTPUT):
            tables[name] = tables[name] + dense(update, name).numpy()
    before, after = (float(u["loss"] / u["weight"]) for u in (first, update))  # type: ignore[operator]
    assert before == pytest.approx(6 * math.log(2), rel=0.05)
    assert after < before - 0.2


def test_windows_stay_within_their_text_and_are_as_wide_as_asked() -> None:
    low, high = skipgram.windows(TEXT.starts, 5, 1)
    for piece in range(4):
        for i in range(TEXT.starts[piece], TEXT.starts[piece + 1]):
            assert TEXT.starts[piece] <= low[i] <= i < high[i] <= TEXT.starts[piece + 1]
            assert i - low[i] <= 5
            assert high[i] - i <= 6
    reach = [i - low[i] for i in range(60, 190)]
    assert {1, 2, 3, 4, 5} == set(reach)


def test_negatives_follow_the_counts_to_three_quarters() -> None:
    drawn = skipgram.draw(unigrams(COUNTS, 0.0).table, (200_000,), 5)
    expected = COUNTS**0.75 / (COUNTS**0.75).sum()
    assert np.allclose(
        np.bincount(drawn, minlength=V) / 200_000, expected, atol=4 * np.sqrt(expected / 200_000)
    )


@pytest.mark.parametrize("reuse", [1, 4, 8, 1000])
def test_a_negative_serves_its_neighbours_as_often_as_asked(reuse: int) -> None:
    options, many = Word2Vec(negatives=5, reuse=reuse), np.ones(10**6, np.int64)
    negatives = draw_negatives(unigrams(many, 0.0), 1000, options, root(1))
    assert negatives.shape == (1000, 5)
    assert all(len(set(row)) == 5 for row in negatives.tolist())
    _, times = np.unique(negatives[:NEAR], return_counts=True)
    most = min(reuse, NEAR)  # a centre has five of them, however often they serve
    assert times.mean() == pytest.approx(most, rel=0.02)
    assert set(times.tolist()) <= {most - 1, most, most + 1}
    assert not set(negatives[:NEAR].flat) & set(negatives[NEAR : 2 * NEAR].flat)


def test_pace_shares_out_all_text_and_the_whole_learning_rate() -> None:
    even, late = ([Moment(n, 40, pace) for n in range(40)] for pace in (1.0, 2.0))
    for moments in (even, late):
        words = [len(stretch(LONG, 1.5, moment, root(1)).tokens) for moment in moments]
        assert sum(words) == 1.5 * len(LONG.tokens)
        assert moments[0].rate(0.1)[0] == 0.1
        assert [m.done[1] for m in moments[:-1]] == [m.done[0] for m in moments[1:]]
    assert [len(stretch(LONG, 1.0, late[n], root(1)).tokens) for n in (0, 39)] == [10, 790]
    assert [len(stretch(LONG, 1.0, even[n], root(1)).tokens) for n in (0, 39)] == [400, 400]


LONG = Text(np.arange(16_000, dtype=np.int32), np.arange(0, 16_001, 10))


def test_frequent_words_are_thinned_as_word2vec_does() -> None:
    counts = np.array([90_000, 9_000, 900, 100])
    frequencies = unigrams(counts, 1e-2)
    share = counts / counts.sum()
    assert frequencies.keep == pytest.approx(
        np.minimum(1, np.sqrt(1e-2 / share) + 1e-2 / share), rel=1e-5
    )
    tokens = np.repeat(np.arange(4, dtype=np.int32), counts)
    kept, ends = skipgram.thin(tokens, np.array([0, 50_000, 100_000]), frequencies.keep, 9)
    assert np.bincount(kept)[0] / 90_000 == pytest.approx(frequencies.keep[0], rel=0.05)
    assert ends[-1] == len(kept)


def test_the_held_out_loss_is_the_formula() -> None:
    centres, contexts = RNG.integers(0, V, (2, 50)).astype(np.int32)
    negatives = RNG.integers(0, V, (50, 5)).astype(np.int32)
    v, u = torch.tensor(TABLES[INPUT])[centres], torch.tensor(TABLES[OUTPUT])
    slow = (
        -F.logsigmoid((v * u[contexts]).sum(1)).sum()
        - F.logsigmoid(-(v[:, None] * u[negatives]).sum(2)).sum()
    )
    assert Pairs(centres, contexts, negatives).loss(TABLES) == pytest.approx(float(slow), rel=1e-5)


def test_what_is_no_number_stays_visible() -> None:
    broken = {name: table.copy() for name, table in TABLES.items()}
    broken[INPUT][5] = np.nan
    pairs = Pairs(np.array([5], np.int32), np.array([1], np.int32), np.array([[2]], np.int32))
    assert math.isnan(pairs.loss(broken))
