import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import torch

from lexfed.core.errors import CheckpointError
from lexfed.core.params import Params
from lexfed.federation import ClientState
from lexfed.runtime import store as store_module
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


@pytest.mark.parametrize("there", [False, True])  # worker processes find their requests in it first
def test_a_store_says_of_which_format_it_is(there: bool, tmp_path: Path) -> None:
    store = Store(tmp_path / "clients")
    if there:
        store.root.mkdir()
    store.save(1, (0, 0), state(1))
    assert json.loads((store.root / "format.json").read_text())["format"] == 1


# --- what clients hold in common


def table(value: float) -> Params:
    return {"input": torch.full((4, 3), float(value)), "list": torch.arange(5, dtype=torch.uint8)}


def holding(held: Params, version: int = 1) -> ClientState:
    return ClientState(blobs={"version": str(version).encode()}, held=held)


def files(store: Store) -> list[Path]:
    return sorted(store.root.rglob("held-*.safetensors"))


def same(one: Params, other: Params) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_what_a_client_holds_survives(tmp_path: Path) -> None:
    held = {**table(0), "input": torch.rand(4, 3), "none": torch.empty(0, 3)}
    both = ClientState({"own": torch.rand(2)}, {"version": b"3"}, held)
    Store(tmp_path / "clients").save(1, (0, 0), both)
    back = Store(tmp_path / "clients").load(1, (1, 0))  # another process would find as much
    assert same(back.held, held)
    assert same(back.params, both.params)
    assert back.blobs == both.blobs


def test_who_holds_something_and_keeps_nothing_else_is_written_too(tmp_path: Path) -> None:
    store = Store(tmp_path / "clients")
    store.save(1, (0, 0), ClientState(held=table(1)))
    assert same(store.load(1, (1, 0)).held, table(1))


def test_who_holds_nothing_has_no_file_for_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "clients")
    store.save(1, (0, 0), state(1))
    assert not files(store)
    assert store.load(1, (1, 0)).held == {}


def test_clients_that_hold_the_same_object_share_one_file(tmp_path: Path) -> None:
    store, held = Store(tmp_path / "clients"), table(1)
    for client in range(5):
        store.save(client, (0, 0), holding(held))
    assert len(files(store)) == 5
    assert len({path.stat().st_ino for path in files(store)}) == 1
    assert {path.stat().st_nlink for path in files(store)} == {5}, "no other link to it"


def test_it_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    write = store_module.write_atomically

    def noted(path: Path, *rest: object) -> None:
        written.append(path.name)
        write(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(store_module, "write_atomically", noted)
    store, held = Store(tmp_path / "clients"), table(1)
    for client in range(5):
        store.save(client, (0, 0), holding(held))
    assert sum(name.startswith("held-") for name in written) == 1
    assert len(written) == 6, "and each client's own state"


def test_equal_numbers_in_two_objects_are_two_files(tmp_path: Path) -> None:
    """The pair: nobody compares tables, it is the object that counts."""
    store = Store(tmp_path / "clients")
    for client in range(2):
        store.save(client, (0, 0), holding(table(1)))
    assert len({path.stat().st_ino for path in files(store)}) == 2


def test_one_file_is_loaded_as_one_object(tmp_path: Path) -> None:
    held = table(1)
    for client in range(3):
        Store(tmp_path / "apart").save(client, (0, 0), holding(held))  # three stores: three files
    store = Store(tmp_path / "clients")
    for client in range(3):
        store.save(client, (0, 0), holding(held))
    found = [store.load(client, (1, 0)).held for client in range(3)]
    assert all(one is held for one in found), "who wrote it has it still"
    later = Store(tmp_path / "clients")
    first, *others = (later.load(client, (1, 0)).held for client in range(3))
    assert first is not held
    assert same(first, held)
    assert all(other is first for other in others)
    apart = Store(tmp_path / "apart")
    assert apart.load(0, (1, 0)).held is not apart.load(1, (1, 0)).held


def test_what_was_loaded_is_linked_and_not_written_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "clients")
    store.save(0, (0, 0), holding(table(1)))
    later = Store(tmp_path / "clients")
    held = later.load(0, (1, 0)).held
    later.save(0, (1, 0), holding(held, 2))
    later.save(1, (1, 0), holding(held, 2))
    assert len(files(later)) == 3
    assert len({path.stat().st_ino for path in files(later)}) == 1


def test_the_held_file_goes_with_its_version(tmp_path: Path) -> None:
    store = Store(tmp_path / "clients")
    for step in range(20):
        held = table(step)
        for client in range(3):
            store.save(client, (step, 0), holding(held, step))
    names = {path.name for path in files(store)}
    assert names == {"held-00000018-0000.safetensors", "held-00000019-0000.safetensors"}
    assert len(files(store)) == 6
    assert {path.stat().st_nlink for path in files(store)} == {3}, "no link to it is left anywhere"
    assert not list(store.root.rglob(".*")), "nothing half-written"


