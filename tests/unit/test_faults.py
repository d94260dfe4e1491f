"""Things that fail: clients, the server, letters, disks, sockets. Each has an outcome of its own."""

import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lexfed.core.errors import ConfigError
from lexfed.core.seeds import derive, root
from lexfed.deployment.driving import drive, prepared
from lexfed.experiment import config as configuration
from lexfed.experiment.assembly import assemble
from lexfed.experiment.config import Config
from lexfed.privacy import accounting
from lexfed.records import checkpoint
from lexfed.records.rundir import RunDir
from lexfed.runs import launch
from lexfed.runs.launch import Manner
from lexfed.runtime import letters
from lexfed.runtime.correspondence import (
    TWO_NODES,
    UNREADABLE,
    Arrived,
    Correspondence,
    Times,
)
from lexfed.runtime.letters import LONGEST_HEAD
from lexfed.site import doorway
from lexfed.site.desk import Desk
from lexfed.site.doorway import AT_ONCE, door
from lexfed.site.policy import Policy
from lexfed.wire import encode
from tests.conftest import ROOT
from tests.hostile import FEDERATION, IDENTITIES, NOISE, SECRET, Hostile, organisation, written
from tests.organisations import (
    QUICK,
    SERVER,
    Local,
    close_all,
    desk,
    identities_of,
    server_keys,
    simulated,
    site,
)


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    close_all()


class Killed(BaseException):
    """SIGKILL, as nearly as one process can tell: nothing catches it."""


# --- a small federation --------------------------------------------------------------------------

WORDS = "film story actor scene music plot ending humour camera voice night city love war".split()


def texts(folder: Path, count: int = 60) -> Path:
    path = folder / "texts.csv"
    rows = ["text,label"]
    for i in range(count):
        said = " ".join(WORDS[(i * k + k) % len(WORDS)] for k in range(1, 9))
        rows.append(f"{'fine' if i % 2 else 'poor'} {said},{'good' if i % 2 else 'bad'}")
    path.write_text("\n".join(rows))
    return path


CLASSIFIER: dict[str, Any] = {
    "method": "fedevocab",
    "rounds": 4,
    "fedevocab": {"vocabulary": "own"},
    "model": {"name": "bilstm", "embedding": 4, "hidden": 4},
    "cohort": {"sampling": "everyone"},
    "evaluation": {"every": 0, "clients": 3},
}
VECTORS: dict[str, Any] = {
    "method": "federated_word2vec",
    "rounds": 4,
    "agreement": {"minimum": 2, "holders": 2},
    "word2vec": {"dimension": 4},
    "cohort": {"sampling": "everyone"},
}
SECURE = {"secure": {"sums": True}}
LABELS = {"labels": ["bad", "good"]}


def configured(folder: Path, table: dict[str, Any], clients: int = 3, **more: Any) -> Config:
    folder.mkdir(parents=True, exist_ok=True)
    labels = LABELS if table["method"] == "fedevocab" else {}
    held = {} if labels else {"test": 0.1, "test_of": "each"}
    data = {"name": str(texts(folder)), "clients": clients, "partition": "iid", **labels, **held}
    return configuration.parse({**table, "data": data, **more})


@dataclass
class Town:
    """Organisations with the simulation's texts and secrets, and the server's run."""

    config: Config
    folder: Path
    times: Times = QUICK
    fate: Callable[[int, bytes, bytes, Desk], Arrived | None] | None = None
    carrier: Local = field(init=False)

    def __post_init__(self) -> None:
        self.identities = identities_of(assemble(self.config).population)
        self.carrier = Local(self.opened(), self.fate)
        keys = server_keys(self.folder / "keys", self.identities)
        prepared(self.config, keys, self.run, self.times)

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def federation(self) -> str:
        return str(json.loads((self.run / "deployment.json").read_text())["federation"])

    def opened(self, first_node: int = 100) -> dict[int, Desk]:
        """All site processes, newly started."""
        policy = Policy(methods=(self.config.method,), clients=1)
        return {
            first_node + client: desk(
                site(self.folder / f"site{client}", client, self.identities, policy),
                simulated(self.config),
            )
            for client in range(len(self.identities))
        }

    def drive(self) -> RunDir:
        return drive(self.carrier, self.run, Manner(quiet=True))


def params(run: RunDir) -> Any:
    return checkpoint.load(run.checkpoint).state.params


def same(one: RunDir, other: RunDir) -> None:
    left, right = params(one), params(other)
    assert set(left) == set(right)
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


def rounds(run: RunDir) -> list[int]:
    return [record["round"] for record in run.records()]


def simulation(config: Config, folder: Path) -> RunDir:
    return launch.begin(config, folder, None, Manner(quiet=True))


