"""What a server program asks of users is paid for, by whoever wrote it; and where lexfed can't know,
it says so.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lexfed.language import heavy_hitters
from tests.conftest import Lexfed, no_pictures
from tests.unit.test_promises import PRIVATE as NOISY
from tests.unit.test_promises import PUBLIC, sets, summary_of

PRIVATE = (*NOISY, "privacy.accountant=rdp")  # quicker

VOTES = """
name = "votes"
rounds = 1
method = "tokenizer_for_free"
secrets = "{secrets}"
[data]
name = "{folder}/texts.jsonl"
partition = "user"
clients = 400
unseen = 4
test = 0.0
validation = 0.0
[tokenizer]
start = "heavy_hitters"
public = "{folder}/public.jsonl"
size = 300
kind = "word"
[heavy_hitters]
by = "{by}"
length = 3
epsilon = 40.0
[language_model]
layers = 1
width = 8
context = 8
[cohort]
size = 10
sampling = "poisson"
[train]
optimizer = "sgd"
[privacy]
placement = "central"
noise = 1.0
accountant = "rdp"
delta = 1e-5
"""


@pytest.fixture(autouse=True)
def quickly() -> Iterator[None]:
    with no_pictures():
        yield


def votes(folder: Path, secrets: str, by: str) -> Path:
    rows = [{"text": "aa", "user": f"u{i}"} for i in range(410)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "public.jsonl").write_text(
        "".join(json.dumps({"text": f"aa, a public text of {i} words"}) + "\n" for i in range(40))
    )
    path = folder / "votes.toml"
    path.write_text(VOTES.format(folder=folder, secrets=secrets, by=by))
    return path


@pytest.mark.parametrize(
    ("secrets", "by", "charges"),
    [("system", "triehh", 3), ("system", "cms", 3), ("seed", "triehh", 1)],
)
def test_every_attempt_that_asks_others_for_words_is_paid_for(
    secrets: str, by: str, charges: int,
    tmp_path: Path, lexfed: Lexfed, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Killed between the vote and the first model, a deployment asked another sample of users each
    time it went on: five votes, and one was charged. A simulation asks the same ones.
    """
    made, kills = heavy_hitters.learned.learn_from_counts, iter(range(2))

    def killed(*arguments: object) -> object:
        if next(kills, None) is not None:
            raise OSError("a power cut")
        return made(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(heavy_hitters.learned, "learn_from_counts", killed)
    config = votes(tmp_path, secrets, by)
    first = lexfed("run", config, "--out", "a")
    assert first.returncode != 0
    assert lexfed("run", "a", "--resume").returncode != 0
    last = lexfed("run", "a", "--resume")
    assert last.returncode == 0, last.stderr
    asked, trained = summary_of(Path("a"))["ledger"]
    assert (asked["event"], asked["count"]) == ("pure", charges)
    assert trained["count"] == 1


# --- methods of one's own ------------------------------------------------------------------------

LEAKY = """
from dataclasses import replace
import torch, lexfed
from lexfed.methods.fedavg import fedavg
from lexfed.learning.training_verbs import EVALUATE, TRAIN
from lexfed.federation import request, clock
from lexfed.wire import Array, Form
from lexfed.wire.verbs import CLOCK
TEXTS = Form({"texts": Array((torch.float64,), None)})
FIGURE = lexfed.Verb("figure", Form(meta=CLOCK), TEXTS, kind="figures")
PAID = lexfed.Verb("paid", Form(meta=CLOCK), TEXTS, kind="list", charged=True)

def count(message, client, state):
    texts = [float(len(client.train)), float(client.train.labels.sum())]
    return lexfed.Message({"texts": torch.tensor(texts, dtype=torch.float64)}), state

def asking(verb, when):
    def build(parts, options):
        method = fedavg(parts)
        def server(federation, seed, state):
            for s in method.server(federation, seed, state):
                if s.round == when:
                    told = dict.fromkeys(federation.clients, clock(s, 7))
                    got = [reply for _, reply in federation.ask(verb, told)]
                yield s
        return replace(method, client={**method.client, verb: count}, server=server)
    return build

def twice(parts, options):
    method = fedavg(parts)
    def server(federation, seed, state):
        for s in method.server(federation, seed, state):
            if s.round == 1:
                told = request(s, 5, **parts.mechanism.tell(s.mechanism_state))
                federation.total(TRAIN, dict.fromkeys(federation.clients[:1], told))
            yield s
    return replace(method, server=server)

def last(parts, options):
    method = fedavg(parts)
    def server(federation, seed, state):
        state = yield from method.server(federation, seed, state)
        told = request(state, 5, **parts.mechanism.tell(state.mechanism_state))
        federation.total(TRAIN, dict.fromkeys(federation.clients[:1], told))
        return state
    return replace(method, server=server)

def forgetful(parts, options):
    method = fedavg(parts)
    def server(federation, seed, state):
        for s in method.server(federation, seed, state):
            yield replace(s, ledger=s.ledger[:0])
    return replace(method, server=server)

def peek(parts, options):
    len(parts.people.client(0).train)
    return fedavg(parts)

FIGURES = lexfed.Entry("figures", lexfed.CLASSIFIER, asking(FIGURE, 0))
UNPAID = lexfed.Entry("unpaid", lexfed.CLASSIFIER, asking(PAID, 0))
BESIDE = lexfed.Entry("beside", lexfed.CLASSIFIER, asking(PAID, 2))
TWICE = lexfed.Entry("twice", lexfed.CLASSIFIER, twice)
LAST = lexfed.Entry("last", lexfed.CLASSIFIER, last)
FORGETFUL = lexfed.Entry("forgetful", lexfed.CLASSIFIER, forgetful)
PEEK = lexfed.Entry("peek", lexfed.CLASSIFIER, peek)
"""
LOCAL = (
    "privacy.placement=local",
    "privacy.accountant=rdp",
    "privacy.noise=4.0",
    "cohort.sampling=fixed",
)


@pytest.fixture
def leaky(tiny: Path) -> Path:
    (tiny.parent / "leaky.py").write_text(LEAKY)
    return tiny


@pytest.mark.parametrize("secrets", ["seed", "system"])
@pytest.mark.parametrize(
    ("method", "line"),
    [
        ("FIGURES", "'figure' is for figures"),
        ("UNPAID", "'paid' without a charge"),
        ("BESIDE", "'paid' without a charge"),
        ("TWICE", "'train' without a charge"),
        ("LAST", "'train' without a charge"),
    ],
)
def test_what_a_server_program_asks_for_and_does_not_pay_is_refused(
    method: str, line: str, secrets: str, leaky: Path, lexfed: Lexfed
) -> None:
    """All of these ran, and printed an epsilon."""
    words = sets(f"method=leaky:{method}", f"secrets={secrets}", *PRIVATE, PUBLIC)
    result = lexfed("run", leaky, "--out", "a", *words)
    assert result.returncode == 2
    assert line in result.stderr
    assert result.stderr.count("\n") == 1
    assert not Path("a/summary.json").exists()


@pytest.mark.parametrize("secrets", ["seed", "system"])
@pytest.mark.parametrize("settings", [PRIVATE, LOCAL], ids=["central", "local"])
def test_a_ledger_is_not_emptied_under_way(
    settings: tuple[str, ...], secrets: str, leaky: Path, lexfed: Lexfed
) -> None:
    words = sets("method=leaky:FORGETFUL", f"secrets={secrets}", *settings, PUBLIC)
    result = lexfed("run", leaky, "--out", "a", *words)
    assert result.returncode == 2
    assert "holds less than was charged" in result.stderr or "without a charge" in result.stderr


@pytest.mark.parametrize("secrets", ["seed", "system"])
def test_under_local_noise_each_user_is_counted(secrets: str, leaky: Path, lexfed: Lexfed) -> None:
    """There a round moves the ledger only if somebody in it was asked most."""
    words = sets(f"secrets={secrets}", *LOCAL, PUBLIC, "rounds=5")
    assert lexfed("run", leaky, "--out", "honest", *words).returncode == 0
    result = lexfed("run", leaky, "--out", "a", *words, *sets("method=leaky:TWICE"))
    assert result.returncode == 2
    assert "'train' without a charge" in result.stderr


def test_a_promise_says_what_lexfed_can_not_check(leaky: Path, lexfed: Lexfed) -> None:
    """A method that reads texts while it is built leaves no trace on any wire."""
    words = sets("method=leaky:PEEK", *PRIVATE, PUBLIC, "rounds=1")
    note = "'leaky:PEEK', which lexfed can't check, asks users for nothing else"
    result = lexfed("run", leaky, "--out", "a", *words)
    assert result.returncode == 0, result.stderr
    assert note in summary_of(Path("a"))["promise"]["notes"]
    assert f"It holds if {note}." in result.stdout
    assert f"It holds if {note}." in lexfed("privacy", "a").stdout
    assert f"It holds if {note}." in lexfed("privacy", leaky, *words).stdout
    plain = lexfed("privacy", leaky, *words, *sets("method=fedavg"))
    assert "This run: epsilon" in plain.stdout
    assert "It holds if" not in plain.stdout, "lexfed's own need no such words"
