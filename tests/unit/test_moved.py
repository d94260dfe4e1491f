"""Where local training began and how it moved is the same as where it led to."""

import pytest
import torch

from lexfed.core.params import Rows
from lexfed.core.seeds import root
from lexfed.learning.moved import Moved
from lexfed.learning.task import Local, Train, by_autograd, descend

TABLE = torch.arange(8.0).reshape(4, 2)
START = {"table": TABLE, "bias": torch.ones(2)}
SOME = torch.tensor([1, 3])


def test_a_table_is_made_when_it_is_asked_for() -> None:
    moved = Moved(START, by={"table": torch.full((2, 2), 0.5)}, rows={"table": SOME})
    rows = moved.since("table", TABLE)
    assert not moved.made, "nobody has asked for a table yet"
    assert isinstance(rows, Rows)
    assert torch.equal(rows.ids, SOME)
    assert torch.equal(moved["table"], TABLE + rows.spread(TABLE))
    assert torch.equal(moved["bias"], START["bias"]), "it did not move"
    assert moved.keys() == START.keys()
    again = moved.since("table", TABLE)
    assert isinstance(again, Rows), "to look at it changes nothing"


def test_what_is_known_as_it_is_now_is_the_same_to_the_bit() -> None:
    now = torch.rand(2, 2, generator=torch.Generator().manual_seed(0))
    moved = Moved(START, now={"table": now}, rows={"table": SOME})
    assert torch.equal(moved["table"][SOME], now)
    rows = moved.since("table", TABLE)
    assert isinstance(rows, Rows)
    assert torch.equal(rows.values, now - TABLE[SOME])


def test_what_was_not_trained_is_as_it_was() -> None:
    """No texts, or a table that is frozen: its rows are known, and none of them moved."""
    moved = Moved(START, rows={"table": SOME})
    rows = moved.since("table", TABLE)
    assert isinstance(rows, Rows)
    assert torch.equal(rows.values, torch.zeros(2, 2))
    assert torch.equal(moved["table"], TABLE)


def test_whoever_writes_into_it_or_asks_from_elsewhere_gets_the_whole_difference() -> None:
    moved = Moved(START, by={"table": torch.ones(2, 2)}, rows={"table": SOME})
    from_elsewhere = moved.since("table", torch.zeros(4, 2))
    assert isinstance(from_elsewhere, torch.Tensor)
    assert torch.equal(from_elsewhere, moved["table"])
    moved["table"].mul_(2)
    written = moved.since("table", TABLE)
    assert isinstance(written, torch.Tensor)
    assert torch.equal(written, moved["table"] - TABLE)


@pytest.mark.parametrize("mu", [0.0, 0.3])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_plain_descent_is_its_formula(steps: int, decay: float, mu: float) -> None:
    """w <- w - lr (2 w + decay w + mu (w - w_0)), as often as there are batches."""
    start = {"w": torch.tensor([1.0, -2.0]), "frozen": torch.ones(1)}
    moved, _ = descend(
        start,
        lambda seed: iter([[0]] * steps),
        by_autograd(lambda leaves, batch, seed: leaves["w"].square().sum()),
        Train(optimizer="sgd", weight_decay=decay),
        Local(0.1, rate=lambda name: float(name == "w"), mu=mu),
        root(0),
    )
    w = start["w"].clone()
    for _ in range(steps):
        w = w - 0.1 * (2 * w + decay * w + mu * (w - start["w"]))
    torch.testing.assert_close(moved["w"], w)
    torch.testing.assert_close(moved.since("w", start["w"]), w - start["w"])
    assert torch.equal(moved["frozen"], torch.ones(1))
    assert torch.equal(start["w"], torch.tensor([1.0, -2.0])), "as it was"
