import stat
from pathlib import Path

import pytest
import torch

from lexfed.core.errors import CheckpointError
from lexfed.federation import ClientState
from lexfed.runtime.store import Store


def state(value: float) -> ClientState:
    return ClientState({"embedding.weight": torch.full((2, 3), value)}, {"words": b"secret"})


def value(kept: ClientState) -> float | None:
    return kept.params["embedding.weight"][0, 0].item() if kept.params else None


def test_a_repeated_round_starts_where_its_first_attempt_did(tmp_path: Path) -> None:
    store = Store(tmp_path / "clients")
    assert value(store.load(7, (3, 0))) is None
    store.save(7, (3, 0), state(1))
    assert value(store.load(7, (3, 0))) is None, "the first attempt found nothing"
    assert value(store.load(7, (4, 1))) == 1
    store.save(7, (9, 0), state(2))
    assert value(store.load(7, (9, 0))) == 1, "asked again at the same clock: as before it"
    assert value(store.load(7, (9, 1))) == 2
    store.save(7, (9, 1), state(3))  # a second ask of the same step
    assert value(store.load(7, (9, 0))) == 1, "the step may be repeated from its first ask"
    assert value(store.load(7, (10, 0))) == 3


def test_two_versions_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path / "clients")
    for step in range(20):
        store.save(1, (step, 0), state(step))
    assert len(list((tmp_path / "clients").rglob("*.safetensors"))) == 2


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "clients")
    store.save(1, (0, 0), state(1))
    (file,) = (tmp_path / "clients").rglob("*.safetensors")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(store.root.stat().st_mode) == 0o700
    assert store.load(1, (1, 0)).blobs == {"words": b"secret"}


def test_who_keeps_nothing_takes_no_place(tmp_path: Path) -> None:
    store = Store(tmp_path / "clients")
    store.save(1, (0, 0), ClientState())
    assert not store.root.exists()


def test_a_damaged_state_is_said(tmp_path: Path) -> None:
    store = Store(tmp_path / "clients")
    store.save(1, (0, 0), state(1))
    (file,) = store.root.rglob("*.safetensors")
    file.write_bytes(b"rubbish")
    with pytest.raises(CheckpointError, match="is damaged"):
        store.load(1, (1, 0))


def test_a_fork_takes_what_was_there_before_the_step(tmp_path: Path) -> None:
    store, fork = Store(tmp_path / "a"), Store(tmp_path / "b")
    store.save(1, (2, 0), state(1))
    store.save(1, (5, 0), state(2))
    store.save(2, (5, 0), state(3))
    store.copy_before(5, fork)
    assert value(fork.load(1, (9, 0))) == 1
    assert value(fork.load(2, (9, 0))) is None
