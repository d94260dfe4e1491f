import tomllib
from pathlib import Path

import pytest

from lexfed.core.errors import ConfigError
from lexfed.experiment.config import Config, load, parse, to_toml
from tests.conftest import ROOT


def test_what_is_written_can_be_read_again() -> None:
    config = parse({"seed": 3, "data": {"limit": 100}, "evaluation": {"every": 2}})
    assert parse(tomllib.loads(to_toml(config))) == config


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").rglob("*.toml")), ids=lambda p: p.stem)
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
        ({"data": {"alpha": 0}}, "data.alpha must be above 0, not 0; 0.1 is strong skew, 100 is almost none"),
        ({"data": {"alpha": float("nan")}}, "data.alpha must be a finite number, not nan"),
        ({"data": {"limit": "all"}}, "data.limit must be a whole number, not 'all'"),
        ({"method": "fedagv"}, "method = 'fedagv' is not known; did you mean 'fedavg'?"),
        ({"train": {"lr": -1}}, "train.lr must be above 0"),
        ({"name": "a/b"}, "name must be a plain word: it becomes part of a directory's name"),
    ],
)
def test_what_can_not_be_meant_is_refused(table: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(table)
    assert str(error.value) == message


def test_settings_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("rounds = 3\n[data]\nalpha = 2.0\n")
    config = load(path, ["rounds=5", "data.partition=iid", "data.name=/some/where.csv", "train.lr=1e-3"])
    assert (config.rounds, config.data.partition, config.data.alpha) == (5, "iid", 2.0)
    assert (config.data.name, config.train.lr) == ("/some/where.csv", 1e-3)


@pytest.mark.parametrize("setting", ["rounds", "=3", "rounds.x=1"])
def test_a_setting_that_is_none_is_refused(setting: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("rounds = 3")
    with pytest.raises(ConfigError, match="--set"):
        load(tmp_path / "c.toml", [setting])


def test_defaults_are_valid() -> None:
    assert parse({}) == Config()
