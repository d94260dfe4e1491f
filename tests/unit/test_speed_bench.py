"""The benchmark against peers does the work that it says: everybody ends in the same weights."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SPEED = Path(__file__).parents[2] / "benchmarks" / "speed"


def played(monkeypatch: pytest.MonkeyPatch, script: str, *words: object) -> None:
    monkeypatch.syspath_prepend(str(SPEED))
    monkeypatch.setattr(sys, "argv", [script, *map(str, words)])
    importlib.import_module(script).main()


def weights(path: Path) -> dict[str, Any]:
    with np.load(path) as found:
        return {name: found[name] for name in found}


@pytest.mark.parametrize("variable", [False, True])
def test_lexfed_and_a_bare_loop_of_torch_end_a_round_in_the_same_weights(
    variable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SPEED))
    work = importlib.import_module("work")
    little = work.Work("little", 300, 12, variable, users=40, cohort=20, lr=1.0, clip=0.2)
    work.write(little, tmp_path)
    played(monkeypatch, "run_lexfed", tmp_path, "plan", "--rounds", 2)
    played(monkeypatch, "run_lexfed", tmp_path, "run", "--agree", tmp_path / "ours.npz")
    played(monkeypatch, "run_floor", tmp_path, "--agree", tmp_path / "floor.npz")
    start, ours = weights(tmp_path / "start.npz"), weights(tmp_path / "ours.npz")
    floor = weights(tmp_path / "floor.npz")
    assert start.keys() == ours.keys() == floor.keys()
    for name, value in ours.items():
        assert np.abs(value - start[name]).max() > 1e-4, "it has moved"
        np.testing.assert_allclose(value, floor[name], rtol=0, atol=1e-6)


# --- what is seen from outside --------------------------------------------------------------------


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The modules of the benchmark by their names."""
    monkeypatch.syspath_prepend(str(SPEED))
    return importlib.import_module


ROLLUP = """\
55d0c0a00000-7ffd1a3f2000 ---p 00000000 00:00 0                          [rollup]
Rss:              300000 kB
Pss:              204800 kB
Pss_Dirty:        100000 kB
Pss_Anon:         102400 kB
Pss_File:         102400 kB
SwapPss:               0 kB
"""


def test_memory_is_the_proportional_set_size(speed: Any) -> None:
    watching = speed("watching")
    assert watching.pss_mb(ROLLUP) == (200.0, 100.0)
    assert watching.pss_mb("") == (0.0, 0.0)


def proc(folder: Path, pid: int, parent: int, name: str = "python", born: int = 7) -> None:
    """A process as `/proc` shows it."""
    place = folder / str(pid)
    place.mkdir()
    after = ["S", parent, *[0] * 9, 100, 50, 30, 20, *[0] * 4, born, *[0] * 20]
    (place / "stat").write_text(f"{pid} ({name}) {' '.join(map(str, after))}\n")
    (place / "smaps_rollup").write_text(ROLLUP)


def test_a_family_is_all_that_comes_from_a_process(speed: Any, tmp_path: Path) -> None:
    watching = speed("watching")
    for pid, parent in ((10, 1), (11, 10), (12, 11), (20, 1)):
        proc(tmp_path, pid, parent, "a (strange) name")
    living = watching.everybody(tmp_path)
    ours = watching.family(10, living)
    assert {one.pid for one in ours} == {10, 11, 12}
    assert watching.memory_mb(ours, tmp_path) == (600.0, 300.0)
    tick = watching._TICK
    assert (ours[0].cpu, ours[0].reaped) == (150 / tick, 50 / tick)
    # a daemon whose parent has ended still counts, and a stranger with its number does not
    orphan = watching.Process(20, 11, 0.0, 0.0, born=7)
    assert 20 in {one.pid for one in watching.family(10, living, [orphan])}
    stranger = watching.Process(20, 11, 0.0, 0.0, born=8)
    assert 20 not in {one.pid for one in watching.family(10, living, [stranger])}


def test_a_command_is_watched_with_its_children(speed: Any) -> None:
    watching = speed("watching")
    child = "x = bytearray(60 << 20); x[::4096] = x[::4096]; import time; time.sleep(0.6)"
    code = (
        "import subprocess, sys; print('begun', flush=True)\n"
        f"subprocess.run([sys.executable, '-c', {child!r}], check=True); print('over')"
    )
    seen = watching.watch([sys.executable, "-c", code], {}, every=0.05)
    assert [line.text for line in seen.lines] == ["begun", "over"]
    assert 0.6 < seen.lines[1].wall_s <= seen.wall_s + 0.1
    assert seen.processes == 2
    assert seen.peak_pss_mb > seen.peak_anon_mb > 60
    with pytest.raises(watching.CommandError, match="ended with 3"):
        watching.watch([sys.executable, "-c", "raise SystemExit(3)"], {})


def test_rounds_are_told_apart_by_the_lines_of_a_run(speed: Any) -> None:
    watching, parts = speed("watching"), speed("parts")
    said = {
        2.0: "fedavg on x: 100 clients, 9,999 texts to train on, 99 held out, 3 rounds",
        4.0: "round 1/3  loss 1.391",
        4.5: "round 2/3  loss 1.391",
        5.2: "round 3/3  scoring 100 clients",
        9.0: "round 3/3  loss 1.2  accuracy 25 %",
    }
    lines = [watching.Line(text, at, 10 * at) for at, text in said.items()]
    found = parts.from_outside(watching.Watched(lines=lines))
    assert found["wall_s_per_round"] == pytest.approx(0.6)
    assert (found["start_s"], found["first_round_s"]) == (2.0, 4.0)
    assert found["cpu_s_of_rounds"] == pytest.approx(12.0)


