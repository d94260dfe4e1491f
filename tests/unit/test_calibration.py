"""The paper's two figures; the noise is enough and no more than enough; the cache may be lost or
damaged, never believed.
"""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lexfed.core.errors import PrivacyError
from lexfed.privacy import calibration
from lexfed.privacy.accounting import Gaussian, Ledger, Release, SampledGaussian, epsilon
from lexfed.privacy.calibration import MOST_ROUNDS, noise_for, rounds_within

PAPER = (2.0, 1e-6, 0.002, 5000)  # epsilon, delta, 20,000 of 10 million users, rounds


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's own cache is neither read nor written."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calibration._kept_noise.cache_clear()
    yield tmp_path / "lexfed" / "noise.json"
    calibration._kept_noise.cache_clear()


def cost(
    noise: float, probability: float, rounds: int, accountant: calibration.Accountant
) -> float:
    event = Gaussian(noise) if probability == 1 else SampledGaussian(noise, probability)
    return epsilon((Release("user", event, rounds),), "user", 1e-6, accountant)


@pytest.mark.parametrize(
    ("accountant", "figure"), [("rdp", 0.8169), pytest.param("pld", 0.7335, marks=pytest.mark.slow)]
)
def test_the_figures_of_the_paper(accountant: calibration.Accountant, figure: float) -> None:
    noise = noise_for(*PAPER, accountant)
    assert noise == pytest.approx(figure, rel=0.005)
    assert cost(noise, 0.002, 5000, accountant) <= 2.0 < cost(0.99 * noise, 0.002, 5000, accountant)


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
@pytest.mark.parametrize(
    ("target", "probability", "rounds"), [(0.5, 1.0, 1), (3.0, 1.0, 30), (0.3, 0.05, 20)]
)
def test_enough_and_no_more(
    target: float, probability: float, rounds: int, accountant: calibration.Accountant
) -> None:
    noise = noise_for(target, 1e-6, probability, rounds, accountant)
    assert noise == float(f"{noise:.4e}"), "five digits"
    below = float(f"{noise * (1 - 1.1e-4):.4e}")
    assert (
        cost(noise, probability, rounds, accountant)
        <= target
        < cost(below, probability, rounds, accountant)
    )
    assert noise <= noise_for(target, 1e-6, probability, rounds, "rdp"), "PLD is the tighter one"


def test_four_gaussians_need_twice_the_noise_of_one() -> None:
    assert noise_for(1.0, 1e-6, 1.0, 4) == pytest.approx(2 * noise_for(1.0, 1e-6, 1.0, 1), rel=2e-4)
    assert noise_for(1.0, 1e-6, 0.1, 4, "rdp") < 0.5 * noise_for(1.0, 1e-6, 1.0, 4, "rdp"), (
        "a secret cohort needs less"
    )


def test_numbers_of_five_digits_in_their_order() -> None:
    places = range(-200_000, 200_000, 37)
    numbers = [calibration._noise_at(place) for place in places]
    assert numbers == sorted(set(numbers))
    assert [calibration._place_of(number) for number in numbers] == list(places)
    assert [calibration._noise_at(place) for place in (-1, 0, 1, 90_000)] == [
        0.99999,
        1.0,
        1.0001,
        10.0,
    ]


@pytest.mark.parametrize("least", [-1000, -999, -3, 0, 512, 999, 1000, 1001])
@pytest.mark.parametrize("start", [-1000, 0, 1000])
@pytest.mark.parametrize("law", ["smooth", "steps", "ends"])
def test_the_search_finds_the_least_place(least: int, start: int, law: str) -> None:
    def cost(place: int) -> float:
        if law == "smooth":
            return math.exp(-(((place - least) / 300) ** 3))
        if law == "steps":
            return 1.0 if place >= least else 1.5
        return 0.0 if place >= least else math.inf

    found = calibration._least(cost, 1.0, -1000, 1000, start, step=3)
    assert found == (None if least > 1000 else least)


@pytest.mark.parametrize(
    "arguments",
    [
        (0.0, 1e-6, 0.1, 10),
        (math.nan, 1e-6, 0.1, 10),
        (math.inf, 1e-6, 0.1, 10),
        (1.0, 0.0, 0.1, 10),
        (1.0, 1.0, 0.1, 10),
        (1.0, 1e-6, 0.0, 10),
        (1.0, 1e-6, 1.1, 10),
        (1.0, 1e-6, 0.1, 0),
        (1e-9, 1e-6, 1.0, 1000),  # no noise is enough
    ],
)
def test_what_can_not_be_meant_is_refused(arguments: tuple[float, float, float, int]) -> None:
    with pytest.raises(PrivacyError):
        noise_for(*arguments)


# --- the cache -----------------------------------------------------------------------------------

SMALL = (1.0, 1e-6, 1.0, 3, "rdp")


def again() -> float:
    """As a new process would."""
    calibration._kept_noise.cache_clear()
    return noise_for(*SMALL)  # type: ignore[arg-type]


def doctored(kept: Path, noise: float) -> str:
    """A file that says something else, and is whole."""
    [key] = json.loads(kept.read_text())["noise"]
    calibration._keep(key, noise)
    return kept.read_text()


