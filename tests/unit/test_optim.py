"""Server steps against the papers' formulas, one number at a time (Reddi et al. 2021, Algorithm 2;
Hsu et al. 2019).
"""

import math
from pathlib import Path

import pytest
import torch

from lexfed.core.params import Params
from lexfed.federation.server_optimizer import ServerOptimizer, Slots, released
from lexfed.records import checkpoint
from lexfed.wire import read
from tests.conftest import ROOT, Lexfed

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
        params, slots = optimizer.step(
            params, {"x": torch.tensor([d, d], dtype=torch.float64)}, slots
        )
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


def test_the_mean_of_models_forgets_the_oldest_and_leaves_training_alone() -> None:
    plain, averaging = ServerOptimizer("momentum"), ServerOptimizer("momentum", average=0.75)
    x: Params = {"x": torch.zeros(2, dtype=torch.float64)}
    also, slots, kept = x, dict[str, Params](), dict[str, Params]()
    y = math.nan
    for d in DELTAS:
        x, slots = plain.step(x, {"x": torch.full((2,), d, dtype=torch.float64)}, slots)  # type: ignore[assignment]
        also, kept = averaging.step(also, {"x": torch.full((2,), d, dtype=torch.float64)}, kept)  # type: ignore[assignment]
        y = float(x["x"][0]) if math.isnan(y) else 0.75 * y + 0.25 * float(x["x"][0])
        assert torch.equal(also["x"], x["x"])
        assert released(also, kept)["x"].tolist() == pytest.approx([y, y], rel=1e-12)
    assert released(x, slots)["x"] is x["x"]


def test_what_is_scored_and_released_is_the_mean_of_the_models(
    lexfed: Lexfed, tmp_path: Path
) -> None:
    settings = [
        "rounds=3",
        "keep=[1, 2, 3]",
        "server.average=0.5",
        "data.clients=4",
        "data.limit=200",
        "cohort.size=2",
    ]
    words = [word for setting in settings for word in ("--set", setting)]
    result = lexfed("run", ROOT / "experiments" / "quick" / "fedavg.toml", *words, "--out", "run")
    assert result.returncode == 0, result.stderr
    one, two, three = (
        checkpoint.load(tmp_path / "run" / "kept" / f"00000{n}").state.params for n in (1, 2, 3)
    )
    model = read(tmp_path / "run" / "artifacts" / "model.safetensors").arrays
    for name, value in model.items():
        torch.testing.assert_close(value, one[name] / 4 + two[name] / 4 + three[name] / 2)
    refused = lexfed(
        "run",
        ROOT / "experiments" / "quick" / "agreed.toml",
        "--set",
        "server.average=0.5",
        "--out",
        "no",
    )
    assert refused.returncode == 2
    assert "does not read server.average" in refused.stderr
