"""Sums of passes that were made side by side, as if they had been made one after the other."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lexfed.core.kernels import round_rows
from lexfed.core.params import Rows, union
from lexfed.core.seeds import root
from lexfed.models.skipgram import INPUT, OUTPUT, Text, unigrams
from lexfed.privacy.mechanism import Asked
from lexfed.word2vec.in_turn import AXES, LOGISTIC, Bowl, bowl, in_turn
from lexfed.word2vec.options import Word2Vec
from lexfed.word2vec.passes import Moment, Pairs, local_pass
from lexfed.word2vec.row_rules import RowRule, RowStep, start

D = 6


@pytest.mark.parametrize("nodes", [2, 10, 400])
@pytest.mark.parametrize("pairs", [1, 100, 10_000])
def test_in_a_bowl_the_sum_is_where_one_after_the_other_ends(nodes: int, pairs: int) -> None:
    generator = torch.Generator().manual_seed(nodes + pairs)
    axes, _ = torch.linalg.qr(torch.randn(D, D, generator=generator))
    curvatures, lr = torch.tensor([4.0, 1.0, 0.3, 0.1, 0.01, 0.0]), 0.025
    down = torch.randn(D, generator=generator)  # from a row to the bottom of its bowl

    def descent(pairs: int) -> Tensor:
        """How gradient flow moves the row."""
        return axes @ ((1 - torch.exp(-lr * pairs * curvatures)) * (axes.T @ down))

    sent = (nodes * descent(pairs))[None]
    counts = torch.tensor([nodes * pairs]), torch.tensor([nodes])
    total = Rows(torch.tensor([0]), sent, None, *counts)
    Bowl(axes, curvatures, 0.0).slow(total, lr)
    expected = descent(nodes * pairs)
    flat = nodes * pairs == 2  # a plain sum is right to a tenth
    tolerance = 0.1 * float(expected.norm()) if flat else 1e-3
    torch.testing.assert_close(total.values[0], expected, atol=tolerance, rtol=0)


def test_flat_directions_are_added_steep_ones_averaged() -> None:
    nodes = torch.tensor([1.0, 10.0])
    assert in_turn(torch.tensor(1e-9), nodes).tolist() == pytest.approx([1, 1], abs=1e-3)
    assert in_turn(torch.tensor(1e9), nodes).tolist() == pytest.approx([1, 0.1])
    between = in_turn(torch.tensor(1.0), torch.tensor(10.0))
    assert float(between) == pytest.approx((1 - math.exp(-1)) / (10 * (1 - math.exp(-0.1))))


def test_the_axes_are_those_of_the_rows_that_were_met() -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(50, D, generator=generator)
    ids, counts = torch.arange(0, 50, 2), torch.arange(1, 26)
    met = Rows(ids, torch.zeros(25, D), None, counts)
    moved = Rows(ids, torch.zeros(25, D), None, torch.full((25,), 1))
    shape = bowl(table, met, moved)
    rows, weights = table[ids], counts / counts.sum()
    hessian = LOGISTIC * counts.sum() / 25 * (rows * weights[:, None]).T @ rows
    made = shape.axes @ shape.curvatures.diag() @ shape.axes.T
    torch.testing.assert_close(made, hessian, atol=1e-4, rtol=1e-4)
    assert bowl(table, moved, met).curvatures.sum() < shape.curvatures.sum() / 5
    everyone = Rows(torch.arange(300), torch.zeros(300, D), None, torch.full((300,), 2))
    wide = bowl(torch.randn(300, 2 * AXES, generator=generator), everyone, everyone)
    assert wide.axes.shape == (2 * AXES, AXES)
    assert 0 < wide.rest < float(wide.curvatures[-1])


def test_of_one_node_nothing_is_slowed() -> None:
    sent = Rows(torch.tensor([0]), torch.ones(1, D), None, torch.tensor([10**6]))
    Bowl(torch.eye(D), torch.ones(D), 0.0).slow(sent, 1.0)
    assert torch.equal(sent.values, torch.ones(1, D))


# --- the whole rule, beside training in one place -------------------------------------------------

V = 120


def corpus(seed: int, pieces: int = 150) -> Text:
    """Words in twelve topics, Zipfian: a word is met by those of its topic."""
    rng = np.random.default_rng(seed)
    topics = np.repeat(rng.integers(0, 12, pieces), 10)
    ranks = np.minimum(rng.zipf(1.3, len(topics)), V // 12) - 1
    return Text((12 * ranks + topics).astype(np.int32), np.arange(0, len(topics) + 1, 10))


def trained(rule: str, nodes: int, rounds: int) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    options = Word2Vec(dimension=D, lr=0.05, window=5, subsample=0.0, reach=1e9)
    texts = [corpus(node) for node in range(nodes)]
    words = unigrams(np.bincount(np.concatenate([t.tokens for t in texts]), minlength=V), 0.0)
    rng = np.random.default_rng(0)
    tables = {
        INPUT: torch.from_numpy(((rng.random((V, D)) - 0.5) / D).astype(np.float32)),
        OUTPUT: torch.zeros(V, D),
    }
    held = {name: table.numpy() for name, table in tables.items()}
    state = start(tables, changed=False)
    mechanism = RowRule(rule, 200.0, 1e9, lambda version: 0.05)  # type: ignore[arg-type]
    for number in range(rounds):
        sent = [
            local_pass(held, text, words, options, Moment(0, 1000), root(1000 * number + node))
            for node, text in enumerate(texts)
        ]
        total = {
            f"delta/{n}": union([update[f"delta/{n}"] for update in sent])  # type: ignore[misc]
            for n in tables
        }
        asked = Asked(range(nodes), nodes, nodes, tables)
        update, state = mechanism.release(
            {**total, "nodes": torch.tensor(float(nodes))}, asked, dict(state), b""
        )
        RowStep().step(tables, update, {})
    return held


def heldout(tables: dict[str, np.ndarray]) -> float:  # type: ignore[type-arg]
    text = corpus(999, pieces=1500).tokens.reshape(-1, 10)
    centres, contexts = text[:, 3].copy(), text[:, 6].copy()
    negatives = np.random.default_rng(5).choice(text.flatten(), (len(centres), 5))
    return Pairs(centres, contexts, negatives).loss(tables) / len(centres)


def test_where_every_row_is_frequent_it_is_as_stable_as_the_mean() -> None:
    """And a sum is not, that nothing holds within reach."""
    losses = {rule: heldout(trained(rule, 8, 20)) for rule in ("in_turn", "add_rare", "row_mean")}
    assert losses["in_turn"] == pytest.approx(losses["row_mean"], rel=0.03)
    assert losses["in_turn"] < 6 * math.log(2) / 2 < losses["add_rare"]


# --- rounded rows stay small until they are added -------------------------------------------------


def test_one_nodes_rounded_rows_are_added_once_and_to_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    sent = []
    for node in range(3):
        steps, scale = round_rows(rng.normal(size=(40, D)).astype(np.float32), node)
        ids = torch.from_numpy(np.sort(rng.permutation(60)[:40]))
        counts = torch.from_numpy(rng.integers(1, 9, 40))
        sent.append(Rows(ids, torch.from_numpy(steps), torch.from_numpy(scale), counts))
    alone = union(sent[:1])
    assert alone.values.dtype == torch.int8
    assert torch.equal(alone.exact().values, sent[0].values.float() * sent[0].scale)
    blocks = union([union([one]) for one in sent])
    at_once = union(sent)
    assert blocks.squares is not None
    assert at_once.squares is not None
    for name in ("ids", "values", "counts", "nodes", "squares"):
        assert torch.equal(getattr(blocks, name), getattr(at_once, name))
    expected = torch.zeros(60, D)
    for one in sent:
        expected[one.ids] += one.exact().values
    torch.testing.assert_close(blocks.values, expected[blocks.ids])