def test_a_repeated_round_finds_what_was_held_before_it(tmp_path: Path) -> None:
    store, before, after = Store(tmp_path / "clients"), table(1), table(2)
    for client in range(2):
        store.save(client, (3, 0), holding(before, 1))
        store.save(client, (7, 0), holding(after, 2))
    for again in (store, Store(tmp_path / "clients")):
        assert same(again.load(0, (7, 0)).held, before)
        assert again.load(0, (7, 0)).held is again.load(1, (7, 0)).held
        assert same(again.load(0, (8, 0)).held, after)


def test_a_round_that_is_repeated_writes_over_its_own_files_alone(tmp_path: Path) -> None:
    """Client 0 comes with another table the second time; client 1 has not been asked again."""
    store, first, second = Store(tmp_path / "clients"), table(1), table(2)
    store.save(0, (3, 0), holding(first))
    store.save(1, (3, 0), holding(first))
    store.save(0, (3, 0), holding(second))
    for again in (store, Store(tmp_path / "clients")):
        assert same(again.load(0, (4, 0)).held, second)
        assert same(again.load(1, (4, 0)).held, first)


def test_a_client_is_not_linked_to_a_file_that_was_written_over(tmp_path: Path) -> None:
    store, first, second = Store(tmp_path / "clients"), table(1), table(2)
    store.save(0, (3, 0), holding(first))
    store.save(0, (3, 0), holding(second))
    store.save(1, (3, 0), holding(first))
    for again in (store, Store(tmp_path / "clients")):
        assert same(again.load(0, (4, 0)).held, second)
        assert same(again.load(1, (4, 0)).held, first)


@pytest.mark.parametrize("steps", range(1, 6))
def test_a_store_finds_what_another_process_wrote(steps: int, tmp_path: Path) -> None:
    """Worker processes answer for a client in turn, and a file system uses inodes again."""
    one, other = Store(tmp_path / "clients"), Store(tmp_path / "clients")
    one.save(1, (0, 0), holding(table(0), 0))
    for step in range(1, steps + 1):
        other.save(1, (step, 0), holding(table(step), step))
    back = one.load(1, (steps + 1, 0))
    assert back.blobs == {"version": str(steps).encode()}
    assert same(back.held, table(steps))


@pytest.mark.parametrize("attempt", range(20))
def test_threads_that_save_at_once_share_one_file(attempt: int, tmp_path: Path) -> None:
    store, held, begin = Store(tmp_path / "clients"), table(1), Barrier(8)

    def save(client: int) -> None:
        begin.wait()
        store.save(client, (0, 0), holding(held))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(save, range(8)))
    assert len(files(store)) == 8
    assert len({path.stat().st_ino for path in files(store)}) == 1


def test_only_the_owner_can_read_what_is_held(tmp_path: Path) -> None:
    store, held = Store(tmp_path / "clients"), table(1)
    for client in range(2):
        store.save(client, (0, 0), holding(held))
    assert {stat.S_IMODE(path.stat().st_mode) for path in files(store)} == {0o600}


def test_a_damaged_held_file_is_said(tmp_path: Path) -> None:
    store = Store(tmp_path / "clients")
    store.save(1, (0, 0), holding(table(1)))
    (file,) = files(store)
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match="is damaged"):
        Store(tmp_path / "clients").load(1, (1, 0))


def test_a_held_file_that_is_lost_is_said(tmp_path: Path) -> None:
    """A client that forgot its tables and still says their version would be sent too little."""
    store = Store(tmp_path / "clients")
    store.save(1, (0, 0), holding(table(1)))
    (file,) = files(store)
    file.unlink()
    with pytest.raises(CheckpointError, match="is damaged"):
        Store(tmp_path / "clients").load(1, (1, 0))


def test_a_fork_takes_what_was_held_and_shares_it_too(tmp_path: Path) -> None:
    store, before = Store(tmp_path / "a"), table(1)
    for client in range(3):
        store.save(client, (2, 0), holding(before, 1))
    after = table(2)
    for client in range(3):
        store.save(client, (5, 0), holding(after, 2))
    Store(tmp_path / "a").copy_before(5, Store(tmp_path / "b"))
    fork = Store(tmp_path / "b")
    assert len(files(fork)) == 3
    assert {path.stat().st_nlink for path in files(fork)} == {3}, "written once, here"
    held = [fork.load(client, (9, 0)) for client in range(3)]
    assert all(same(one.held, before) and one.blobs == {"version": b"1"} for one in held)
    assert all(one.held is held[0].held for one in held)
