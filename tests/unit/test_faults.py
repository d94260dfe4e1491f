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
from contextlib import contextmanager, suppress
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
    Times,
)
from lexfed.runtime.letters import LONGEST_HEAD
from lexfed.site.desk import Desk
from lexfed.site.doorway import AT_ONCE, door
from lexfed.site.policy import Policy
from lexfed.wire import decode, encode
from tests.conftest import ROOT
from tests.hostile_server import FEDERATION, NOISE, Hostile, written
from tests.organisations import (
    QUICK,
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

WORDS = [
    "film",
    "story",
    "actor",
    "scene",
    "music",
    "plot",
    "ending",
    "humour",
    "camera",
    "voice",
    "night",
    "city",
    "love",
    "war",
]


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
    ("table", "lives", "lost"),
    [(CLASSIFIER, (1, 3, 4, 5, 6, 7, 8), 0), (VECTORS, (4, 6, 9, 11), 0),
     ({**CLASSIFIER, **SECURE}, (5, 8, 14, 17), 2), ({**VECTORS, **SECURE}, (7, 13, 18, 22), 0)],
    ids=["fedevocab", "word2vec", "fedevocab-secure", "word2vec-secure"],
)  # fmt: skip
def test_a_server_killed_again_and_again(
    table: dict[str, Any], lives: tuple[int, ...], lost: int, tmp_path: Path
) -> None:
    """At its first letter, at its third, ..., before it arrives and after it was answered; and
    everything with it: the sites come back as other nodes. It ends with the bits of a simulation
    that nobody killed: rounds, private tables, versions. But a secure sum that was half open when
    the server died is opened to nobody: no step, that round.
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
    assert rounds(done) == [1, 2, 3, 4]
    assert [record["clients"] for record in done.records()] == [0] * lost + [3] * (4 - lost)
    if not lost:
        same(simulation(config, tmp_path / "simulation"), done)
    if config.entry.kind.labels:  # every site knows its words still
        assert done.records()[-1]["metrics"]["scored_clients"] == 3


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


def step_of(head: bytes, body: bytes) -> int:
    """Of a request; 0: it is none."""
    return int(decode(body).meta["step"]) if b'"kind": "ask"' in head else 0


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
            with monkeypatch.context() as patch:
                patch.setattr(type(to.federations[town.federation].site), "answer", killed)
                with pytest.raises(Killed):
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
    config = configured(tmp_path, {**table, "rounds": 14})
    town = Town(config, tmp_path / "deployment", replace(QUICK, grace=0.02))

    def fate(node: int, head: bytes, body: bytes, to: Desk) -> Arrived | None:
        round = int(decode(body).meta["round"]) if step_of(head, body) else 0
        if node == 102 and round == 1:  # when two rounds are over
            town.carrier.desks.pop(100, None)
        # whether it is back in time for the round in which it returns, is a matter of moments
        if node == 102 and round == 12 and 700 not in town.carrier.desks:
            town.carrier.desks[700] = town.opened()[100]
        return None

    town.carrier.fate = fate
    done = town.drive()
    assert rounds(done) == list(range(1, 15))
    counts = [record["clients"] for record in done.records()]
    assert counts.count(2) >= 10
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
        tmp_path, {**CLASSIFIER, "secrets": "system", "rounds": 6}, 6, privacy=NOISE["central"],
        train={"upload": "fp32"},
    )  # fmt: skip
    town = Town(config, tmp_path / "deployment", replace(QUICK, patience=0.2, grace=0.0))

    def fate(node: int, head: bytes, body: bytes, to: Desk) -> Arrived | None:
        step = step_of(head, body)
        gone = (100 + step % 6, 100 + (step + 3) % 6) if step else ()
        return Arrived("") if node in gone else None

    town.carrier.fate = fate
    done = town.drive()
    assert rounds(done) == [1, 2, 3, 4, 5, 6]
    assert {record["clients"] for record in done.records()} == {4}  # two of six, each time
    ledger = accounting.from_json(done.records()[-1]["ledger"])
    assert accounting.times(ledger) == 6
    for client in range(6):  # each site's own book has what it has answered, and no less
        book = json.loads((tmp_path / f"deployment/site{client}/ledger.json").read_text())
        charged = accounting.times(accounting.from_json(book["ledger"]))
        assert charged == book["exchanges"] <= 6


# --- books, answers and disks --------------------------------------------------------------------


def test_killed_between_the_book_and_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may have been made is paid for; asked again, it is paid for again."""
    server = Hostile.joined(tmp_path, written(privacy=NOISE["local"]), epsilon=50.0)
    letter = server.letter("ask", encode(server.request()), "train")
    with monkeypatch.context() as patch:
        patch.setattr("lexfed.site.answers.Answers.keep", killed)
        with pytest.raises(Killed):
            server.send(letter)
    assert server.ledger["exchanges"] == 1
    assert accounting.times(accounting.from_json(server.ledger["ledger"])) == 1
    server = server.again()
    answer = server.send(letter)
    assert answer is not None
    assert answer.kind == "reply"
    assert accounting.times(accounting.from_json(server.ledger["ledger"])) == 2