def test_what_was_found_is_read_again(kept: Path) -> None:
    true = again()
    assert list(json.loads(kept.read_text())["noise"].values()) == [true]
    doctored(kept, 77.0)
    assert again() == 77.0, "from the file"
    assert noise_for(1.0, 1e-6, 1.0, 4, "rdp") > true, "another question is another key"
    assert len(json.loads(kept.read_text())["noise"]) == 2


@pytest.mark.parametrize(
    "damage", ["empty", "half", "a digit", "no digest", "a list", "a number", "bytes", "a folder"]
)
def test_a_damaged_file_is_not_believed(kept: Path, damage: str) -> None:
    true = again()
    text = doctored(kept, 77.0)
    whole = {
        "empty": b"",
        "half": text[: len(text) // 2].encode(),
        "a digit": text.replace("77.0", "17.0").encode(),
        "no digest": b'{"noise": {}}',
        "a list": b"[]",
        "a number": b'{"noise": 5, "digest": "00"}',
        "bytes": b"\xff\xfe\x00",
    }
    kept.unlink()
    if damage == "a folder":
        kept.mkdir()
    else:
        kept.write_bytes(whole[damage])
    assert again() == true
    assert kept.is_dir() or again() == true == next(
        iter(json.loads(kept.read_text())["noise"].values())
    ), "and mended"


def test_a_folder_that_can_not_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = again()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert again() == true


def test_two_processes_at_once_leave_a_whole_file(kept: Path) -> None:
    code = "import sys; from lexfed.privacy.calibration import _keep; [_keep(f'{sys.argv[1]}{i}', 1.5) for i in range(80)]"
    writers = [subprocess.Popen([sys.executable, "-c", code, name]) for name in "ab"]
    reads = 0
    while any(writer.poll() is None for writer in writers):
        if kept.exists():
            assert calibration._read_kept(), "whole at every moment"
            reads += 1
    assert [writer.returncode for writer in writers] == [0, 0]
    assert reads > 10
    names = calibration._read_kept()
    assert "a79" in names or "b79" in names
    assert [path.name for path in kept.parent.iterdir()] == ["noise.json"], "nothing is left behind"


# --- rounds_within -------------------------------------------------------------------------------

SPENT: Ledger = (Release("user", Gaussian(6.0), 2), Release("document", Gaussian(0.5)))


@pytest.mark.parametrize(
    ("ledger", "event", "accountant"),
    [
        ((), Gaussian(5.0), "pld"),
        ((), Gaussian(200.0), "pld"),
        (SPENT, SampledGaussian(1.0, 0.01), "rdp"),
        (SPENT, SampledGaussian(20.0, 0.3), "pld"),
        ((), SampledGaussian(0.8, 0.002), "rdp"),
    ],
)
def test_so_many_fit_and_not_one_more(
    ledger: Ledger, event: Gaussian | SampledGaussian, accountant: calibration.Accountant
) -> None:
    most = rounds_within(2.0, 1e-6, ledger, "user", event, accountant)
    assert most > 0
    assert epsilon((*ledger, Release("user", event, most)), "user", 1e-6, accountant) <= 2.0
    assert epsilon((*ledger, Release("user", event, most + 1)), "user", 1e-6, accountant) > 2.0


def test_rounds_that_were_taken_are_missing_from_those_that_are_left() -> None:
    event = Gaussian(30.0)
    most = rounds_within(2.0, 1e-6, (), "user", event, "rdp")
    for taken in (most // 2, most):
        assert (
            rounds_within(2.0, 1e-6, (Release("user", event, taken),), "user", event, "rdp")
            == most - taken
        )
    assert (
        rounds_within(2.0, 1e-6, (Release("document", event, most),), "user", event, "rdp") == most
    ), "another unit's"
    twice = rounds_within(2.0, 1e-6, (), "user", Gaussian(60.0), "rdp")
    assert 4 * most <= twice < 4 * (most + 1), "twice the noise, four times the rounds"


def test_noise_for_so_many_rounds_allows_so_many() -> None:
    noise = noise_for(1.5, 1e-6, 0.01, 300, "rdp")
    assert 300 <= rounds_within(1.5, 1e-6, (), "user", SampledGaussian(noise, 0.01), "rdp") <= 301


def test_none_left_and_no_end() -> None:
    spent: Ledger = (Release("user", Gaussian(1.0)),)
    assert rounds_within(2.0, 1e-6, spent, "user", Gaussian(100.0)) == 0
    assert rounds_within(2.0, 1e-6, (), "user", Gaussian(1.0)) == 0
    assert (
        rounds_within(
            2.0, 1e-6, (Release("user", Gaussian(50.0), 1, delta=1e-6),), "user", Gaussian(50.0)
        )
        == 0
    )
    assert rounds_within(2.0, 1e-6, (), "user", SampledGaussian(1000.0, 1e-4), "rdp") == MOST_ROUNDS
    with pytest.raises(PrivacyError, match="budget"):
        rounds_within(0.0, 1e-6, (), "user", Gaussian(1.0))