# --- a server that is killed ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "lives"),
    [(CLASSIFIER, (1, 3, 4, 5, 6, 7, 8)), (VECTORS, (4, 6, 9, 11)),
     ({**CLASSIFIER, **SECURE}, (5, 8, 11, 14, 17)), ({**VECTORS, **SECURE}, (7, 13, 18, 22))],
    ids=["fedevocab", "word2vec", "fedevocab-secure", "word2vec-secure"],
)  # fmt: skip
def test_a_server_killed_again_and_again(
    table: dict[str, Any], lives: tuple[int, ...], tmp_path: Path
) -> None:
    """At its first letter, at its third, ..., before it arrives and after it was answered; and
    everything with it: the sites come back as other nodes. It ends with the bits of a simulation
    that nobody killed: rounds, private tables, versions.
    """
    config = configured(tmp_path, table)
    left = list(lives)
    sent = 0

    def fate(node: int, head: bytes, body: bytes, to: Desk) -> Arrived | None:
        nonlocal sent
        sent += 1
        if left and sent == left[0]:
            if len(left) % 2:
                to.answer(head, body)
            raise Killed
        return None

    town = Town(config, tmp_path / "deployment", fate=fate)
    while left:
        with pytest.raises(Killed):
            town.drive()
        left.pop(0)
        town.carrier.desks, sent = town.opened(first_node=1000 * (len(left) + 1)), 0
    done = town.drive()
    same(simulation(config, tmp_path / "simulation"), done)
    assert rounds(done) == [1, 2, 3, 4]


# --- letters -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lost", "doubled", "cut", "wrong", "another", "none"])
def test_letters_that_go_wrong(kind: str, tmp_path: Path) -> None:
    """Lost, delivered twice, truncated, changed, in the place of another: it is asked again, with
    the same letter, and answered with the same bytes. The result is as if nothing had happened.
    """
    config = configured(tmp_path, CLASSIFIER)
    seen: Counter[bytes] = Counter()
    before: dict[int, tuple[bytes, bytes]] = {}

    def fate(node: int, head: bytes, body: bytes, to: Desk) -> Arrived | None:
        seen[head] += 1
        first, answered = seen[head] == 1, to.answer(head, body)
        stale, before[node] = before.get(node, (b"", b"")), answered
        if kind == "doubled":
            assert to.answer(head, body) == answered or b"hello" in head
        if not first or kind == "doubled":
            return Arrived("", *answered)
        changed = answered[1][:-1] + b"!" if answered[1] else b"!"
        return Arrived("", *{
            "lost": (b"", b""), "cut": (answered[0], answered[1][:-1] or b"x"),
            "wrong": (answered[0], changed), "another": stale, "none": (b"\0" * 200, b"\0"),
        }[kind])  # fmt: skip

    town = Town(config, tmp_path / "deployment", fate=fate)
    done = town.drive()
    same(simulation(config, tmp_path / "simulation"), done)
    assert rounds(done) == [1, 2, 3, 4]
    told = sum(record["refused"].get(UNREADABLE, 0) for record in done.records())
    assert bool(told) == (kind in ("cut", "wrong", "another", "none"))
    for client in range(3):  # and each answer was made once
        book = json.loads((tmp_path / f"deployment/site{client}/ledger.json").read_text())
        assert book["exchanges"] == 5


def test_answers_that_come_late(tmp_path: Path) -> None:
    """The answer lies with the carrier for a while: somebody else's is taken first, nothing is
    asked twice, and the sum is the same.
    """
    config = configured(tmp_path, CLASSIFIER)
    town = Town(config, tmp_path / "deployment")
    due: Counter[str] = Counter()

    @dataclass
    class Slow(Local):
        def collect(self, tickets: Any) -> Any:
            due.update(tickets)
            return super().collect([t for t in tickets if due[t] > 3 + 4 * (int(t) % 3)])

    town.carrier = Slow(town.carrier.desks)
    done = town.drive()
    same(simulation(config, tmp_path / "simulation"), done)


# --- clients -------------------------------------------------------------------------------------



