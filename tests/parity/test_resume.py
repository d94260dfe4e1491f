"""A run that is killed and resumed ends as one that never was."""

import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lexfed.audits.transcript import transcript
from lexfed.experiment.assembly import assemble
from lexfed.records.rundir import RunDir
from lexfed.wire import decode, size
from tests.conftest import Lexfed, lexfed_process
from tests.parity.test_workers import figures

# Every client keeps a private table, and the run is long enough to be killed again and again.
LONG = [
    "method=local_only",
    "local_only.epochs=60",
    "evaluation.every=1",
    "cohort.lost=0.2",
    "cohort.stale=0.1",
]
# One-off work before and between rounds, two verbs, optimizer slots on the server.
STAGED = [
    "method=lg_fedavg",
    "lg_fedavg.warm=6",
    "rounds=60",
    "server.optimizer=adam",
    "server.lr=0.01",
    "cohort.dropout=0.2",
]


def words(settings: list[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


SETTINGS = words(LONG)


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)


def progress(run: Path) -> int:
    """How many rounds were recorded."""
    path = run / "rounds.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def run_into_a_round(
    run: Path, arguments: tuple[object, ...], cwd: Path
) -> "subprocess.Popen[str]":
    """Start, and return once another round was recorded."""
    before = progress(run)
    process = lexfed_process(*arguments, cwd=cwd)
    wait_until(lambda: progress(run) > before or process.poll() is not None)
    return process


def inside_a_round(run: Path) -> bool:
    """Some client had saved what it learnt in a round that the server has not finished."""
    step = json.loads((run / "checkpoint/state.json").read_text())["step"]
    return any(
        int(p.name.partition("-")[0]) >= step
        for p in (run / "checkpoint/clients").rglob("[0-9]*.safetensors")
    )


