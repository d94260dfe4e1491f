"""Noise against its law: by its probabilities, its moments and its last bits.

Fresh noise can't be seeded, so every bound on it is six standard errors (or a p-value of 1e-8): it
fails by chance about
once in a hundred million runs.
"""

import math
import os
import time

import numpy as np
import pytest
import torch
from scipy import stats

from lexfed.core.errors import PrivacyError
from lexfed.core.seeds import derive, root
from lexfed.privacy.noise import (
    BITS,
    discrete_gaussian,
    fresh_steps,
    gaussian,
    grid_of,
    in_steps,
)

LIKE = {"embedding.weight": torch.empty(300, 50), "bias": torch.empty(7), "scale": torch.empty(())}


def fit(draws: "np.ndarray[tuple[int], np.dtype[np.int64]]", sigma: int) -> float:
    """The p-value of these draws under exp(-n^2 / 2 sigma^2), by definition; rare values are
    counted together.
    """
    support = np.arange(-60 * sigma, 60 * sigma + 1)
    law = np.exp(-(support**2) / (2 * sigma**2))
    law /= law.sum()
    edge = int(4 * sigma)
    inner = np.abs(support) <= edge
    expected = np.array([law[support < -edge].sum(), *law[inner], law[support > edge].sum()]) * len(
        draws
    )
    observed = np.array(
        [(draws < -edge).sum(), *[(draws == n).sum() for n in support[inner]], (draws > edge).sum()]
    )
    return float(stats.chisquare(observed, expected).pvalue)


@pytest.mark.parametrize("sigma", [1, 2, 3, 7])
def test_small_sigma_has_the_law_it_should(sigma: int) -> None:
    assert fit(discrete_gaussian(200_000, sigma), sigma) > 1e-8


def test_a_rounded_gaussian_has_not() -> None:
    rounded = np.random.default_rng(0).normal(0.0, 1.0, 200_000).round().astype(np.int64)
    assert fit(rounded, 1) < 1e-8
    doubled_zero = discrete_gaussian(200_000, 3)
    doubled_zero[::10][doubled_zero[::10] == 1] = (
        0  # what forgetting to reject -0 would look like, and less of it
    )
    assert fit(doubled_zero, 3) < 1e-8


@pytest.mark.parametrize("sigma", [1000, 999_983, 1 << 20, 1 << 30])
def test_large_sigma_has_the_moments_of_a_gaussian(sigma: int) -> None:
    count = 200_000
    x = discrete_gaussian(count, sigma) / sigma
    assert abs(x.mean()) < 6 * math.sqrt(1 / count)
    assert abs((x**2).mean() - 1) < 6 * math.sqrt(2 / count)
    assert abs((x**3).mean()) < 6 * math.sqrt(15 / count)
    assert abs((x**4).mean() - 3) < 6 * math.sqrt(96 / count)
    assert abs((x[1:] * x[:-1]).mean()) < 6 * math.sqrt(1 / count), "no draw knows the one before"
    assert stats.kstest(x, "norm").pvalue > 1e-8
    assert (discrete_gaussian(2000, sigma) % 2).mean() == pytest.approx(
        0.5, abs=6 * 0.5 / math.sqrt(2000)
    ), "to the last bit"


def test_how_many_and_which_sigmas() -> None:
    for count in (0, 1, 5, 300_000):
        assert discrete_gaussian(count, 5).shape == (count,)
    for sigma in (0, -1, (1 << 30) + 1):
        with pytest.raises(PrivacyError, match="whole sigma"):
            discrete_gaussian(1, sigma)


def test_a_model_of_a_million_and_a_half_parameters_takes_seconds() -> None:
    start = time.process_time()
    discrete_gaussian(1_500_000, 1 << 20)
    assert time.process_time() - start < 15  # about 2 on a free core


# --- on the grid ---------------------------------------------------------------------------------


@pytest.mark.parametrize("deviation", [1e-9, 0.1, 0.5, 0.7335, 1.0, 1.9999999, 2000.0])
def test_the_grid_is_a_power_of_two_far_below_the_deviation(deviation: float) -> None:
    grid = grid_of(deviation)
    assert math.frexp(grid)[0] == 0.5
    assert 2**BITS <= deviation / grid < 2 ** (BITS + 1)