def newest(of: Desk) -> int:
    """The step that a site has answered last."""
    files = list((of.mine.folder / "federations").glob("*/newest"))
    return int(files[0].read_text()) if files else 0


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_client_that_dies(when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, while or after it answers the second round (step 2). Who is back in time, as another
    node, is asked again: the same bits as if nothing had happened.
    """
    config = configured(tmp_path, CLASSIFIER)
    town, died = Town(config, tmp_path / "deployment"), []

    def fate(node: int, head: bytes, body: bytes, to: Desk) -> Arrived | None:
        if node != 100 or b'"kind": "ask"' not in head or newest(to) != 1:
            return None
        died.append(when)
        if when == "during":  # the book is written, and no answer was kept
            with monkeypatch.context() as patch, pytest.raises(Killed):
                patch.setattr(type(to.federations[town.federation].site), "answer", killed)
                to.answer(head, body)
        if when == "after":
            to.answer(head, body)
        town.carrier.desks[500] = town.opened()[100]
        del town.carrier.desks[100]
        return Arrived("")

    town.carrier.fate = fate
    done = town.drive()
    assert died == [when]
    same(simulation(config, tmp_path / "simulation"), done)
    book = json.loads((tmp_path / "deployment/site0/ledger.json").read_text())
    assert book["exchanges"] == (6 if when == "during" else 5)  # never less than was made


def killed(*_: object) -> None:
    raise Killed


@pytest.mark.parametrize("table", [CLASSIFIER, VECTORS], ids=["fedevocab", "word2vec"])
def test_a_client_that_returns_ten_rounds_late(table: dict[str, Any], tmp_path: Path) -> None:
    """Its words, its table and the version that it holds are those of when it left; it is sent what
    it lacks, and takes part.
    """
    config = configured(tmp_path, {**table, "rounds": 13})
    town = Town(config, tmp_path / "deployment", replace(QUICK, grace=0.0))
    away: dict[int, Desk] = {}
    start = 2 if table is CLASSIFIER else 8

    def fate(node: int, head: bytes, body: bytes, to: Desk) -> Arrived | None:
        step = newest(town.carrier.desks[101])
        if node == 102 and start <= step and not away:
            away[100] = town.carrier.desks.pop(100)
        if node == 102 and step == start + 10 and 700 not in town.carrier.desks:
            town.carrier.desks[700] = town.opened()[100]
        return None

    town.carrier.fate = fate
    done = town.drive()
    assert rounds(done) == list(range(1, 14))
    counts = [record["clients"] for record in done.records()]
    assert counts.count(2) in (10, 11)
    assert counts[0] == 3
    assert counts[-1] == 3
    own = tmp_path / "deployment/site0/federations" / town.federation
    assert len(list((own / "store/00000000").glob("[0-9]*.safetensors"))) == 2
    assert all(torch.isfinite(value).all() for value in params(done).values())


def test_two_nodes_with_one_key(tmp_path: Path) -> None:
    """The first counts, and the second is told apart; when the first is gone, the second is the
    client: nobody is lost for good.
    """
    config = configured(tmp_path, CLASSIFIER)
    town = Town(config, tmp_path / "deployment")
    town.carrier.desks[300] = town.opened()[100]
    asked: Counter[int] = Counter()

    def fate(node: int, head: bytes, body: bytes, to: Desk) -> Arrived | None:
        asked[node] += b'"kind": "ask"' in head
        if newest(to) == 3:
            town.carrier.desks.pop(100, None)
        return None

    town.carrier.fate = fate
    done = town.drive()
    assert [record["clients"] for record in done.records()] == [3, 3, 3, 3]
    assert asked[100] >= 2
    assert asked[300] >= 1
    assert sum(record["refused"].get(TWO_NODES, 0) for record in done.records()) == 1
    same(simulation(config, tmp_path / "simulation"), done)


def test_a_node_that_nobody_knows(tmp_path: Path) -> None:
    """Its key stands in no peers.json of the server's: it is never asked anything."""
    config = configured(tmp_path, CLASSIFIER)
    town = Town(config, tmp_path / "deployment", replace(QUICK, again=0.05))
    strangers = [derive(root(40 + i), "identity") for i in range(4)]
    policy = Policy(methods=("fedevocab",), clients=1)
    unknown = [
        desk(site(tmp_path / f"stranger{me}", me, strangers, policy), simulated(config))
        for me in (1, 3)  # a number that somebody has, and one that nobody has
    ]
    town.carrier.desks = {1: unknown[0], 2: unknown[1], **town.carrier.desks}
    done = town.drive()
    same(simulation(config, tmp_path / "simulation"), done)
    for stranger in unknown:
        assert newest(stranger) == 0
        assert not (stranger.mine.folder / "ledger.json").exists()
    said = json.loads((town.run / "status.json").read_text())["said"]
    assert said["a node"] == "not signed by who should have written it"


def test_a_third_of_the_clients_drops_out_of_every_round(tmp_path: Path) -> None:
    """Central noise, secrets of the system's own: training ends after as many rounds as were asked
    for, and the ledger has all of them, whoever came.
    """
    config = configured(
        tmp_path, {**CLASSIFIER, "secrets": "system", "rounds": 6}, 4, privacy=NOISE["central"],
        train={"upload": "fp32"},
    )  # fmt: skip
    town = Town(config, tmp_path / "deployment", replace(QUICK, patience=0.2, grace=0.0))

    def fate(node: int, head: bytes, body: bytes, to: Desk) -> Arrived | None:
        lost = b'"kind": "ask"' in head and node == 100 + newest(town.carrier.desks[103]) % 3
        return Arrived("") if lost else None

    town.carrier.fate = fate
    done = town.drive()
    assert rounds(done) == [1, 2, 3, 4, 5, 6]
    assert {record["clients"] for record in done.records()} == {3}
    ledger = accounting.from_json(done.records()[-1]["ledger"])
    assert accounting.times(ledger) == 6
    for client in range(4):  # each site's own book has what it has answered, and no less
        book = json.loads((tmp_path / f"deployment/site{client}/ledger.json").read_text())
        charged = accounting.times(accounting.from_json(book["ledger"]))
        assert charged == book["exchanges"] <= 6