@pytest.mark.parametrize(
    ("settings", "kills"),
    [
        pytest.param(LONG, 1, id="private tables"),
        pytest.param(LONG, 10, id="private tables, ten kills", marks=pytest.mark.slow),
        pytest.param(STAGED, 6, id="stages, six kills", marks=pytest.mark.slow),
    ],
)
def test_kills_leave_no_trace(
    settings: list[str], kills: int, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    run, wire, rng, inside = tmp_path / "killed", tmp_path / "wire", random.Random(0), 0
    arguments: tuple[object, ...] = (
        "run",
        tiny,
        "--out",
        run,
        *words(settings),
        "--record-wire",
        wire,
    )
    for number in range(12):
        if number >= kills and inside:  # on a busy machine a kill may miss every round
            break
        process = run_into_a_round(run, (*arguments, "--workers", number % 3), tmp_path)
        time.sleep(rng.uniform(0, 0.15))
        assert process.poll() is None, "it ended before it could be killed"
        process.send_signal(signal.SIGKILL)
        process.communicate()
        inside += inside_a_round(run)
        arguments = ("run", run, "--resume", "--record-wire", wire)
    assert inside > 0, "at least one kill was inside a round"
    assert lexfed("run", run, "--resume", "--record-wire", wire).returncode == 0
    assert lexfed("run", tiny, "--out", "whole", *words(settings)).returncode == 0
    assert figures(run) == figures(tmp_path / "whole")
    records = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert [record["round"] for record in records] == list(range(1, 61)), "no gap, no double"
    verbs = assemble(RunDir(run).config()).method.client
    up = (one for one in transcript(wire, verbs) if one.direction == "up")
    sent = sum(size(one.message) for one in up if one.verb.kind != "figures")
    assert sent == sum(record["bytes_up"] for record in records), "nor in the recorded wire"


def test_ctrl_c_says_how_to_go_on(tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    run = tmp_path / "a"
    process = run_into_a_round(
        run, ("run", tiny, "--out", run, *SETTINGS, "--workers", 2), tmp_path
    )
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate()
    assert process.returncode == 130
    assert f"lexfed run {run} --resume" in stdout
    assert "Traceback" not in stderr
    assert lexfed("run", run, "--resume").returncode == 0
    assert progress(run) == 60


def test_more_rounds_are_the_rounds_of_a_longer_run(
    tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    assert lexfed("run", tiny, "--out", "a").returncode == 0
    assert lexfed("run", "a", "--resume", "--set", "rounds=5").returncode == 0
    assert lexfed("run", tiny, "--out", "b", "--set", "rounds=5").returncode == 0
    weights = [(tmp_path / name / "artifacts/model.safetensors").read_bytes() for name in "ab"]
    assert weights[0] == weights[1]


def test_a_finished_run_stays_as_it_is(tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    assert lexfed("run", tiny, "--out", "a").returncode == 0
    before = figures(tmp_path / "a")
    result = lexfed("run", "a", "--resume")
    assert result.returncode == 0
    assert figures(tmp_path / "a") == before


def test_a_run_that_diverges_keeps_its_last_good_round(
    tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    settings = ("--set", "train.optimizer=sgd", "--set", "train.lr=1e38", "--set", "rounds=4")
    result = lexfed("run", tiny, "--out", "a", *settings)
    assert result.returncode == 2
    assert "diverged" in result.stderr
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    assert summary["stopped"] == "diverged"
    assert summary["rounds"] == progress(tmp_path / "a") < 4
    weights = decode((tmp_path / "a/artifacts/model.safetensors").read_bytes()).arrays
    assert all(torch.isfinite(value).all() for value in weights.values())


@pytest.mark.parametrize(
    "settings",
    [
        ("train.upload=int8",),
        ("train.upload=fp16", "method=fedevocab"),
        ("privacy.placement=central", "privacy.noise=0.1", "privacy.clip=0.01",
         "cohort.sampling=poisson"),
        ("self_audit.limit=0.0", "self_audit.action=noise", "method=fedevocab",
         "vocabulary.vectors=hashed:4"),
    ],
)  # fmt: skip
def test_what_is_read_from_a_checkpoint_is_rounded_and_clipped_as_what_was_made_here(
    settings: tuple[str, ...], tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    """A model that was read has its names in another order: no draw may hang from it."""
    words = [word for setting in settings for word in ("--set", setting)]
    assert lexfed("run", tiny, "--out", "whole", *words, "--set", "rounds=4").returncode == 0
    assert lexfed("run", tiny, "--out", "parts", *words, "--set", "rounds=2").returncode == 0
    assert lexfed("run", "parts", "--resume", "--set", "rounds=4").returncode == 0
    whole, parts = (
        (tmp_path / name / "artifacts/model.safetensors").read_bytes()
        for name in ("whole", "parts")
    )
    assert whole == parts


@pytest.mark.parametrize("method", ["fedavg", "local_only"])
def test_a_fork_goes_its_own_way(method: str, tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    rounds = "rounds" if method == "fedavg" else "local_only.epochs"
    base = ("run", tiny, "--set", f"method={method}")
    assert lexfed(*base, "--set", f"{rounds}=2", "--out", "trunk").returncode == 0
    fork = lexfed(*base, "--set", f"{rounds}=4", "--from", "trunk", "--out", "fork")
    assert fork.returncode == 0, fork.stderr
    assert lexfed(*base, "--set", f"{rounds}=4", "--out", "whole").returncode == 0
    same = [
        (tmp_path / name / "artifacts/model.safetensors").read_bytes() for name in ("fork", "whole")
    ]
    assert same[0] == same[1]
    assert figures(tmp_path / "fork")[1] == figures(tmp_path / "whole")[1]
    other = lexfed(
        *base,
        "--set",
        f"{rounds}=4",
        "--set",
        "train.lr=0.1",
        "--from",
        "trunk/checkpoint",
        "--out",
        "other",
    )
    assert other.returncode == 0, "what is not part of the state's meaning may change"


REFUSED = {
    "not a run": (["run", "nowhere", "--resume"], "is not a run directory"),
    "a run without --resume": (["run", "a"], "lexfed run a --resume"),
    "another configuration": (["run", "a", "--resume", "--set", "seed=3"], "seed was changed"),
    "fewer rounds": (["run", "a", "--resume", "--set", "rounds=1"], "rounds can only grow"),
    "resume elsewhere": (["run", "a", "--resume", "--out", "b"], "leave out --out"),
    "a foreign checkpoint": (
        ["--from", "a", "--set", "model.hidden=7"],
        "its model.hidden differs",
    ),
    "a fork of other clients": (
        ["--from", "a", "--set", "rounds=9", "--set", "seed=1"],
        "its seed differs",
    ),
    "a fork with nothing to do": (["--from", "a", "--set", "train.lr=0.1"], "has 3 rounds already"),
    "another run's checkpoint": (
        ["run", "mixed", "--resume", "--set", "rounds=9"],
        "is of another run",
    ),
    "more rounds of what counts epochs": (
        ["run", "alone", "--resume", "--set", "rounds=9"],
        "counts epochs, not rounds",
    ),
    "no checkpoint": (["--from", "empty"], "is not a run"),
    "a damaged checkpoint": (["run", "damaged", "--resume"], "is damaged"),
    "a wire that is there": (["--record-wire", "a"], "exists already"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_can_not_be_resumed_is_refused_in_one_line(
    case: str, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    for name in ("a", "damaged"):
        assert lexfed("run", tiny, "--out", name).returncode == 0
    assert lexfed("run", tiny, "--out", "alone", "--set", "method=local_only").returncode == 0
    assert lexfed("run", tiny, "--out", "mixed", "--set", "train.lr=0.1").returncode == 0
    shutil.copytree(tmp_path / "a/checkpoint", tmp_path / "mixed/checkpoint", dirs_exist_ok=True)
    (tmp_path / "empty").mkdir()
    (state,) = (tmp_path / "damaged/checkpoint").glob("*.safetensors")
    state.write_bytes(state.read_bytes()[:-1] + b"x")
    arguments, message = REFUSED[case]
    before = figures(tmp_path / "a")
    result = lexfed(
        *(arguments if arguments[0] == "run" else ["run", tiny, "--out", "new", *arguments])
    )
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "new").exists()
    assert figures(tmp_path / "a") == before


def test_two_processes_can_not_run_one_run(tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    run = tmp_path / "a"
    process = run_into_a_round(run, ("run", tiny, "--out", run, *SETTINGS), tmp_path)
    result = lexfed("run", run, "--resume")
    process.kill()
    process.communicate()
    assert result.returncode == 2
    assert "is being run by another process" in result.stderr
