"""Methods, models, verbs and corpora of one's own: what is wrong with them is one line, and nothing
is left behind.
"""

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from lexfed.core.errors import ConfigError, PrivacyError
from lexfed.core.params import ALL_PRIVATE, ALL_SHARED, ParameterSplit
from lexfed.federation import Method
from lexfed.learning.classifying import CLASSIFIER
from lexfed.wire import Array, Form, Message, Verb, check_outgoing, decode
from lexfed.wire.verbs import CLOCK
from tests.conftest import BAD, GOOD, ROOT, Lexfed

_NUMBER = count()

HEAD = """
from dataclasses import dataclass, replace

import torch

import lexfed
from lexfed.core.params import ALL_SHARED, ParameterSplit
from lexfed.federation import clock, request
from lexfed.learning.evaluation import evaluator
from lexfed.learning.private_table import Kept
from lexfed.learning.task import plain_update
from lexfed.learning.training import averaging, trainer
from lexfed.learning.training_verbs import EVALUATE, TRAIN
from lexfed.methods.fedavg import averaged
from lexfed.wire import Array, Form, Verb
from lexfed.wire.verbs import CLOCK


def fedavg(parts, options):
    return averaged(parts, plain_update(parts.task))


COUNT = Verb("count", down=Form(meta=CLOCK), up=Form({"texts": Array(shape=())}))


def counted(message, client, state):
    return lexfed.Message({"texts": torch.tensor(float(len(client.train)))}), state


def counting(server, handler=counted):
    \"\"\"FedAvg, and a count of all texts before it.\"\"\"

    def build(parts, options):
        plain = fedavg(parts, options)

        def program(federation, seed, state):
            state = yield from lexfed.once(state, "count", lambda s: server(federation, s))
            return (yield from plain.server(federation, seed, state))

        return replace(plain, client={**plain.client, COUNT: handler}, server=program)

    return build


def ask(federation, state, message=None):
    requests = dict.fromkeys(federation.clients, message or clock(state, 0))
    return state.with_blob("texts", str(federation.total(COUNT, requests).update).encode())
"""