# --- figures and page -----------------------------------------------------------------------------


def runs(key: str, *values: float) -> list[dict[str, float]]:
    return [{key: value} for value in values]


def test_a_ratio_is_of_medians_and_its_spread_of_neighbours(speed: Any) -> None:
    ratios = speed("ratios")
    aim = ratios.Aim("w", "CPU", "cpu", "we", "they", 0.5)
    part = {"runs": {"we": runs("cpu", 1, 2, 3), "they": runs("cpu", 4, 4, 10)}}
    found = ratios.ratio(part, aim)
    assert found.value == ratios.Spread(0.5, 0.25, 0.5)
    assert found.met
    assert not ratios.Ratio(aim, ratios.Spread(0.51, 0.4, 0.6)).met
    assert ratios.ratio({"runs": {"we": []}}, aim) is None


@pytest.fixture
def classified() -> dict[str, Any]:
    ours, theirs = "lexfed run, two workers", "Flower simulation, two workers"
    one = {"wall_s_per_round": 0.2, "whole_s": 5.0, "bytes_up_per_client": 10.0, "start_s": 1.0}
    other = {"wall_s_per_round": 1.0, "whole_s": 10.0, "bytes_up_per_client": 100.0, "start_s": 6.0}
    return {
        "agree_to": 1e-7, "rounds": 20, "dense": 100,
        "measured": {"machine": "2 cores", "versions": {"flower": {"flwr": "1.41.0"}},
                     "commit": "abc", "when": "2026-01-01"},
        "runs": {ours: [one, one], theirs: [other, other]},
        "memory": {ours: {"peak_pss_mb": 300.0, "processes": 4},
                   theirs: {"peak_pss_mb": 900.0, "processes": 12}},
    }  # fmt: skip


def test_the_page_says_what_is_not_met(speed: Any, classified: dict[str, Any]) -> None:
    page = speed("results_page").page({"classifier": classified})
    (whole,) = (line for line in page.splitlines() if "| whole run |" in line)
    assert "0.50" in whole
    assert "at most 0.27" in whole
    assert "**not met**" in whole
    (median,) = (line for line in page.splitlines() if "| median round |" in line)
    assert "0.20" in median
    assert median.endswith("| met |")
    assert "flwr 1.41.0" in page
    assert "agree to 1.0e-07" in page
    drawn = speed("pictures").bars({"classifier": classified})
    assert all(f"(plots/{name}.svg)" in page for name in drawn)
    assert {"speed-wall", "speed-memory", "speed-bytes", "speed-start"} == set(drawn)


def test_weights_that_differ_or_did_not_move_end_the_benchmark(speed: Any) -> None:
    parts = speed("parts")
    start, moved = {"w": np.zeros(3)}, {"w": np.ones(3)}
    assert parts.apart([moved, {"w": np.ones(3) + 1e-6}], start) == pytest.approx(1e-6)
    for weights in ([moved, {"w": np.ones(3) + 1e-4}], [start, start], [moved, {"v": np.ones(3)}]):
        with pytest.raises(SystemExit):
            parts.apart(weights, start)


def test_scale_is_judged(speed: Any) -> None:
    scale = speed("scale_rounds")
    rows = [
        {"cohort": c, "population": p, "s_per_round": s, "cpu_s_per_round": s, "before_s": 1.0, "peak_pss_mb": m,
         "peak_anon_mb": m}
        for c, p, s, m in ((10, 100_000, 0.01, 100), (10_000, 100_000, 9.0, 110),
                           (100, 1_000, 0.1, 100), (100, 1_000_000, 0.11, 300))
    ]  # fmt: skip
    told = scale.verdicts(rows)
    assert "Linear." in told[0]
    assert "1.10 times as long (wall). Flat." in told[1]
    assert sum("**Not flat.**" in sentence for sentence in told) == 2


def test_what_was_interrupted_goes_on_with_the_same_options_only(
    speed: Any, tmp_path: Path
) -> None:
    main = speed("runpy").run_path(str(SPEED / "__main__.py"))
    progress, same = tmp_path / "progress.json", {"commit": "abc", "repeats": 3, "rounds": None}
    assert main["unfinished"](progress, same) == {}
    progress.write_text(json.dumps({**same, "parts": {"small": {"runs": {}}}}))
    assert main["unfinished"](progress, same) == {"small": {"runs": {}}}
    assert main["unfinished"](progress, {**same, "commit": "abd"}) == {}


def test_every_part_has_its_place_on_the_page(speed: Any, classified: dict[str, Any]) -> None:
    started = {
        "import_torch_s": 1.0, "cpu_s": 3.0, "beyond_torch_s": 2.0, "first_round_cpu_s": 3.1,
        "first_round_beyond_torch_s": 2.1, "whole_cpu_s": 3.5, "whole_beyond_torch_s": 2.5,
    }  # fmt: skip
    start_up = {"measured": classified["measured"], "runs": {"lexfed run": [started]}}
    parts = {"start-up": start_up, "small": classified, "scale": {**classified, "rows": []}}
    page = speed("results_page").page(parts)
    for heading in ("## Aims", "## start-up", "## small: 1,000 tokens, width 32", "## scale"):
        assert heading in page
    (line,) = (line for line in page.splitlines() if line.startswith("| start-up |"))
    assert "2.00 s more" in line
    assert "**not met**" in line
    assert "Flower simulation, two workers | 1.000 | 6.0 | 10.0 |" in page
