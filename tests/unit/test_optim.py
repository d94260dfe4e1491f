"""Server steps against the papers' formulas, one number at a time (Reddi et al. 2021, Algorithm 2; Hsu et al. 2019)."""

import math

import pytest
import torch

from lexfed.optim import ServerOptimizer, Slots
from lexfed.params import Params

DELTAS = [0.5, -0.25, 0.125, 2.0]
LR, B1, B2, TAU = 0.3, 0.9, 0.99, 1e-3


def by_hand(kind: str) -> float:
    x, m, v = 1.0, 0.0, TAU**2
    for d in DELTAS:
        if kind == "sgd":
            x += LR * d
        elif kind == "momentum":
            m = B1 * m + d
            x += LR * m
        else:
            m = B1 * m + (1 - B1) * d
            sign = math.copysign(1.0, v - d * d)
            v = B2 * v + (1 - B2) * d * d if kind == "adam" else v - (1 - B2) * d * d * sign
            x += LR * m / (math.sqrt(v) + TAU)
    return x


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam", "yogi"])
def test_server_steps_equal_their_formulas(kind: str) -> None:
    optimizer = ServerOptimizer(kind, lr=LR, beta1=B1, beta2=B2, tau=TAU)  # type: ignore[arg-type]
    params: Params = {"x": torch.tensor([1.0, 1.0], dtype=torch.float64)}
    slots: Slots = {}
    for d in DELTAS:
        params, slots = optimizer.step(params, {"x": torch.tensor([d, d], dtype=torch.float64)}, slots)
    assert params["x"].tolist() == pytest.approx([by_hand(kind)] * 2, rel=1e-12)


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam", "yogi"])
def test_no_update_is_no_step(kind: str) -> None:
    optimizer = ServerOptimizer(kind)  # type: ignore[arg-type]
    params, slots = optimizer.step({"x": torch.ones(2)}, {"x": torch.ones(2)}, {})
    after, kept = optimizer.step(params, {}, slots)
    assert torch.equal(after["x"], params["x"])
    assert {s: {n: v.tolist() for n, v in p.items()} for s, p in kept.items()} == {
        s: {n: v.tolist() for n, v in p.items()} for s, p in slots.items()
    }