Write = Callable[[str], str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """A module of one's own beside the configuration; every one has another name."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    names = []

    def write(source: str) -> str:
        name = f"own_{next(_NUMBER)}"
        (tmp_path / f"{name}.py").write_text(HEAD + textwrap.dedent(source))
        names.append(name)
        return name

    yield write
    for name in names:
        sys.modules.pop(name, None)


def refused(lexfed: Lexfed, tmp_path: Path, *words: object) -> str:
    """The one line of a refusal; no run directory is left."""
    done = lexfed("run", *words, "--out", "out")
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "out").exists()
    return done.stderr


# --- what is wrong with a method ------------------------------------------------------------------

WRONG = {
    "options that are no dataclass": (
        """
        class Options:
            share = 0.5
        METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, fedavg, Options)
        """,
        "must be a frozen dataclass: write @dataclass(frozen=True) above class Options",
    ),
    "options that are not frozen": (
        """
        @dataclass
        class Options:
            share: float = 0.5
        METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, fedavg, Options)
        """,
        "must be a frozen dataclass",
    ),
    "an option without a default": (
        """
        @dataclass(frozen=True)
        class Options:
            share: float
        METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, fedavg, Options)
        """,
        "mine.share has no default",
    ),
    "an option that no file could hold": (
        """
        from dataclasses import field
        @dataclass(frozen=True)
        class Options:
            shares: dict = field(default_factory=dict)
        METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, fedavg, Options)
        """,
        "mine.shares is of type dict; a key is int, float, str or bool",
    ),
    "a kind that is none": (
        'METHOD = lexfed.Entry("mine", "classifier", fedavg)',
        "the kind of method 'mine' must be lexfed.CLASSIFIER or another Kind, not 'classifier'",
    ),
    "no name": (
        'METHOD = lexfed.Entry("", lexfed.CLASSIFIER, fedavg)',
        "a method's name is a plain word",
    ),
    "traits in one string": (
        'METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, fedavg, traits="own words")',
        "the traits of method 'mine' must be a set",
    ),
    "an unknown trait": (
        'METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, fedavg, traits={"own word"})',
        "unknown trait 'own word'; did you mean 'own words'?",
    ),
    "a build that returns nothing": (
        'METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, lambda parts, options: None)',
        "the build of method 'mine' returned None, not a lexfed.Method",
    ),
    "a build that returns something else": (
        'METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, lambda parts, options: parts)',
        "the build of method 'mine' returned a Parts, not a lexfed.Method",
    ),
    "a build that takes too little": (
        'METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, lambda parts: None)',
        "the build of method 'mine' must take (parts, options)",
    ),
    "no rounds": (
        """
        def build(parts, options):
            return replace(fedavg(parts, options), rounds=0)
        METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, build)
        """,
        "method 'mine' has 0 rounds: give its Method rounds=parts.rounds",
    ),
    "nobody answers for the scores": (
        """
        def build(parts, options):
            plain = fedavg(parts, options)
            return replace(plain, client={TRAIN: plain.client[TRAIN]})
        METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, build)
        """,
        "method 'mine' has no handler for 'evaluate', by which it is scored",
    ),
    "a split that fits no parameter": (
        """
        def build(parts, options):
            split = ParameterSplit(lambda name: name.startswith("head."))
            return replace(fedavg(parts, options), split=split)
        METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, build)
        """,
        "method 'mine' keeps parameters private, but model 'bilstm' has none of them (it has: "
        "embedding.weight, lstm.bias_hh_l0",
    ),
    "a split that is none": (
        """
        def build(parts, options):
            return replace(fedavg(parts, options), split=None)
        METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, build)
        """,
        "Method.split must be a ParameterSplit",
    ),
    "two verbs of one name": (
        """
        OTHER = Verb("count", down=Form(meta=CLOCK), up=Form())
        def build(parts, options):
            return replace(fedavg(parts, options), client={COUNT: counted, OTHER: counted})
        METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, build)
        """,
        "two verbs of a method have one name",
    ),
    "a server that is no generator": (
        """
        def build(parts, options):
            return replace(fedavg(parts, options), server=lambda federation, seed, state: state)
        METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, build)
        """,
        "Method.server is no generator (it returned ServerState)",
    ),
    "a server that yields something else": (
        """
        def build(parts, options):
            def server(federation, seed, state):
                yield {"params": 1}
            return replace(fedavg(parts, options), server=server)
        METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, build)
        """,
        "Method.server yields and returns ServerStates, not dict",
    ),
    "a verb without a handler": (
        """
        def build(parts, options):
            plain = counting(ask)(parts, options)
            return replace(plain, client={v: h for v, h in plain.client.items() if v is not COUNT})
        METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, build)
        """,
        "'count' was asked, and Method.client has no handler for it (it has 'train', 'evaluate')",
    ),
    "a request without its clock": (
        """
        def server(federation, state):
            return ask(federation, state, lexfed.Message(meta={"ask": 0, "round": 0}))
        METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, counting(server))
        """,
        "a request of 'count' lacks 'step'; make it with clock(state, 0)",
    ),
    "requests that are a list": (
        """
        def server(federation, state):
            return state.with_blob("x", federation.total(COUNT, list(federation.clients)))
        METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, counting(server))
        """,
        "requests of 'count' must be a dict, a Message for each client",
    ),
    "a handler that returns no pair": (
        """
        def handler(message, client, state):
            return lexfed.Message({"texts": torch.tensor(1.0)})
        METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, counting(ask, handler))
        """,
        "the handler of 'count' must return a Message (or None) and a ClientState, not Message",
    ),
    "a reply of another dtype": (
        """
        def handler(message, client, state):
            return lexfed.Message({"texts": torch.tensor(len(client.train))}), state
        METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, counting(ask, handler))
        """,
        "the handler of 'count' made a reply of no use: 'texts' has another dtype",
    ),
    "a number that is no tensor": (
        """
        def handler(message, client, state):
            return lexfed.Message({"texts": float(len(client.train))}), state
        METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, counting(ask, handler))
        """,
        "'texts' in a message's arrays is float; make it a tensor: torch.tensor(...)",
    ),
    "a module that imports what is not there": (
        "from lexfed import nothing_of_the_kind",
        "failed ({m}.py, line ",
    ),
    "a module that needs another": (
        "import no_such_package_anywhere",
        "ModuleNotFoundError: No module named 'no_such_package_anywhere'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_method_is_refused_in_one_line(
    case: str, module: Write, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    source, message = WRONG[case]
    name = module(source)
    line = refused(lexfed, tmp_path, tiny, "--set", f"method={name}:METHOD")
    assert message.format(m=name) in line
    assert "PYTHONPATH" not in line, "its folder is not what is wrong"


def test_what_was_mended_runs_with_the_same_out(
    module: Write, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    """The refusal came when the directory was made already; the wire goes with it."""
    words = ("--set", "rounds=1", "--record-wire", "wire")
    source = WRONG["a reply of another dtype"][0]
    refused(lexfed, tmp_path, tiny, "--set", f"method={module(source)}:METHOD", *words)
    assert not (tmp_path / "wire").exists()
    good = module('METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, counting(ask))')
    done = lexfed("run", tiny, "--out", "out", "--set", f"method={good}:METHOD", *words)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("mine.share=2.0", "[mine]: a share is below 1"),
        ("mine=3", "'mine' is a table: write [mine], not mine = 3"),
        ("mine.share=much", "mine.share must be a number, not 'much'"),
    ],
)
def test_the_options_own_checks_name_their_table(
    setting: str, message: str, module: Write, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    name = module(
        """
        @dataclass(frozen=True)
        class Options:
            share: float = 0.5

            def __post_init__(self):
                if self.share >= 1:
                    raise ValueError("a share is below 1")
        METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, fedavg, Options)
        """
    )
    words = ("--set", f"method={name}:METHOD", "--set", setting)
    assert message in refused(lexfed, tmp_path, tiny, *words)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("topk.py:METHOD", "write 'topk:METHOD'"),
        ("some/place/topk.py:METHOD", "write 'topk:METHOD', with some/place on PYTHONPATH"),
        ("topk:METHOD", "is its folder on PYTHONPATH?"),
    ],
)
def test_how_a_method_is_written(
    name: str, message: str, module: Write, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    assert message in refused(lexfed, tmp_path, tiny, "--set", f"method={name}")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_fault_in_a_handler_names_its_place(
    workers: int, module: Write, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    name = module(
        """
        def handler(message, client, state):
            return client.no_such_thing
        METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, counting(ask, handler))
        """
    )
    place = (tmp_path / f"{name}.py").read_text().splitlines().index(
        "    return client.no_such_thing"
    ) + 1
    words = ("--set", f"method={name}:METHOD", "--workers", workers)
    done = lexfed("run", tiny, "--out", "out", *words)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "typer" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        f"lexfed: AttributeError ({name}.py, line {place}): "
    )
    assert not (tmp_path / "out").exists()


# --- what is wrong with a model or a corpus -------------------------------------------------------

MODEL = """
from lexfed.models.model import EMBEDDING, HEAD, TABLE, embed

