"""The compiled LSTM against torch's own."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lexfed.core.errors import WireError
from lexfed.models import loops, recurrent

LENGTHS = {"one": [1], "alike": [4, 4, 4], "ragged": [9, 7, 7, 4, 1], "many": [6] * 11 + [2] * 3}


def _weights(ways: int, d: int, h: int, scale: float = 0.4) -> list[Tensor]:
    shapes = ((4 * h, d), (4 * h, h), (4 * h,), (4 * h,)) * ways
    return [(torch.randn(shape) * scale).requires_grad_() for shape in shapes]


def _packed(lengths: list[int], d: int) -> tuple[Tensor, Tensor]:
    sizes = torch.tensor([sum(n > t for n in lengths) for t in range(max(lengths))])
    return torch.randn(sum(lengths), d, requires_grad=True), sizes


def _torchs(x: Tensor, sizes: Tensor, weights: list[Tensor]) -> Tensor:
    ways = len(weights) // 4
    zero = x.new_zeros(ways, int(sizes[0]), weights[1].shape[1])
    return torch.lstm(x, sizes, (zero, zero), weights, True, 1, 0.0, True, ways == 2)[0]


def _close(ours: Tensor, theirs: Tensor) -> None:
    largest = float(theirs.detach().abs().max())
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6 * (largest + 1))


@pytest.mark.parametrize("ways", [1, 2])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize(("d", "h"), [(5, 3), (8, 16), (1, 1), (7, 21)])
def test_states_and_gradients_are_torchs(lengths: list[int], ways: int, d: int, h: int) -> None:
    torch.manual_seed(len(lengths) + d)
    weights = _weights(ways, d, h)
    x, sizes = _packed(lengths, d)
    ours, theirs = recurrent.packed(x, sizes, weights), _torchs(x, sizes, weights)
    _close(ours, theirs)
    upstream = torch.randn_like(ours)
    for mine, other in zip(
        torch.autograd.grad(ours, [x, *weights], upstream),
        torch.autograd.grad(theirs, [x, *weights], upstream),
        strict=True,
    ):
        _close(mine, other)
        assert mine.is_contiguous(), "torch's fused optimizers read gradients as they lie"


def test_the_compiled_loops_are_what_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU torch's own is not asked; in other precision it is."""
    x, sizes = _packed([3, 2], 4)
    weights = _weights(1, 4, 4)
    wide = [one.detach().double() for one in weights]
    assert recurrent.packed(x.detach().double(), sizes, wide).dtype == torch.float64
    monkeypatch.delattr(torch, "lstm")
    recurrent.packed(x, sizes, weights)
    with pytest.raises(AttributeError):
        recurrent.packed(x.detach().double(), sizes, wide)


@pytest.mark.parametrize("layers", [1, 3])
def test_text_read_in_stretches_is_text_read_at_once(layers: int) -> None:
    torch.manual_seed(1)
    d, rows, length = 6, 5, 12
    weights = [one for _ in range(layers) for one in _weights(1, d, d)]
    x = torch.randn(rows, length, d)
    zero = torch.zeros(layers, rows, d)
    theirs, h, c = torch.lstm(x, (zero, zero), weights, True, layers, 0.0, True, False, True)
    state, parts = (zero, zero), []
    for stretch in torch.split(x, 5, dim=1):
        states, state = recurrent.layered(stretch, state, weights)
        parts.append(states)
    _close(torch.cat(parts, 1), theirs)
    _close(state[0], h)
    _close(state[1], c)
    upstream = torch.randn(rows, length, d)
    whole, _ = recurrent.layered(x, (zero, zero), weights)
    for mine, other in zip(
        torch.autograd.grad(whole, weights, upstream),
        torch.autograd.grad(theirs, weights, upstream),
        strict=True,
    ):
        _close(mine, other)


def test_second_derivatives_are_torchs() -> None:
    """An attacker who searches for texts differentiates gradients."""
    torch.manual_seed(2)
    weights = _weights(2, 4, 3)
    x, sizes = _packed([5, 3, 3], 4)

    def second(read: object) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(
            read(x, sizes, weights).square().sum(),  # type: ignore[operator]
            [x, *weights],
            create_graph=True,
        )
        return torch.autograd.grad(sum(one.square().sum() for one in first), [x, *weights])  # type: ignore[arg-type]

    for mine, other in zip(second(recurrent.packed), second(_torchs), strict=True):
        _close(mine, other)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 1e30, -1e30])
def test_what_is_no_number_stays_none(bad: float) -> None:
    """Divergence must show, and huge numbers must end where torch's do."""
    torch.manual_seed(3)
    weights = _weights(2, 4, 3)
    x, sizes = _packed([5, 3, 3], 4)
    with torch.no_grad():
        x[2, 1] = bad
        ours, theirs = recurrent.packed(x, sizes, weights), _torchs(x, sizes, weights)
    torch.testing.assert_close(ours, theirs, equal_nan=True, rtol=1e-5, atol=1e-6)


