"""Local optimizers against torch's own."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from lexfed.core.params import Params
from lexfed.core.seeds import Seed, root
from lexfed.learning.task import Local, Train, descend

TORCHS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", TORCHS)
def test_the_steps_are_torchs_to_the_bit(name: str, decay: float) -> None:
    """With a rate and a pace of its own for each parameter, one frozen, one never met."""
    torch.manual_seed(0)
    start = {n: torch.randn(5, 3) for n in ("a", "b", "frozen", "unmet")}
    targets = [torch.randn(5, 3) for _ in range(4)]

    def gradient(leaves: Params, batch: Tensor, seed: Seed) -> tuple[float, Params]:
        loss = (leaves["a"] - batch).square().sum() + (leaves["b"] * batch).sin().sum()
        met = [leaves["a"], leaves["b"]]
        found = torch.autograd.grad(loss, met)
        return loss.item(), dict(zip("ab", found, strict=True))

    def epoch(seed: Seed) -> Iterator[Tensor]:
        return iter(targets)

    rates = {"a": 1.0, "b": 0.1, "frozen": 0.0, "unmet": 1.0}
    local = Local(0.05, 2, rate=rates.__getitem__, pace=lambda step: 1 / (step + 1))
    options = Train(optimizer=name, weight_decay=decay)  # type: ignore[arg-type]
    ours, _ = descend(start, epoch, gradient, options, local, root(0))

    theirs = {n: v.clone().requires_grad_() for n, v in start.items()}
    trained = [{"params": [theirs[n]], "lr": 0.05 * rates[n]} for n in ("a", "b", "unmet")]
    more = {} if name == "sgd" else {"fused": True}
    optimizer = TORCHS[name](trained, 0.05, weight_decay=decay, **more)
    for number in range(8):
        _, found = gradient(theirs, targets[number % 4], b"")
        for n, leaf in theirs.items():
            leaf.grad = found.get(n)
        for group, rate in zip(optimizer.param_groups, (1.0, 0.1, 1.0), strict=True):
            group["lr"] = 0.05 * rate * (1 / (number + 1))
        optimizer.step()
    for n, value in start.items():
        assert torch.equal(ours[n], theirs[n].detach()), n
        assert torch.equal(ours[n], value) == (n in ("frozen", "unmet")), n


def test_to_train_loads_no_compiler() -> None:
    """It would be a second of every worker process."""
    code = """if True:
        import sys
        import torch
        from lexfed.core.seeds import root
        from lexfed.learning.task import Local, Train, descend
        start = {"a": torch.ones(2)}
        step = lambda leaves, batch, seed: (0.0, {"a": leaves["a"].detach() * batch})
        descend(start, lambda seed: iter(torch.ones(3, 1)), step, Train(), Local(0.1), root(0))
        assert "torch._dynamo" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True)