class Bag:
    word_table = TABLE
    def init(self, vocab_size, seed):
        return {TABLE: torch.zeros(vocab_size, 2), "output.weight": torch.zeros(2, 2)}
    def logits(self, params, batch, seed):
        return embed(params, batch.ids).mean(1) @ params["output.weight"]
    def depth(self, name):
        return EMBEDDING if name == TABLE else HEAD
"""


def test_a_model_must_have_what_a_classifier_has(
    module: Write, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    lacking = module(MODEL + "del Bag.logits\nMODEL = lexfed.ModelEntry(lambda o, c: Bag())\n")
    line = refused(lexfed, tmp_path, tiny, "--set", f"model.name={lacking}:MODEL")
    assert "Bag is no Classifier: it lacks logits" in line
    narrow = module(MODEL + "MODEL = lexfed.ModelEntry(lambda options: Bag())\n")
    line = refused(lexfed, tmp_path, tiny, "--set", f"model.name={narrow}:MODEL")
    assert "its build must take (options, classes)" in line


def test_fedevocab_wants_a_model_that_reads_word_vectors(
    module: Write, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    name = module(MODEL + "MODEL = lexfed.ModelEntry(lambda o, c: Bag())\n")
    words = ("--set", f"model.name={name}:MODEL", "--set", "method=fedevocab")
    line = refused(lexfed, tmp_path, tiny, *words)
    assert "Bag is no WordClassifier: it lacks dimension, first_layer, inputs" in line
    done = lexfed("run", tiny, "--out", "out", "--set", f"model.name={name}:MODEL")
    assert done.returncode == 0, "it is one for fedavg"


CORPORA = {
    "an argument": ("def load(path): return []", "is not a function without arguments"),
    "no such file": (
        "def load(): return open('nowhere.txt').read()",
        "{m}:load: [Errno 2] No such file",
    ),
    "unequal columns": (
        "def load(): return {'text': ['a', 'b'], 'label': [1]}",
        "columns must be of one length, not text 2, label 1",
    ),
    "numbers": ("def load(): return [1, 2, 3]", "texts must be strings, and text 1 is int"),
    "several kinds": (
        "def load(): return {'text': ['a', 'b'], 'label': ['x', 1]}",
        "column 'label' holds values of different kinds",
    ),
    "no labels": (
        "def load(): return ['one text', 'another', 'a third']",
        "{m}:load has no labels (no column 'label'), and a classifier learns them",
    ),
}


@pytest.mark.parametrize("case", CORPORA)
def test_a_corpus_of_ones_own_that_is_none(
    case: str, module: Write, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    source, message = CORPORA[case]
    name = module(source)
    line = refused(lexfed, tmp_path, tiny, "--set", f"data.name={name}:load")
    assert message.format(m=name) in line


def test_a_corpus_of_ones_own_can_be_shown(module: Write, lexfed: Lexfed) -> None:
    name = module("def load(): return {'text': ['one text', 'another'], 'label': [0, 1]}")
    done = lexfed("data", "show", f"{name}:load")
    assert done.returncode == 0, done.stderr
    assert "2" in done.stdout


def test_texts_do_not_stay_where_no_run_is(tmp_path: Path) -> None:
    import lexfed

    texts = {"text": GOOD + BAD, "label": [1] * 5 + [0] * 5}
    with pytest.raises(lexfed.LexfedError, match=r"cohort\.size is 50"):
        lexfed.run(
            {"data": {"clients": 2}, "cohort": {"size": 50}}, corpus=texts, out=tmp_path / "out"
        )
    assert list(tmp_path.iterdir()) == []


SCRIPT = """
import lexfed
from lexfed.learning.task import plain_update
from lexfed.methods.fedavg import averaged

