"""What a node of a Ray cluster is given and gives back; no cluster is needed for it."""

import json
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from lexfed.core.errors import LexfedError, WireError
from lexfed.experiment import config as configuration
from lexfed.experiment.assembly import assemble
from lexfed.federation import ClientState, ServerState, request
from lexfed.learning.training_verbs import TRAIN
from lexfed.runtime import ray_cluster
from lexfed.runtime.jobs import Job, WorkerError
from lexfed.runtime.ray_cluster import Orders
from lexfed.runtime.simulation import site_of
from lexfed.runtime.store import Store
from lexfed.wire import Message, decode, encode
from tests.conftest import Lexfed
from tests.unit.test_by_letter import QUICK


def state(value: float) -> ClientState:
    held = {"table": torch.full((2,), value)}
    return ClientState({"weight": torch.full((3,), value)}, {"words": b"own"}, held)


def content(store: Store) -> dict[str, bytes]:
    return {
        str(path.relative_to(store.root)): path.read_bytes()
        for path in store.root.rglob("*")
        if path.is_file()
    }


def test_a_state_that_was_made_elsewhere_is_kept_as_one_that_was_made_here(tmp_path: Path) -> None:
    here, there = Store(tmp_path / "here"), Store(tmp_path / "there")
    for number, moment in enumerate([(1, 0), (2, 0), (2, 1), (5, 0), (6, 3)]):
        with tempfile.TemporaryDirectory() as folder:
            node = Store(Path(folder))
            brought = there.files(7, moment)
            node.put(7, moment, brought)
            assert node.load(7, moment).params.keys() == here.load(7, moment).params.keys()
            node.save(7, moment, state(number))
            after = node.files(7)
            changed = {name: data for name, data in after.items() if brought.get(name) != data}
            there.put(7, moment, changed, [name for name in brought if name not in after])
        here.save(7, moment, state(number))
        assert content(there) == content(here)
    assert (there.root / "00000007").stat().st_mode & 0o077 == 0


def test_only_the_version_that_is_handed_out_travels(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(3, (4, 0), state(1))
    store.save(3, (5, 0), state(2))
    assert set(store.files(3, (5, 0))) == {
        "00000004-0000.safetensors",
        "held-00000004-0000.safetensors",
    }
    assert set(store.files(3, (6, 0))) == {
        "00000005-0000.safetensors",
        "held-00000005-0000.safetensors",
    }
    assert store.files(3, (4, 0)) == store.files(8, (4, 0)) == {}


@pytest.mark.parametrize("name", ["../escape", "a/b", "/etc/x", "..", ".hidden", ""])
def test_a_node_writes_nowhere_else(name: str, tmp_path: Path) -> None:
    store = Store(tmp_path / "clients")
    with pytest.raises(WireError, match="no file of a client's"):
        store.put(1, (1, 0), {name: b"x"})
    with pytest.raises(WireError, match="no file of a client's"):
        store.put(1, (1, 0), {}, [name])
    assert list(tmp_path.rglob("*")) == []


# --- a task is a function -------------------------------------------------------------------------


class Block:
    """Three clients of `local_only` are asked to train, as a run at this clock would."""

    def __init__(self, tiny: Path, tmp_path: Path, **settings: object) -> None:
        told = [f"{key.replace('__', '.')}={value}" for key, value in settings.items()]
        self.config = configuration.load(tiny, ["method=local_only", *told])
        self.site = site_of(assemble(self.config), Store(tmp_path / "clients"))
        self.orders = Orders(
            configuration.to_toml(self.config),
            str(self.site.store.root),
            ray_cluster.versions(),
            (),
        )

    def asked(self, step: int) -> dict[int, Message]:
        return dict.fromkeys(range(3), request(ServerState(step=step), 0))

    def worked(self, step: int, texts: int = 0) -> list[Message]:
        """By a node, and what it changed put into the store."""
        asked = self.asked(step)
        texts = texts or sum(self.site.population.size(client) for client in asked)
        job = Job("ask", TRAIN.name, [(client, "0") for client in asked])
        luggage = ray_cluster._luggage(self.site.store, TRAIN, asked, texts)
        told = json.dumps(asdict(self.orders))
        said = ray_cluster.work(told, job.encoded(), luggage, encode(asked[0]))
        return list(ray_cluster._settled(self.site.store, TRAIN, asked, decode(said)))


def test_a_block_leaves_its_states_here_and_nothing_there(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "node").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "node"))
    made, here = Block(tiny, tmp_path), Block(tiny, tmp_path / "other")
    for step in (0, 1, 1, 2):  # one of them is done again
        replies = made.worked(step)
        for client, message in here.asked(step).items():
            ours = here.site.answer(TRAIN, client, message)
            assert ours is not None
            theirs = replies[client]
            assert {**ours.meta, "#client": client} == theirs.meta
            assert ours.arrays.keys() == theirs.arrays.keys()
        assert len(content(made.site.store)) > 3
        assert content(made.site.store) == content(here.site.store)
    assert list((tmp_path / "node").glob("lexfed*")) == []


