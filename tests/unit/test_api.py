"""What `import lexfed` gives: few names, loaded when they are used, typed."""

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas
import pyarrow as pa
import pytest
import torch

import lexfed
from lexfed.core.params import ALL_SHARED
from lexfed.learning.task import plain_update
from lexfed.methods.fedavg import METHOD as FEDAVG
from lexfed.methods.fedavg import averaged
from tests.conftest import BAD, GOOD, ROOT

COLUMNS = {
    "text": [f"{(GOOD if i % 2 else BAD)[i % 5]} {i}" for i in range(60)],
    "label": ["good" if i % 2 else "bad" for i in range(60)],
    "user": [f"u{i % 6}" for i in range(60)],
}
SETUP: dict[str, Any] = {
    "rounds": 2,
    "data": {"clients": 4},
    "model": {"embedding": 4, "hidden": 3},
    "cohort": {"size": 2},
}


def test_there_are_at_most_25_names_and_all_of_them_are_there() -> None:
    assert len(lexfed.__all__) <= 25
    assert sorted(lexfed.__all__) == sorted(set(lexfed.__all__))
    for name in lexfed.__all__:
        assert getattr(lexfed, name) is not None
        assert name in dir(lexfed)


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'train'"):
        lexfed.train  # noqa: B018


def test_importing_lexfed_loads_nothing() -> None:
    program = (
        "import sys, lexfed; print([m for m in ('torch', 'numpy', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_rooms_do_not_hide_functions(tmp_path: Path) -> None:
    """Importing every room leaves `lexfed.run` and `lexfed.audit` what they are."""
    program = "import lexfed, lexfed.cli, lexfed.api, lexfed.runs.launch, lexfed.audits.cells\n"
    program += "assert all(callable(getattr(lexfed, n)) for n in ('run', 'audit', 'partition', 'simulate'))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def sources() -> dict[str, Any]:
    import datasets

    parts = datasets.DatasetDict(
        {"train": datasets.Dataset.from_dict(COLUMNS), "test": datasets.Dataset.from_dict(COLUMNS)}
    )
    return {
        "dict": COLUMNS,
        "pandas": pandas.DataFrame(COLUMNS),
        "arrow": pa.table(COLUMNS),
        "dataset": datasets.Dataset.from_dict(COLUMNS),
        "splits": parts,
    }


@pytest.mark.parametrize("kind", ["dict", "pandas", "arrow", "dataset", "splits"])
def test_a_corpus_comes_from_whatever_is_at_hand(kind: str) -> None:
    corpus = lexfed.load_corpus(sources()[kind])
    assert list(corpus)[:2] == COLUMNS["text"][:2]
    assert corpus.label_names == ("bad", "good")
    assert len(corpus) == (120 if kind == "splits" else 60)
    if kind == "splits":
        assert len(corpus.where("splits", "test")) == 60


def test_a_list_of_texts_is_a_corpus_without_labels() -> None:
    corpus = lexfed.load_corpus(["one text", "another"])
    assert list(corpus) == ["one text", "another"]
    assert corpus.label_column is None


@pytest.mark.parametrize("wrong", [17, (text for text in ["a"]), [1, 2]])
def test_what_is_no_corpus_is_refused_in_a_sentence(wrong: Any) -> None:
    with pytest.raises(lexfed.LexfedError, match=r"corpus|texts"):
        lexfed.load_corpus(wrong)


def test_columns_may_have_other_names() -> None:
    corpus = lexfed.load_corpus({"note": ["a b"], "class": [0]}, text="note", label="class")
    assert list(corpus) == ["a b"]
    assert corpus.labels.tolist() == [0]


def test_a_population_is_parted_as_asked() -> None:
    people = lexfed.partition(COLUMNS, clients=6, partition="user", test=0.1)
    assert len(people) == 6
    for client in range(6):
        own = people.client(client).train
        assert len(set(own.users.take(own.rows).to_pylist())) == 1


def test_an_unknown_option_of_a_partition_is_refused() -> None:
    with pytest.raises(lexfed.LexfedError, match="alhpa"):
        lexfed.partition(COLUMNS, alhpa=1.0)


def test_a_run_from_a_dict_and_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = lexfed.run(SETUP, corpus=pandas.DataFrame(COLUMNS), out="run", quiet=True)
    assert run.summary == json.loads((tmp_path / "run/summary.json").read_text())
    assert list(run.rounds["round"]) == [1, 2]
    assert run.rounds["global_accuracy"].iloc[-1] == run.summary["global_accuracy"]
    assert run.report.is_file()
    assert "global_accuracy" in repr(run)
    assert lexfed.open_run("run").summary == run.summary
    (saved,) = tmp_path.glob("*.corpus.arrow")
    assert saved.stat().st_mode & 0o077 == 0, "texts on disk are their owner's alone"
    longer = lexfed.resume("run", rounds=3, quiet=True)
    assert longer.summary["rounds"] == 3
    found = lexfed.audit(longer, attacks=["labels"], settings={"audit.clients": 2})
    assert list(found.rows["attack"]) == ["labels"]


def test_settings_go_over_the_file(tiny: Path, tmp_path: Path) -> None:
    run = lexfed.run(tiny, out=tmp_path / "run", settings={"rounds": 1, "name": "x"}, quiet=True)
    assert (run.config.rounds, run.config.name) == (1, "x")
    assert run.config.data.clients == 6


def test_a_quiet_run_prints_nothing(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lexfed.run(tiny, out=tmp_path / "run", settings={"rounds": 1}, quiet=True)
    assert capsys.readouterr().out == ""


@dataclass(frozen=True)
class Half:
    share: float = 0.5  # of an update that is sent


def half(parts: Any, options: Half) -> lexfed.Method:
    train = plain_update(parts.task)

    def update(params: Any, client: Any, state: Any, message: Any, seed: Any) -> Any:
        after = train(params, client, state, message, seed)
        moved = {n: v + options.share * (after.params[n] - v) for n, v in params.items()}
        return replace(after, params=moved)

    return averaged(parts, update)


HALF = lexfed.Entry("half", lexfed.CLASSIFIER, half, Half)
NOT_AN_ENTRY = 3


def test_a_method_may_be_given_as_its_entry(tmp_path: Path) -> None:
    """And at share 1 it is FedAvg, bit for bit."""
    weights = {}
    for name, method, own in (("half", HALF, {"half": {"share": 1.0}}), ("fedavg", FEDAVG, {})):
        setup = {**SETUP, **own, "method": method}
        run = lexfed.run(setup, corpus=COLUMNS, out=tmp_path / name, quiet=True)
        weights[name] = (run.artifacts / "model.safetensors").read_bytes()
    assert weights["half"] == weights["fedavg"]


@pytest.mark.slow
def test_workers_import_the_method_and_give_the_same_bits(tmp_path: Path) -> None:
    runs = [
        lexfed.run(
            {**SETUP, "method": HALF}, corpus=COLUMNS, out=tmp_path / str(n), workers=n, quiet=True
        )
        for n in (0, 2)
    ]
    one, two = ((run.artifacts / "model.safetensors").read_bytes() for run in runs)
    assert one == two


def test_a_method_that_a_worker_cannot_import_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is here, in this process alone; a worker must not train something else instead."""
    import types

    module = types.ModuleType("only_here")
    module.METHOD = HALF  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "only_here", module)
    setup = {**SETUP, "method": "only_here:METHOD"}
    lexfed.run(setup, corpus=COLUMNS, out=tmp_path / "alone", quiet=True)
    with pytest.raises(lexfed.LexfedError, match="only_here"):
        lexfed.run(setup, corpus=COLUMNS, out=tmp_path / "run", workers=1, quiet=True)
    assert not list(tmp_path.glob("run*")), "neither a run nor its texts are left"


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("no_such_module:METHOD", "No module named"),
        (f"{__name__}:MISSING", "has no 'MISSING'"),
        (f"{__name__}:NOT_AN_ENTRY", "is not a lexfed.Entry"),
        ("fedavgg", "did you mean 'fedavg'"),
    ],
)
def test_a_name_that_stands_for_no_method_is_refused(name: str, match: str) -> None:
    with pytest.raises(lexfed.LexfedError, match=match):
        lexfed.run({**SETUP, "method": name})


@pytest.mark.slow
def test_a_corpus_loader_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_texts.py").write_text(f"def load():\n    return {COLUMNS!r}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    setup = {**SETUP, "data": {"clients": 4, "name": "my_texts:load"}}
    run = lexfed.run(setup, workers=2, quiet=True)
    assert run.summary["clients"] == 4


def test_a_simulation_yields_states_and_leaves_nothing(tmp_path: Path) -> None:
    """A method of one's own with a verb of its own, from nothing but the public names."""
    from lexfed.wire import Array, Form
    from lexfed.wire.verbs import CLOCK

    count = lexfed.Verb("count", down=Form(meta=CLOCK), up=Form({"texts": Array()}))

    def answer(message: Any, client: Any, state: Any) -> Any:
        return lexfed.Message({"texts": torch.tensor(float(len(client.train)))}), state

    def server(federation: Any, seed: Any, state: Any) -> Any:
        def ask(s: Any) -> Any:
            message = lexfed.Message(meta={"step": s.step, "ask": 0, "round": 0})
            total = federation.total(count, dict.fromkeys(federation.clients, message))
            return replace(s, params={"texts": total.update["texts"]})

        return (yield from lexfed.once(state, "count", ask))

    people = lexfed.partition(COLUMNS, clients=4, test=0.2)
    (state,) = lexfed.simulate(lexfed.Method({count: answer}, server, ALL_SHARED, 1), people)
    assert state.params["texts"] == len(people.seen_text)


NOTEBOOK = """
import lexfed
from lexfed.learning.task import plain_update
from lexfed.methods.fedavg import averaged

def build(parts, options):
    return averaged(parts, plain_update(parts.task))

METHOD = lexfed.Entry("mine", lexfed.CLASSIFIER, build)
texts = {columns!r}
setup = {setup!r}
run = lexfed.run(dict(setup, method=METHOD), corpus=texts, out="a", quiet=True)
same = lexfed.run(dict(setup, method="fedavg"), corpus=texts, out="b", quiet=True, workers=2)
print(run.summary["global_accuracy"] == same.summary["global_accuracy"])
"""


@pytest.mark.slow
def test_a_notebook_may_define_its_method_and_use_workers(tmp_path: Path) -> None:
    """A script from standard input is what a notebook is: a main module without a file."""
    program = NOTEBOOK.format(columns=COLUMNS, setup=SETUP)
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-"],
        input=program,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True"