METHOD = lexfed.Entry(
    "mine", lexfed.CLASSIFIER, lambda parts, options: averaged(parts, plain_update(parts.task))
)
try:
    lexfed.run({"method": METHOD, "data": {"name": "nowhere.csv"}}, out="out", workers=2)
except lexfed.LexfedError as error:
    print(error)
"""


def test_workers_can_not_import_from_the_script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    words = [sys.executable, "script.py"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "workers can't import '__main__:METHOD' from the script; put it into" in done.stdout
    assert not (tmp_path / "out").exists()


# --- what is right --------------------------------------------------------------------------------


def summary(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "summary.json").read_text())
    return found


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]


def test_a_resumed_run_finds_the_module_beside_its_configuration(
    module: Write, tiny: Path, lexfed: Lexfed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = module('METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, fedavg)')
    away = tmp_path / "away"
    away.mkdir()
    monkeypatch.chdir(away)
    words = ("--set", f"method={name}:METHOD", "--set", "rounds=1")
    done = lexfed("run", tiny, "--out", "run", *words)
    assert done.returncode == 0, done.stderr
    before = (away / "run/config.toml").read_bytes()

    def forgotten() -> None:
        """As a new process would: it knows neither the folder nor the module."""
        sys.modules.pop(name)
        monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(tmp_path)])

    forgotten()
    done = lexfed("run", "run", "--resume", "--set", "rounds=2")
    assert done.returncode == 0, done.stderr
    assert summary(away / "run")["rounds"] == 2
    assert (
        before.replace(b"rounds = 1", b"rounds = 2", 1) == (away / "run/config.toml").read_bytes()
    )
    forgotten()
    done = lexfed("audit", "run", "--attack", "labels", "--out", "audit")
    assert done.returncode == 0, done.stderr
    forgotten()
    gone = str(tmp_path / "no such place")
    (away / "run/modules.json").write_text(json.dumps([gone]))
    done = lexfed("run", "run", "--resume", "--set", "rounds=3")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{gone} (which is gone)" in done.stderr


def test_a_program_that_ends_early_is_scored(
    module: Write, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    """At the state that it returns, which it may never have yielded."""
    name = module(
        """
        def build(parts, options):
            def server(federation, seed, state):
                state = yield from lexfed.once(
                    state, "init", lambda s: replace(s, params=parts.task.init(seed))
                )
                state = yield from parts.loop()(federation, state, until=1, seed=seed)
                zeros = {name: 0 * value for name, value in state.params.items()}
                return replace(state, params=zeros)
            return replace(fedavg(parts, options), server=server)
        METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, build)
        """
    )
    done = lexfed("run", tiny, "--out", "out", "--set", f"method={name}:METHOD")
    assert done.returncode == 0, done.stderr
    found = summary(tmp_path / "out")
    assert (found["stopped"], found["rounds"]) == ("finished", 1)
    assert found["global_accuracy"] is not None
    model = decode((tmp_path / "out/artifacts/model.safetensors").read_bytes()).arrays
    assert all(not value.any() for value in model.values())


def test_a_robust_rule_leaves_other_sums_alone(
    module: Write, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    """And a method that sends no updates of the model can't be made robust."""
    name = module(
        """
        def server(federation, state):
            requests = dict.fromkeys(federation.clients, clock(state, 0))
            assert float(federation.total(COUNT, requests).update["texts"]) > 6
            return state
        METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, counting(server))

        def without(parts, options):
            plain = fedavg(parts, options)
            client = {COUNT: counted, EVALUATE: plain.client[EVALUATE]}
            return replace(plain, client=client)
        NONE = lexfed.Entry("without", lexfed.CLASSIFIER, without)
        """
    )
    rule = ("--set", "aggregation.rule=median")
    done = lexfed("run", tiny, "--out", "a", "--set", f"method={name}:METHOD", *rule)
    assert done.returncode == 0, done.stderr
    line = refused(lexfed, tmp_path, tiny, "--set", f"method={name}:NONE", *rule)
    assert "no verb of method 'without' sends any" in line