def test_a_node_of_another_version(tiny: Path, tmp_path: Path) -> None:
    made = Block(tiny, tmp_path)
    made.orders = replace(made.orders, versions={**made.orders.versions, "lexfed": "9.9"})
    with pytest.raises(LexfedError, match=r"^on node \S+: lexfed is \S+, and 9.9 where the run is"):
        made.worked(0)


def test_a_node_with_other_texts(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(LexfedError, match=r"^on node \S+: the data are others .* and 7 there$"):
        Block(tiny, tmp_path).worked(0, texts=7)


def test_a_node_without_the_texts(tiny: Path, tmp_path: Path) -> None:
    made = Block(tiny, tmp_path, seed=11)  # this process has assembled no such run
    (tmp_path / "texts.jsonl").unlink()
    with pytest.raises(LexfedError, match=r"^on node \S+: .*texts.jsonl"):
        made.worked(0)


def test_a_damaged_state_is_named_where_it_lies(tiny: Path, tmp_path: Path) -> None:
    made = Block(tiny, tmp_path)
    made.worked(0)
    damaged = made.site.store.root / "00000001/00000000-0000.safetensors"
    damaged.write_bytes(b"rubbish")
    with pytest.raises(LexfedError, match=rf"^on node \S+: {damaged} is damaged"):
        made.worked(1)


def test_a_fault_on_a_node_is_seen_here(tiny: Path, tmp_path: Path) -> None:
    made = Block(tiny, tmp_path)
    job = Job("ask", TRAIN.name, [(99, "0")])  # nobody has that number
    luggage = encode(Message(meta={"texts": 0}))
    told = json.dumps(asdict(made.orders))
    said = decode(ray_cluster.work(told, job.encoded(), luggage, encode(made.asked(0)[0])))
    with pytest.raises(WorkerError, match="Traceback") as fault:
        ray_cluster._settled(made.site.store, TRAIN, {}, said)
    assert fault.value.line.startswith("on node ")


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--workers", "2"], "--ray and --workers are two answers to one question"),
        (["--set", "secrets=system"], "secrets = 'system' keeps the clients' secrets on this"),
        (["--ray", "ray://head:10001"], "--ray ray://head:10001: write HOST:PORT"),
    ],
)
def test_what_can_not_be_on_a_cluster_is_one_line(
    words: list[str], line: str, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    result = lexfed("run", tiny, "--out", "a", "--ray", "auto", *words)
    assert result.returncode == 2
    assert line in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "a").exists()


def test_word_vectors_stay_on_one_machine(lexfed: Lexfed, tmp_path: Path) -> None:
    result = lexfed("run", QUICK / "agreed.toml", "--out", "a", "--ray", "auto")
    assert result.returncode == 2
    assert "its workers are threads of one machine" in result.stderr
    assert not (tmp_path / "a").exists()


def test_without_the_package(
    tiny: Path, lexfed: Lexfed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = lexfed("run", tiny, "--out", "a", "--ray", "auto")
    assert result.returncode == 2
    assert result.stderr == "lexfed: --ray needs a package: pip install 'lexfed[ray]'\n"
    assert not (tmp_path / "a").exists()
