"""Forks of one run, and runs that go on: noise is never shared, and no charge is forgotten."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lexfed.core.seeds import derive, root
from lexfed.federation.sampling import Cohort
from lexfed.layers.mishaps import fate
from lexfed.records import checkpoint
from lexfed.wire import decode
from tests.conftest import Lexfed, no_pictures
from tests.unit.test_promises import PRIVATE as NOISY
from tests.unit.test_promises import PUBLIC, sets, summary_of

PRIVATE = (*NOISY, "privacy.accountant=rdp")  # quicker


@pytest.fixture(autouse=True)
def quickly() -> Iterator[None]:
    with no_pictures():
        yield


def flat(arrays: dict[str, Tensor]) -> Tensor:
    return torch.cat([arrays[name].double().reshape(-1) for name in sorted(arrays)])


def model(folder: Path) -> Tensor:
    return flat(dict(checkpoint.load(folder).state.params))


# --- noise ----------------------------------------------------------------------------------------


def test_forks_that_differ_in_their_rounds_do_not_share_noise(tiny: Path, lexfed: Lexfed) -> None:
    """Noise for an epsilon follows from the rounds. Two forks had the same numbers, once longer
    and once shorter (correlation 0.999999): from both the bare sum fell out.
    """
    base = sets(
        PUBLIC, "privacy.placement=central", "cohort.sampling=poisson", "privacy.epsilon=5.0",
        "privacy.accountant=rdp", "privacy.clip=0.01",
    )  # fmt: skip
    trunk = lexfed("run", tiny, "--out", "trunk", *base, *sets("rounds=2", "keep=[1]"))
    assert trunk.returncode == 0, trunk.stderr
    moved = []
    for rounds in (3, 6):
        words = (*base, *sets(f"rounds={rounds}", "keep=[2]"))
        fork = lexfed("run", tiny, "--from", "trunk/kept/000001", "--out", f"f{rounds}", *words)
        assert fork.returncode == 0, fork.stderr
        moved.append(model(Path(f"f{rounds}/kept/000002")) - model(Path("trunk/kept/000001")))
    correlation = torch.corrcoef(torch.stack(moved))[0, 1].item()
    assert abs(correlation) < 0.5


def uploads(wire: Path) -> dict[str, Tensor]:
    return {
        path.name: flat(dict(decode((path / "arrays.safetensors").read_bytes()).arrays))
        for path in sorted(wire.glob("*-train-*-up"))
    }


def forks_told() -> list[str]:
    told = [json.loads(path.read_text())["meta"] for path in Path().glob("w*/*/meta.json")]
    assert len(told) > 10
    return [meta["fork"] for meta in told if "fork" in meta]


def test_users_of_two_forks_do_not_share_their_own_noise(tiny: Path, lexfed: Lexfed) -> None:
    """It hung from the user's secret and the clock: two forks' uploads differed by 0.19, under
    noise of norm 2,826.
    """
    base = sets(
        PUBLIC, "privacy.placement=local", "privacy.noise=20.0", "privacy.accountant=rdp", "cohort.sampling=everyone"
    )  # fmt: skip
    assert lexfed("run", tiny, "--out", "trunk", *base, *sets("rounds=1")).returncode == 0
    seen = []
    for rate in ("1e-3", "1e-2"):
        words = (*base, *sets("rounds=2", f"train.lr={rate}"), "--record-wire", f"w{rate}")
        fork = lexfed("run", tiny, "--from", "trunk", "--out", f"f{rate}", *words)
        assert fork.returncode == 0, fork.stderr
        seen.append(uploads(Path(f"w{rate}")))
    assert seen[0].keys() == seen[1].keys() != set()
    for name, one in seen[0].items():
        assert (one - seen[1][name]).norm() > one.norm(), "noise of their own"
    assert len(set(forks_told())) == 2


def test_who_is_no_fork_is_told_of_none(tiny: Path, lexfed: Lexfed) -> None:
    """Bits and bytes of runs that are no forks, and of forks without noise, stay as they were."""
    for name, settings in (("noisy", PRIVATE), ("bare", ())):
        words = sets(*settings, PUBLIC, "rounds=1")
        assert (
            lexfed("run", tiny, "--out", name, "--record-wire", f"w-{name}", *words).returncode == 0
        )
    words = sets(PUBLIC, "rounds=2")
    fork = lexfed("run", tiny, "--from", "bare", "--out", "f", "--record-wire", "w-f", *words)
    assert fork.returncode == 0, fork.stderr
    assert not forks_told()


# --- the ledger -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["emptied", "older"])
def test_a_checkpoint_that_forgot_what_was_released_is_refused(
    how: str, tiny: Path, lexfed: Lexfed
) -> None:
    """An emptied ledger was taken as it was, though the records beside it said more."""
    base = sets(*PRIVATE, PUBLIC, "rounds=2")
    assert lexfed("run", tiny, "--out", "a", *base).returncode == 0
    file = Path("a/checkpoint/state.json")
    manifest = json.loads(file.read_text())
    if how == "emptied":
        manifest["ledger"] = []
    else:
        manifest["ledger"][0]["count"] = 1
    file.write_text(json.dumps(manifest))
    for words in (
        ("run", "a", "--resume", *sets("rounds=3")),
        ("run", tiny, "--from", "a", "--out", "b", *base, *sets("rounds=3")),
    ):
        result = lexfed(*words)
        assert result.returncode == 2
        assert "holds less than its rounds.jsonl" in result.stderr
        assert result.stderr.count("\n") == 1
    assert not Path("b").exists()


def test_a_kept_round_is_forked_though_the_run_went_on(tiny: Path, lexfed: Lexfed) -> None:
    base = sets(*PRIVATE, PUBLIC)
    assert lexfed("run", tiny, "--out", "a", *base, *sets("keep=[1]")).returncode == 0
    words = ("--from", "a/kept/000001", "--out", "b", *base, *sets("rounds=2"))
    fork = lexfed("run", tiny, *words)
    assert fork.returncode == 0, fork.stderr
    assert [entry["count"] for entry in summary_of(Path("b"))["ledger"]] == [2]


@pytest.mark.parametrize(
    "changed",
    [
        "fedevocab.align=true",
        'fedevocab.vectors=["hashed:4"]',
        "fedevocab.size=40",
        "defences.whiten=true",
        "defences.rotation=shared",
    ],
)
def test_a_fork_does_not_give_the_rows_that_clients_kept_another_meaning(
    tiny: Path, lexfed: Lexfed, changed: str
) -> None:
    """They were taken from one table, and would be read beside another."""
    base = ("method=fedevocab", "vocabulary.vectors=hashed:4", "rounds=1")
    two = 'fedevocab.vectors=["hashed:4", "hashed:6"]'
    if "align" in changed or "vectors" in changed:
        base = (*base, two)
    trunk = lexfed("run", tiny, "--out", "a", *sets(*base))
    assert trunk.returncode == 0, trunk.stderr
    fork = lexfed("run", tiny, "--from", "a", "--out", "b", *sets(*base, "rounds=2", changed))
    assert fork.returncode == 2
    assert f"its {changed.partition('=')[0]} differs" in fork.stderr
    assert fork.stderr.count("\n") == 1
    assert not Path("b").exists()
    free = sets(*base, "rounds=2", "fedevocab.table_lr=0.2")
    assert lexfed("run", tiny, "--from", "a", "--out", "b", *free).returncode == 0


# --- chance ---------------------------------------------------------------------------------------


def test_who_drops_out_of_a_deployment_is_not_told_by_its_configuration(
    tiny: Path, lexfed: Lexfed
) -> None:
    """The fates of clients hung from `seed`, which a deployment publishes with the rest."""
    words = sets("secrets=system", "cohort.dropout=0.5", "cohort.sampling=everyone", "rounds=8")
    run = lexfed("run", tiny, "--out", "a", "--record-wire", "w", *words)
    assert run.returncode == 0, run.stderr
    asked, heard = set(), set()
    for path in Path("w").rglob("meta.json"):
        one = json.loads(path.read_text())
        if one["verb"] == "train":
            key = (one["client"], one["step"], one["ask"])
            (asked if one["direction"] == "down" else heard).add(key)
    secret = derive(root(0), "data")
    told = [
        (fate(Cohort(dropout=0.5), derive(secret, "fate", *key)) == "well") == (key in heard)
        for key in asked
    ]
    assert len(told) == 48
    assert sum(told) < 44, "all of them, if they hang from the seed"
    assert 8 < len(heard) < 40