@pytest.mark.parametrize("name", ["ledger.json", "terms.toml", "newest", "answers", "store"])
@pytest.mark.parametrize("damage", [b"", b'{"format": 1, "led', b"\xff\xfe\x00"])
def test_a_file_that_is_damaged(name: str, damage: bytes, tmp_path: Path) -> None:
    """One refusal, one line that names the file, and nothing else changes; from a copy it goes on."""
    server = Hostile.joined(tmp_path)
    letter = server.letter("ask", encode(server.request()), "train")
    first = server.send(letter)
    own = tmp_path / "federations" / FEDERATION
    path = {
        "ledger.json": tmp_path / name, "answers": next((own / "answers").glob(f"*-{letter.digest}"), own),
        "store": next((own / "store/00000000").glob("[0-9]*.safetensors")),
    }.get(name, own / name)  # fmt: skip
    whole = path.read_bytes()
    path.write_bytes(damage)
    server = server.again()
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".log"}
    before.pop(tmp_path / "ledger.json")
    later = replace(server_request(server, step=2), nonce="ef" * 16)
    answer = server.send(letter if name == "answers" else later)
    assert answer is not None
    assert answer.kind == "refusal"
    assert str(tmp_path) not in answer.reason
    assert "other terms" in server.log or str(path) in server.log
    assert all(p.read_bytes() == data for p, data in before.items())
    path.write_bytes(whole)
    assert server.send(letter) == first
    answer = server.send(later)
    assert answer is not None
    assert answer.kind == "reply"


def server_request(server: Hostile, step: int) -> letters.Letter:
    made = Hostile.joined(server.desk.mine.folder.parent / "other")
    return server.letter("ask", encode(made.request(step)), "train")


def test_a_ledger_that_is_gone(tmp_path: Path) -> None:
    """It is no fresh start: somebody lost what the site has given."""
    server = Hostile.joined(tmp_path)
    server.ask()
    (tmp_path / "ledger.json").unlink()
    answer = server.ask()
    assert answer.kind == "refusal"
    assert "ledger.json is gone" in server.log


FULL = """
import resource, signal, sys
from pathlib import Path
from lexfed.wire import encode
from tests.hostile_server import Hostile
from tests.organisations import close_all

def limit(room):
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for room in (0, 100, 1500):
    folder = Path(sys.argv[1]) / str(room)
    server = Hostile.joined(folder)
    letter = server.letter("ask", encode(server.request()), "train")
    new = Hostile(server.desk, federation="cd" * 16)
    limit(room)
    refused = [server.send(letter), new.hello()]
    limit(resource.RLIM_INFINITY)
    assert [answer.kind for answer in refused] == ["refusal", "refusal" if room < 200 else "reply"]
    assert [answer.body for answer in refused] == [b"", b""]
    assert not list(folder.rglob(".*")) and not list(folder.rglob("answers/*"))
    new.again().enters()
    assert server.send(letter).kind == "reply"
    print(room, server.ledger["exchanges"])
close_all()
"""