def test_large_arguments_saturate() -> None:
    values = np.concatenate([np.linspace(-200, 200, 4001), [-1e30, 1e30, -np.inf, np.inf, np.nan]])
    found = loops.sigmoids(values.astype(np.float32))
    with np.errstate(over="ignore"):
        expected = 1 / (1 + np.exp(-values))
    np.testing.assert_allclose(found, expected, rtol=3e-6, atol=1e-30)


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 7, 9), (8, 4, 16), (3, 5, 2), (4, 100, 33)])
def test_products(shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    draws = np.random.default_rng(0)
    a = draws.standard_normal((rows, inner)).astype(np.float32)
    w = draws.standard_normal((inner, columns)).astype(np.float32)
    for add, left in ((loops.add_product, a), (loops.add_turned, np.ascontiguousarray(a.T))):
        out = np.ones((rows, columns), np.float32)
        add(left, w, out)
        np.testing.assert_allclose(out, 1 + a @ w, rtol=1e-5, atol=1e-4)


NONE = np.zeros((0, 0), np.float32)


@pytest.mark.parametrize("size", [3, 64, 700])
@pytest.mark.parametrize("scale", [1.0, 60.0], ids=["usual", "logits that no number's exponent is"])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("soft", [False, True])
def test_a_softmax_and_what_flows_back_from_it(
    size: int, scale: float, frozen: bool, soft: bool
) -> None:
    """Some states are asked for several targets, or have more beside theirs."""
    torch.manual_seed(size)
    h, w, b = (torch.randn(s, dtype=torch.float64) * scale for s in ((19, 5), (size, 5), (size,)))
    states = torch.cat([torch.zeros(1 if soft else 3), torch.arange(1, 19)]).long()
    count = len(states)
    beside = torch.randn(size, 19, dtype=torch.float64) if soft else torch.zeros(0, 0)
    targets, counts = torch.randint(size, (count,)), torch.bincount(states)
    for one in (h, w, b):
        one.requires_grad_()
    loss = F.cross_entropy((h @ w.T + b)[states], targets, reduction="none")
    told = loss.mean()
    if soft:
        told = told - (beside.T * torch.log_softmax(h @ w.T + b, 1)).sum() / count
        told = told - beside.sum(0) @ torch.logsumexp(h @ w.T + b, 1) / count  # its sum is not 0
    expected = torch.autograd.grad(told, [h, w, b])
    single = [one.detach().float().numpy() for one in (h, w, b)]
    to_h, to_w, to_b = (np.ones_like(one) for one in single)
    losses = np.empty(count, np.float32)
    asked = (states.numpy(), targets.numpy(), counts.float().numpy(), beside.float().numpy())
    loops.cross_entropy(count, *single, *asked, to_h, to_w[:0] if frozen else to_w, to_b, losses)
    lost = np.minimum(
        loss.detach().numpy(), 87
    )  # a chance below the smallest number counts as that
    np.testing.assert_allclose(losses, lost, rtol=1e-4, atol=1e-3 * scale)
    for found, right in zip((to_h, to_b), (expected[0], expected[2]), strict=True):
        np.testing.assert_allclose(found, 1 + right.numpy(), rtol=2e-3, atol=2e-5 * scale)
    right = 1 if frozen else 1 + expected[1].numpy()
    np.testing.assert_allclose(to_w, right, rtol=2e-3, atol=2e-5 * scale)


@pytest.mark.parametrize("scale", [1.0, 60.0])
def test_chances_are_a_softmax_turned(scale: float) -> None:
    h, w, b = (torch.randn(s) * scale for s in ((19, 5), (70, 5), (70,)))
    b[3] = -1e4
    found = loops.chances(h.numpy(), w.numpy(), b.numpy())
    expected = torch.softmax((h.double() @ w.double().T + b.double()), 1).T.numpy()
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_softmax_of_no_numbers_says_so(bad: float) -> None:
    h, w, b = np.ones((2, 3), np.float32), np.ones((70, 3), np.float32), np.zeros(70, np.float32)
    h[1, 2] = bad
    losses, to = np.zeros(2, np.float32), [np.zeros_like(one) for one in (h, w, b)]
    states, targets = np.arange(2), np.array([3, 69])
    loops.cross_entropy(2, h, w, b, states, targets, np.ones(2, np.float32), NONE, *to, losses)
    assert np.isfinite(losses[0]), "the first state's are numbers"
    assert not np.isfinite(losses[1])
    assert not np.isfinite(to[0][1]).any()
    assert not np.isfinite(to[1]).all()


def test_a_sum_over_a_large_vocabulary_does_not_drift() -> None:
    """Equal logits are the worst case: every number is lost against the same sum."""
    size = 100_000
    h, w, b = np.zeros((2, 3), np.float32), np.ones((size, 3), np.float32), np.zeros(size, "f4")
    losses, to = np.zeros(2, np.float32), [np.zeros_like(one) for one in (h, w, b)]
    asked = (np.arange(2), np.array([3, 69]), np.ones(2, np.float32), NONE)
    loops.cross_entropy(2, h, w, b, *asked, *to, losses)
    np.testing.assert_allclose(losses, np.log(size), rtol=1e-6)
    np.testing.assert_allclose(to[2][100:], 1 / size, rtol=1e-5)


def test_weights_that_do_not_fit_are_refused_before_a_loop_sees_them() -> None:
    x, sizes = _packed([3, 2], 4)
    weights = _weights(1, 4, 3)
    for place, shape in ((0, (12, 2)), (1, (12, 2)), (1, (9, 3)), (2, (5,)), (3, (5,))):
        wrong = [torch.zeros(shape) if i == place else one for i, one in enumerate(weights)]
        with pytest.raises(WireError):
            recurrent.packed(x, sizes, wrong)
    with pytest.raises(WireError):
        recurrent.packed(x[:4], sizes, weights)
