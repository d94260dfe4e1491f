import sys
import tomllib
from pathlib import Path

import pytest

from lexfed.core.errors import ConfigError
from lexfed.experiment.config import Config, changed, load, parse, to_toml
from lexfed.experiment.known_methods import METHODS
from tests.conftest import ROOT


def test_what_is_written_can_be_read_again() -> None:
    config = parse({"seed": 3, "data": {"limit": 100}, "evaluation": {"every": 2}})
    assert parse(tomllib.loads(to_toml(config))) == config


@pytest.mark.parametrize("method", METHODS)
def test_what_is_written_holds_every_key_and_none_is_refused(method: str) -> None:
    config = parse({"method": method})
    assert parse(tomllib.loads(to_toml(config))) == config


# in experiments/papers lies the catalogue, which test_paper_runs.py checks
EXPERIMENTS = [
    p for p in sorted((ROOT / "experiments").rglob("*.toml")) if p.parent.name != "papers"
]


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda p: p.stem)
def test_every_shipped_experiment_is_valid(path: Path) -> None:
    assert load(path).name


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"data": {"alhpa": 1.0}}, "unknown key 'data.alhpa'; did you mean 'alpha'?"),
        ({"roundz": 3}, "unknown key 'roundz'; did you mean 'rounds'?"),
        ({"rounds": "ten"}, "rounds must be a whole number, not 'ten'"),
        ({"rounds": 1.5}, "rounds must be a whole number, not 1.5"),
        ({"rounds": True}, "rounds must be a whole number, not True"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"data": 3}, "'data' is a table: write [data], not data = 3"),
        (
            {"data": {"alpha": 0}},
            "data.alpha must be above 0, not 0; 0.1 is strong skew, 100 is almost none",
        ),
        ({"data": {"alpha": float("nan")}}, "data.alpha must be a finite number, not nan"),
        ({"data": {"limit": "all"}}, "data.limit must be a whole number, not 'all'"),
        (
            {"method": "fedagv"},
            "method = 'fedagv' is not known; did you mean 'fedavg'? "
            "(one of your own is 'package.module:METHOD')",
        ),
        ({"train": {"lr": -1}}, "train.lr must be above 0"),
        ({"name": "a/b"}, "name must be a plain word: it becomes part of a directory's name"),
    ],
)
def test_what_can_not_be_meant_is_refused(table: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(table)
    assert str(error.value) == message


def test_a_key_that_no_method_of_this_kind_reads_is_refused() -> None:
    table = {"train": {"lr": 0.1}, "fedprox": {"mu": 0.5}}  # another method's table may stand there
    with pytest.raises(ConfigError) as error:
        parse({"method": "federated_word2vec", **table})
    assert str(error.value) == (
        "method = 'federated_word2vec' does not read train.lr: leave it out "
        "(word vectors are trained as [word2vec] says)"
    )
    assert parse({"method": "fedavg", **table}).train.lr == 0.1


def test_a_file_is_for_all_methods_of_a_kind_and_a_setting_for_the_one_that_runs() -> None:
    assert parse({"method": "local_only", "cohort": {"size": 3}}).cohort.size == 3
    with pytest.raises(ConfigError, match=r"'local_only' does not read cohort\.size: leave it out"):
        parse({"method": "local_only"}, ["cohort.size=3"])
    with pytest.raises(ConfigError, match=r"counts epochs, not rounds: set local_only\.epochs"):
        parse({"method": "local_only"}, ["rounds=3"])
    assert parse({"method": "fedavg"}, ["cohort.size=3"]).cohort.size == 3
    program = changed(parse({"method": "local_only"}), ["cohort.size=3"])
    assert program.cohort.size == 3, "what the program sets itself is not refused"


OWN = """
from dataclasses import dataclass
from lexfed.federation import Entry
from lexfed.learning.classifying import CLASSIFIER
from lexfed.methods.fedavg import fedavg

@dataclass(frozen=True)
class Options:
    strength: float = 1.0

METHOD = Entry("mine", CLASSIFIER, fedavg, Options)
"""


def test_a_method_of_ones_own_lies_beside_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "method_of_a_test.py").write_text(OWN)
    path = tmp_path / "c.toml"
    path.write_text('method = "method_of_a_test:METHOD"\n[mine]\nstrength = 2.0\n')
    config = load(path)
    assert (config.entry.name, config.options.strength) == ("mine", 2.0)
    assert parse(tomllib.loads(to_toml(config))) == config
    with pytest.raises(ConfigError, match=r"unknown key 'mine\.weight'"):
        load(path, ["mine.weight=1"])
    for method, message in (("nowhere:METHOD", "PYTHONPATH"), ("method_of_a_test:OTHER", "has no")):
        with pytest.raises(ConfigError, match=message):
            load(path, [f"method={method}"])


def test_settings_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("rounds = 3\n[data]\nalpha = 2.0\n")
    config = load(
        path, ["rounds=5", "data.partition=iid", "data.name=/some/where.csv", "train.lr=1e-3"]
    )
    assert (config.rounds, config.data.partition, config.data.alpha) == (5, "iid", 2.0)
    assert (config.data.name, config.train.lr) == ("/some/where.csv", 1e-3)


@pytest.mark.parametrize("setting", ["rounds", "=3", "rounds.x=1"])
def test_a_setting_that_is_none_is_refused(setting: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("rounds = 3")
    with pytest.raises(ConfigError, match="--set"):
        load(tmp_path / "c.toml", [setting])


def test_defaults_are_valid() -> None:
    assert parse({}) == Config()