def test_a_full_disk(tmp_path: Path) -> None:
    """Files may not grow beyond so many bytes: no file; not the terms; not the answer. Nothing is
    sent that could not be kept, nothing lies there half, and later it goes on. What was made and
    could not be kept stays paid.
    """
    out = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert out.stdout.split() == ["0", "1", "100", "1", "1500", "2"], out.stderr


# --- the door ------------------------------------------------------------------------------------


@contextmanager
def opened(path: Path, answer: Any = None, users: frozenset[int] | None = None) -> Iterator[Any]:
    said: list[str] = []
    who = frozenset({os.getuid()}) if users is None else users
    with door(path, who, answer or (lambda head, body: (head, body)), said.append):
        yield said


def knock(path: Path, data: bytes, hang_up: bool = False) -> bytes:
    with socket.socket(socket.AF_UNIX) as relay:
        relay.settimeout(10)
        relay.connect(str(path))
        heard = b""
        with suppress(ConnectionError):
            relay.sendall(data)
            while not hang_up and (piece := relay.recv(1 << 16)):
                heard += piece
        return heard


def frames(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def waited(until: Callable[[], bool]) -> bool:
    end = time.monotonic() + 5
    while not until() and time.monotonic() < end:
        time.sleep(0.01)
    return until()


def test_a_letter_through_the_door(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with opened(path):
        assert knock(path, frames(b"head", b"body" * 100_000)) == frames(b"head", b"body" * 100_000)
        assert knock(path, frames(b"", b"")) == frames(b"", b"")
    assert not path.exists()


def test_frames_that_are_cut_off_or_claim_too_much(tmp_path: Path) -> None:
    """They are let go of at once, and nothing is allocated for what was only claimed."""
    path = tmp_path / "s"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with opened(path) as said:
        for data in (
            b"",
            b"\0\0",
            frames(b"head")[:-1],
            frames(b"head"),
            frames(b"head", b"b")[:-1],
        ):
            knock(path, data, hang_up=True)
        huge = (1 << 62).to_bytes(8, "big")
        assert knock(path, (LONGEST_HEAD + 1).to_bytes(8, "big")) == b""
        assert knock(path, huge + b"x") == b""
        assert knock(path, frames(b"head") + huge + b"x") == b""
        knock(path, frames(b"head") + (1 << 29).to_bytes(8, "big") + b"x", hang_up=True)
        assert waited(lambda: "a letter was cut off: EOFError" in said)
        # those that hung up may still be inside, and only so many are let in at once
        assert waited(lambda: knock(path, frames(b"head", b"body")) == frames(b"head", b"body"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


def test_many_that_knock(tmp_path: Path) -> None:
    """So many are let in, the next is sent away, and the door goes on when they are gone."""
    path = tmp_path / "s"
    with opened(path) as said:
        crowd = [socket.socket(socket.AF_UNIX) for _ in range(AT_ONCE)]
        for one in crowd:
            one.connect(str(path))
        assert waited(lambda: knock(path, b"") == b"" and bool(said))
        assert said == [f"sent away a relay: {AT_ONCE} are here already"]
        for _ in range(50):
            knock(path, b"")
        assert len(said) == 1  # nor do they fill the log
        for one in crowd:
            one.close()
        assert waited(lambda: knock(path, frames(b"a", b"b")) == frames(b"a", b"b"))


def test_a_relay_that_hangs_up_while_the_site_works(tmp_path: Path) -> None:
    """The answer is kept; whoever comes next with the same letter gets it."""
    path = tmp_path / "s"
    server = Hostile.joined(tmp_path / "site")
    packet = letters.sealed(server.letter("ask", encode(server.request()), "train"), server.key)
    begun = threading.Event()

    def slow(head: bytes, body: bytes) -> tuple[bytes, bytes]:
        begun.set()
        time.sleep(0.2)
        return server.desk.answer(head, body)

    with opened(path, slow):
        knock(path, frames(*packet), hang_up=True)
        assert begun.wait(5)
        heard = knock(path, frames(*packet))
    assert heard == frames(*server.desk.answer(*packet))
    assert server.ledger["exchanges"] == 1


def test_an_error_behind_the_door_ends_nobody(tmp_path: Path) -> None:
    path = tmp_path / "s"
    calls = iter([OSError(5, "no"), None])

    def answer(head: bytes, body: bytes) -> tuple[bytes, bytes]:
        if (error := next(calls)) is not None:
            raise error
        return head, body

    with opened(path, answer):
        assert knock(path, frames(b"a", b"b")) == b""
        assert knock(path, frames(b"a", b"b")) == frames(b"a", b"b")


def test_who_may_not_knock(tmp_path: Path) -> None:
    """The kernel says who it is. As root, another user really knocks; else, this one is not on the
    list.
    """
    tmp_path.chmod(0o755)
    for folder in list(tmp_path.parents)[:-2]:
        if folder.stat().st_uid == os.getuid():
            folder.chmod(folder.stat().st_mode | 0o011)
    path = tmp_path / "s"
    asked: list[bytes] = []

    def answer(head: bytes, body: bytes) -> tuple[bytes, bytes]:
        asked.append(head)
        return head, body

    as_root = os.getuid() == 0
    users = frozenset({0}) if as_root else frozenset({os.getuid() + 1})
    with opened(path, answer, users) as said:
        heard = as_nobody(path) if as_root else knock(path, frames(b"a", b"b"))
        assert heard == b""
        assert waited(lambda: bool(said))
        assert said == [f"sent away user {NOBODY if as_root else os.getuid()}, who may not knock "
                        "(door.user)"]  # fmt: skip
    assert asked == []
    if as_root:
        with opened(path, answer, frozenset({0, NOBODY})):
            assert as_nobody(path) == frames(b"a", b"b")


NOBODY = 65534
KNOCK = """
import os, socket, sys
os.setgid(65534); os.setuid(65534)
with socket.socket(socket.AF_UNIX) as relay:
    relay.connect(sys.argv[1])
    heard = b""
    try:
        relay.sendall(bytes.fromhex(sys.argv[2]))
        while piece := relay.recv(100):
            heard += piece
    except (BrokenPipeError, ConnectionResetError):
        pass
sys.stdout.buffer.write(heard)
"""


def as_nobody(path: Path) -> bytes:
    out = subprocess.run(
        [sys.executable, "-I", "-c", KNOCK, str(path), frames(b"a", b"b").hex()],
        capture_output=True, check=True,
    )  # fmt: skip
    return out.stdout


def test_where_the_door_is(tmp_path: Path) -> None:
    """A socket that a killed process left is taken away; one that is in use is not, nor a file that
    an operator named by mistake.
    """
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with opened(path):
        assert knock(path, frames(b"a", b"b"))
        with pytest.raises(ConfigError, match="in use"), opened(path):
            pass
        assert waited(lambda: bool(knock(path, frames(b"a", b"b"))))  # who looked may be inside
    (tmp_path / "ledger.json").write_text("{}")
    with pytest.raises(ConfigError, match="is no socket"), opened(tmp_path / "ledger.json"):
        pass
    assert (tmp_path / "ledger.json").read_text() == "{}"
    with pytest.raises(ConfigError, match="too long"), opened(tmp_path / ("x" * 120)):
        pass
    with pytest.raises(ConfigError, match="no socket can be made"), opened(tmp_path / "no/s"):
        pass