@pytest.mark.parametrize("deviation", [1e-3, 0.7335, 3.0])
def test_fresh_noise_is_whole_steps_and_has_its_deviation(deviation: float) -> None:
    grid = grid_of(deviation)
    noise = fresh_steps(LIKE, deviation, grid)
    assert {name: value.shape for name, value in noise.items()} == {
        name: value.shape for name, value in LIKE.items()
    }
    assert {value.dtype for value in noise.values()} == {torch.int64}
    x = noise["embedding.weight"].double() * grid / deviation
    assert abs(float(x.square().mean()) - 1) < 6 * math.sqrt(2 / x.numel())
    derived = gaussian(LIKE, deviation, root(0))["embedding.weight"].double() / grid
    assert not torch.equal(derived, derived.round()), "the pair: floating-point noise is on no grid"


def test_rounding_towards_zero_never_lengthens() -> None:
    values = {
        "w": 1e-4 * torch.randn(5000, generator=torch.Generator().manual_seed(0)),
        "b": torch.tensor([-1.0, -1e-9, 0.0, 0.3]),
    }
    grid = 2.0**-16
    steps = in_steps(values, grid)
    for name, value in values.items():
        rounded = steps[name].double() * grid
        assert steps[name].dtype == torch.int64
        assert (rounded.abs() <= value.double().abs()).all()
        assert ((value.double() - rounded).abs() < grid).all()
        assert (rounded * value >= 0).all()
    again = {name: value.double() * grid for name, value in steps.items()}
    assert torch.equal(in_steps(again, grid)["w"], steps["w"])
    nearest = (values["w"] / grid).round() * grid
    assert (nearest.abs() > values["w"].abs()).any(), "the pair: to the nearest may lengthen"


@pytest.mark.parametrize("grid", [0.0, -0.5, 0.3, math.inf, math.nan])
def test_a_grid_whose_multiples_are_not_exact_is_refused(grid: float) -> None:
    assert in_steps({"w": torch.tensor([0.6])}, 0.5)["w"].tolist() == [1]
    with pytest.raises(PrivacyError, match="power of two"):
        in_steps({"w": torch.tensor([0.6])}, grid)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e38])
def test_what_is_no_number_has_no_steps(bad: float) -> None:
    with pytest.raises(PrivacyError, match="no number"):
        in_steps({"w": torch.tensor([bad])}, 2.0**-20)


@pytest.mark.parametrize("deviation", [0.0, -1.0, math.inf, math.nan, 1e-40])
def test_noise_of_no_deviation_has_no_grid(deviation: float) -> None:
    with pytest.raises(PrivacyError, match="deviation"):
        grid_of(deviation)


# --- where it comes from -------------------------------------------------------------------------


def test_derived_noise_comes_again_from_its_seed_and_name() -> None:
    one, again = gaussian(LIKE, 2.0, root(0)), gaussian(LIKE, 2.0, root(0))
    assert all(
        torch.equal(one[name], again[name]) and one[name].dtype == torch.float32 for name in LIKE
    )
    assert not torch.equal(one["bias"], gaussian(LIKE, 2.0, derive(root(0), 1))["bias"]), (
        "another seed"
    )
    both = gaussian({"a": torch.empty(50), "b": torch.empty(50)}, 1.0, root(0))
    assert not torch.equal(both["a"], both["b"]), "another name"
    assert torch.equal(gaussian({"b": torch.empty(50)}, 1.0, root(0))["b"], both["b"]), (
        "whatever else there is"
    )
    assert float(one["embedding.weight"].std()) == pytest.approx(2.0, rel=6 / math.sqrt(2 * 15_000))
    assert not gaussian(LIKE, 0.0, root(0))["bias"].any()
    with pytest.raises(PrivacyError, match="deviation"):
        gaussian(LIKE, -1.0, root(0))


def test_fresh_noise_never_comes_again_and_touches_no_generator() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    before, words = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    one = fresh_steps(LIKE, 1.0, grid_of(1.0))
    gaussian(LIKE, 1.0, root(0))
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], words)  # type: ignore[index]
    torch.manual_seed(0)
    np.random.seed(0)
    two = fresh_steps(LIKE, 1.0, grid_of(1.0))
    assert (one["embedding.weight"] == two["embedding.weight"]).float().mean() < 0.01


def test_forked_processes_draw_differently() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, discrete_gaussian(20, 1 << 20).tobytes())
        os._exit(0)
    mine = discrete_gaussian(20, 1 << 20)
    theirs = np.frombuffer(os.read(reading, 160), np.int64)
    os.waitpid(child, 0)
    os.close(reading)
    os.close(writing)
    assert len(theirs) == 20
    assert not np.array_equal(mine, theirs)