@pytest.mark.parametrize("way", ["total", "ask"])
def test_the_clients_of_a_round_are_those_that_trained(
    way: str, module: Write, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    """Six are counted before the first round, in which three train; counting alone is told too."""
    name = module(
        f"""
        def server(federation, state):
            requests = dict.fromkeys(federation.clients, clock(state, 0))
            list(federation.ask(COUNT, requests)) if "{way}" == "ask" else (
                federation.total(COUNT, requests)
            )
            return state
        METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, counting(server))

        def only(parts, options):
            def program(federation, seed, state):
                while state.round < parts.rounds:
                    server(federation, state)
                    state = replace(state, round=state.round + 1, step=state.step + 1)
                    yield state
            plain = fedavg(parts, options)
            def nothing(message, client, state):
                return None, state
            return replace(plain, client={{COUNT: counted, EVALUATE: nothing}}, server=program)
        ONLY = lexfed.Entry("only", lexfed.CLASSIFIER, only)
        """
    )
    for method, clients, loss in (("METHOD", [3, 3, 3], True), ("ONLY", [6, 6, 6], False)):
        done = lexfed("run", tiny, "--out", method, "--set", f"method={name}:{method}")
        assert done.returncode == 0, done.stderr
        found = records(tmp_path / method)
        assert [record["clients"] for record in found] == clients
        assert all((record["loss"] is not None) == loss for record in found)


def test_a_method_of_ones_own_is_shown_by_its_name(
    module: Write, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    name = module('METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, fedavg)')
    done = lexfed("run", tiny, "--out", "out", "--set", f"method={name}:METHOD")
    assert done.stdout.startswith("mine on ")
    assert f"{name}:METHOD" not in done.stdout
    assert "tiny: mine</h1>" in (tmp_path / "out/report.html").read_text()
    assert summary(tmp_path / "out")["method"] == f"{name}:METHOD"
    assert lexfed("compare", "out", "--out", "page.html").returncode == 0
    page = (tmp_path / "page.html").read_text()
    assert "<td>mine</td>" in page
    assert f"{name}:METHOD" not in page


def test_an_audit_takes_as_many_clients_as_there_are(tiny: Path, lexfed: Lexfed) -> None:
    done = lexfed("audit", tiny, "--attack", "labels", "--out", "audit")
    assert done.returncode == 0, done.stderr


def test_a_key_that_may_be_none_can_be_unset(tiny: Path, tmp_path: Path) -> None:
    from dataclasses import dataclass

    from lexfed.experiment import config, toml

    text = tiny.read_text().replace("clients = 6", "clients = 6\nlimit = 40")
    tiny.write_text(text)
    assert config.load(tiny).data.limit == 40
    unset = config.load(tiny, ["data.limit=none"])
    assert unset.data.limit is None
    assert config.loads(config.to_toml(unset)) == unset
    tiny.write_text(text.replace("limit = 40", 'limit = "none"'))
    assert config.load(tiny).data.limit is None
    with pytest.raises(ConfigError, match=r"data\.clients must be a whole number"):
        config.load(tiny, ["data.clients=none"])

    @dataclass(frozen=True)
    class Table:
        most: int | None = 5

    # what is none though something else is the default must be written down
    written = config._written({"most": None}, Table)
    assert toml.read(Table, written, "") == Table(None)


def test_from_python_none_unsets_too(tiny: Path) -> None:
    from lexfed.api import configure

    assert configure(tiny, {"evaluation.limit": None}).evaluation.limit is None
    assert configure({"evaluation": {"limit": None}}).evaluation.limit is None


# --- the gate -------------------------------------------------------------------------------------

HEAD_STAYS = ParameterSplit(lambda name: name.startswith("output."))
TELL = Verb(
    "tell",
    down=Form(meta=CLOCK),
    up=Form({"output.weight": Array(shape=None), "a/": Array(shape=None)}, ("output.bias", "n")),
)


@pytest.mark.parametrize(
    "message",
    [
        Message({"output.weight": torch.zeros(2)}),
        Message({"a/output.weight": torch.zeros(2)}),
        Message({"a/b/output.weight#ids": torch.zeros(2)}),
        Message(meta={"output.bias": 0.5}),
    ],
)
def test_a_private_parameter_does_not_pass_under_its_bare_name(message: Message) -> None:
    check_outgoing(TELL, message, ALL_SHARED)
    names = {"output.weight", "output.bias"}
    for known in (None, names):
        with pytest.raises(PrivacyError, match=r"private parameter 'output\."):
            check_outgoing(TELL, message, HEAD_STAYS, known)


def test_a_word_of_the_verbs_own_is_no_parameter() -> None:
    check_outgoing(TELL, Message(meta={"n": 3}), ALL_PRIVATE, {"output.weight"})


def test_the_gate_of_a_run_knows_the_parameters(
    module: Write, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    """The server's model has none of them, nor has the client's state: they are made anew."""
    name = module(
        """
        LEAK = Verb(
            "count", down=Form(meta=CLOCK), up=Form({"output.weight": Array(shape=None)})
        )
        def build(parts, options):
            split = ParameterSplit(lambda name: name.startswith("output."))
            plain = fedavg(parts, options)
            def leak(message, client, state):
                params = parts.task.init(client.secret)
                return lexfed.Message({"output.weight": params["output.weight"]}), state
            def server(federation, seed, state):
                requests = dict.fromkeys(federation.clients, clock(state, 0))
                federation.total(LEAK, requests)
                yield state
            return replace(plain, client={**plain.client, LEAK: leak}, server=server, split=split)
        METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, build)
        """
    )
    line = refused(lexfed, tmp_path, tiny, "--set", f"method={name}:METHOD")
    assert "private parameter 'output.weight' was about to be sent with 'count'" in line


def test_a_method_can_not_forget_what_is_private() -> None:
    with pytest.raises(TypeError, match=r"split.*rounds"):
        Method({}, lambda *_: iter(()))  # type: ignore[call-arg]


def test_what_a_method_adds_to_the_model_it_may_keep(
    module: Write, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    name = module(
        """
        def build(parts, options):
            split = ParameterSplit(lambda name: name == "mine.scale", beside=("mine.scale",))
            return replace(fedavg(parts, options), split=split)
        METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, build)
        """
    )
    words = ("--set", f"method={name}:METHOD", "--set", "rounds=1")
    assert lexfed("run", tiny, "--out", "out", *words).returncode == 0


@pytest.mark.parametrize("method", ["fedavg", "fedevocab", "lg_fedavg", "fedrecon", "local_only"])
def test_methods_of_ours_keep_what_they_say(method: str, tiny: Path) -> None:
    from lexfed.experiment.assembly import assemble
    from lexfed.experiment.config import load

    assembly = assemble(load(tiny, [f"method={method}"]))
    split = assembly.method.split
    kept = {name for name in assembly.parameters if split.is_private(name)}
    assert bool(kept) == (split is not ALL_SHARED)
    assert CLASSIFIER is assembly.entry.kind


# --- docs/own-method.md ---------------------------------------------------------------------------

PAGE = (ROOT / "docs/own-method.md").read_text()
BLOCKS = {
    re.match(r"# (\w+)\.py\n", block)[1]: block  # type: ignore[index]
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
}


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The files of the page, as a reader would write them."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    for name, block in BLOCKS.items():
        (tmp_path / f"{name}.py").write_text(block)
    yield tmp_path
    for name in BLOCKS:
        sys.modules.pop(name, None)


def test_the_page_has_a_block_for_everything() -> None:
    assert list(BLOCKS) == [
        "sign_fedavg", "private_head", "count_texts", "two_stages", "my_texts", "from_python",
    ]  # fmt: skip


@pytest.mark.parametrize("name", [name for name in BLOCKS if "METHOD = " in BLOCKS[name]])
def test_the_methods_of_the_page_run(name: str, page: Path, tiny: Path, lexfed: Lexfed) -> None:
    words = ("--set", f"method={name}:METHOD", "--set", "data.name=my_texts:load")
    done = lexfed("run", tiny, "--out", "out", *words)
    assert done.returncode == 0, done.stderr
    found, model = summary(page / "out"), page / "out/artifacts/model.safetensors"
    names = set(decode(model.read_bytes()).arrays)
    assert ("output.weight" in names) == (name != "private_head")
    assert (found["parameters_private"] > 0) == (name == "private_head")
    if name == "count_texts":  # no client holds the test set
        assert 0 < found["counted_texts"] <= 160


def test_the_program_of_the_page_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    monkeypatch.chdir(page)
    program = importlib.import_module("from_python")
    assert program.run.summary["method"] == "sign_fedavg:METHOD"


def rows(title: str) -> dict[str, str]:
    """The first two columns of the table with this title."""
    table = PAGE.partition(f"| {title} |")[2].partition("\n\n")[0]
    cells = [line.strip("|").split("|") for line in table.splitlines()[2:]]
    return {row[0].strip(): row[1].strip() for row in cells}


def test_the_page_says_every_trait_and_every_field() -> None:
    from dataclasses import fields

    from lexfed.corpus.population import Client
    from lexfed.federation import ClientState, Entry, ServerState
    from lexfed.federation.method import TRAITS
    from lexfed.learning.parts import Parts
    from lexfed.models.model import Classifier, lacking

    assert rows("trait") == {f"`{name}`": says for name, says in TRAITS.items()}

    def named(kind: type) -> set[str]:
        return {f"`{field.name}`" for field in fields(kind)}

    def said(title: str) -> set[str]:
        listed = {word.strip() for cell in rows(title) for word in cell.split(", ")}
        return {re.sub(r"\(.*\)", "", cell) for cell in listed}

    entry = {re.sub(r"\(.*\)", "", cell) for cell in rows("part")}
    assert entry == named(Entry)
    assert said("`ServerState`") == named(ServerState) - {"`forks`"}
    assert said("`ClientState` (what it keeps)") == named(ClientState)
    assert said("`Client` (what a handler is given)") == named(Client) - {
        "`common_secret`",
        "`identity`",
        "`pinned`",
    }
    assert said("field") - {"`loop`"} <= named(Parts)
    model = {re.sub(r"\(.*\)", "", cell) for cell in rows("name")}
    assert model == {f"`{name}`" for name in lacking(None, Classifier)}
