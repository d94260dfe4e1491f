"""A key that was set and would do nothing is refused; what a method reads is stated, and true."""

import dataclasses
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from lexfed.core.errors import ConfigError
from lexfed.experiment import reads, reference
from lexfed.experiment.config import Config, changed, loads, to_toml
from lexfed.experiment.known_methods import METHODS, method
from tests.conftest import ROOT, Lexfed

REFUSED = [
    ("federated_word2vec", "train.lr", "0.1"),
    ("federated_word2vec", "privacy.placement", '"central"'),
    ("federated_word2vec", "model.hidden", "3"),
    ("federated_word2vec", "aggregation.rule", '"median"'),
    ("tokenizer_for_free", "evaluation.split", '"validation"'),
    ("tokenizer_for_free", "train.max_length", "10"),
    ("tokenizer_for_free", "defences.minimum_words", "3"),
    ("fedavg", "tokenizer.size", "100"),
    ("fedavg", "word2vec.lr", "0.1"),
]


@pytest.mark.parametrize(("name", "key", "value"), REFUSED)
def test_a_key_that_the_method_does_not_read_is_refused(name: str, key: str, value: str) -> None:
    table, _, field = key.partition(".")
    with pytest.raises(ConfigError, match=f"'{name}' does not read {key}"):
        loads(f'method = "{name}"\n[{table}]\n{field} = {value}\n')


def test_it_is_one_line_and_exit_code_2(tiny: Path, lexfed: Lexfed) -> None:
    tiny.write_text(tiny.read_text() + "\n[word2vec]\nlr = 0.1\n")
    result = lexfed("run", tiny)
    assert result.returncode == 2
    assert "does not read word2vec.lr" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["fedevocab", "fedprox", "local_only", "centralised", "lg_fedavg"])
def test_methods_of_one_kind_can_be_compared_on_one_file(name: str) -> None:
    text = (ROOT / "experiments/quick/private.toml").read_text()
    assert loads(text, [f"method={name}"]).method == name


def test_what_is_said_with_set_is_meant_for_the_method_that_runs() -> None:
    with pytest.raises(ConfigError, match=r"'local_only' does not read cohort\.size"):
        loads("[cohort]\nsize = 3\n", ["method=local_only", "cohort.size=4"])
    assert loads("[cohort]\nsize = 3\n", ["method=local_only"]).cohort.size == 3


def test_a_resolved_file_may_hold_every_key() -> None:
    resolved = to_toml(Config(method="federated_word2vec"))
    assert loads(resolved).method == "federated_word2vec"
    assert loads(resolved, ["method=fedavg"]).method == "fedavg"


def test_every_table_of_every_method_is_common_or_its_own() -> None:
    hints = get_type_hints(Config)
    tables = {name for name, kind in hints.items() if dataclasses.is_dataclass(kind)}
    assert tables == set(reads.COMMON) | (tables & set(METHODS))
    for entry in map(method, METHODS):
        known = {name.partition(".")[0] for name in (*entry.kind.reads, *entry.ignores)}
        assert known <= set(reads.COMMON) | set(reads.GENERAL)


# --- what is stated is true ----------------------------------------------------------------------


@contextmanager
def watched() -> Iterator[set[str]]:
    """Which fields of which tables are looked at, but for their own checks and copies."""
    seen: set[str] = set()
    hints = get_type_hints(Config)
    kinds = {name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)}
    with pytest.MonkeyPatch.context() as patch:
        for table, kind in kinds.items():
            patch.setattr(kind, "__getattribute__", _spy(table, kind, seen))
        yield seen


def _spy(table: str, kind: Any, seen: set[str]) -> Any:
    import sys

    fields = {field.name for field in dataclasses.fields(kind)}
    original = kind.__getattribute__
    quiet = {
        "__post_init__",
        "asdict",
        "_asdict_inner",
        "replace",
        "__eq__",
        "__repr__",
        "__hash__",
    }

    def get(self: Any, name: str) -> Any:
        if name in fields and sys._getframe(1).f_code.co_name not in quiet:
            seen.add(f"{table}.{name}")
        return original(self, name)

    return get


LITTLE = {
    "tokenizer_for_free": [
        "data.partition=user", "data.unseen=2", "data.test=0.0", "data.validation=0.0",
        "data.clients=10", "tokenizer.kind=word", "tokenizer.size=40",
        "language_model.layers=1", "language_model.width=8", "tokenizer_for_free.switch=[1]",
        "tokenizer_for_free.sample_words=50", "train.optimizer=sgd", "train.lr=0.1",
    ],
    "federated_word2vec": [
        "data.partition=iid", "data.test_of=each", "agreement.minimum=1", "word2vec.dimension=4",
        "cohort.sampling=everyone",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_a_method_reads_no_key_that_it_would_refuse(
    name: str, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    """A run looks at nothing that a user could not have set."""
    import json

    rows = [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text().splitlines()]
    users = [{**row, "user": f"u{i % 14}"} for i, row in enumerate(rows)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in users))
    usual = changed(loads(""), [f"method={name}", f"data.name={tmp_path}/texts.jsonl"])
    small = ["data.clients=6", "rounds=2", "model.embedding=4", "model.hidden=3", "cohort.size=2"]
    small += [
        "local_only.epochs=1",
        "centralised.epochs=1",
        f"tokenizer.public={tmp_path}/texts.jsonl",
    ]
    (tmp_path / "c.toml").write_text(to_toml(changed(usual, [*small, *LITTLE.get(name, [])])))
    with watched() as seen:
        result = lexfed("run", "c.toml", "--out", "run")
    assert result.returncode == 0, result.stderr
    entry = method(name)
    own = {f"{name}.{field.name}" for field in dataclasses.fields(entry.options)}
    # the switches of what is off by default are looked at by everybody
    switches = {"privacy", "defences", "self_audit", "aggregation", "malice", "server.average"}
    unread = {
        key
        for key in seen - own
        if not reads.of_kind(entry, key) and not {key, key.partition(".")[0]} & switches
    }
    assert unread <= {"evaluation.every"}, unread


# --- docs/configuration.md -----------------------------------------------------------------------


def test_the_reference_is_what_the_code_says() -> None:
    assert (ROOT / "docs/configuration.md").read_text() == reference.page(), "run: make docs"


def test_every_key_has_a_sentence() -> None:
    hints = get_type_hints(Config)
    kinds = [Config, *(kind for kind in hints.values() if dataclasses.is_dataclass(kind))]
    for kind in kinds:
        said = reference.comments(kind)
        for field in dataclasses.fields(kind):
            if not dataclasses.is_dataclass(hints.get(field.name)) or kind is not Config:
                assert said.get(field.name), f"{kind.__name__}.{field.name} says nothing"


def test_the_picture_of_the_rooms_is_current() -> None:
    import sys

    sys.path.insert(0, str(ROOT / "tools"))
    import house

    assert (ROOT / "docs/rooms.svg").read_text() == house.draw(house.imports()), "run: make docs"


def test_the_page_can_be_made_by_its_command() -> None:
    import sys

    words = [sys.executable, "-m", "lexfed.experiment.reference"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == reference.page()
