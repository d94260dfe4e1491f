"""`lexfed audit --attack attributes`: gender and age from uploads, the truth from the data alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lexfed.audits.attributes.users import BIAS, WHOLE, classes_of
from lexfed.audits.scene import listened
from lexfed.audits.transcript import Recorded
from lexfed.core.seeds import root
from lexfed.corpus.population import Population
from lexfed.experiment import config as configuration
from lexfed.experiment.assembly import assemble
from lexfed.federation import ServerState
from lexfed.runtime.simulation import simulate, site_of
from lexfed.runtime.store import Store
from tests.conftest import Lexfed

USERS, GENDERS = 120, ("reddish", "bluish")  # no word of any text
TOPICS = (["garden", "flower", "tea"], ["engine", "wheel", "oil"])
COMMON = ["we", "went", "to", "the", "a", "and", "home", "again"]
CONFIG = """
method = "tokenizer_for_free"
[data]
name = "{folder}/users.jsonl"
attributes = ["gender", "age"]
partition = "user"
clients = 110
unseen = 1
test = 0.0
validation = 0.0
[tokenizer]
kind = "word"
size = 40
public = "{folder}/users.jsonl"
[language_model]
layers = 1
width = 8
context = 8
[train]
optimizer = "sgd"
lr = 2.0
batch = 16
[audit]
attacks = ["attributes"]
clients = 110
rounds = 2
defences = ["none", "privacy.placement=local; privacy.clip=0.5; privacy.noise=1.0"]
"""


@pytest.fixture
def blogs(tmp_path: Path) -> Path:
    """Users write of one topic more often than of the other, by their gender; their age shows
    nowhere.
    """
    rng = np.random.default_rng(0)
    lines = []
    for user in range(USERS):
        about = {"user": f"u{user}", "gender": GENDERS[user % 2], "age": int(rng.integers(13, 49))}
        for _ in range(3):
            topic = user % 2 if rng.random() < 0.9 else 1 - user % 2
            words = rng.permutation([*rng.choice(TOPICS[topic], 2), *rng.choice(COMMON, 6)])
            lines.append(json.dumps({**about, "text": " ".join(words)}) + "\n")
    (tmp_path / "users.jsonl").write_text("".join(lines))
    path = tmp_path / "users.toml"
    path.write_text(CONFIG.format(folder=tmp_path))
    return path


def test_a_topic_tells_the_gender_and_noise_hides_it(
    blogs: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    """55 targets: an AUC by chance has a standard error of 0.08."""
    result = lexfed("audit", blogs, "--out", "audit")
    assert result.returncode == 0, result.stderr
    rows: list[dict[str, Any]] = json.loads((tmp_path / "audit/audit.json").read_text())
    told = [
        ("gender", 1),
        ("age", 1),
        ("gender", 1),
        ("age", 1),
        ("gender", 2),
        ("age", 2),
        ("gender", 2),
        ("age", 2),
    ]
    assert [(row["attack"], row["round"]) for row in rows[:8]] == told
    assert {(row["attacker"], row["uploads"]) for row in rows} == {(WHOLE, 55), (BIAS, 55)}
    for row in rows:
        low, high = row["auc_interval"]
        assert low < row["auc"] < high
        if (row["attack"], row["defence"]) == ("gender", "none"):
            assert low > 0.7
            assert row["accuracy"] > row["majority"] + 0.1
        else:
            assert low < 0.6, (
                "at chance: no word has to do with age, and noise hides what has to do with gender"
            )
            assert row["accuracy"] < row["majority"] + 0.2
    assert "Which gender is the user?" in (tmp_path / "audit/audit.html").read_text()


def test_a_little_noise_blinds_who_looks_at_everything_and_not_who_reads_the_bias(
    blogs: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    """Noise is long where there are many parameters, and the bias is short of them: judge a
    defence by who adapts to it.
    """
    settings = ("language_model.width=64", "audit.rounds=1", "audit.attributes=['gender']")
    noise = "audit.defences=['privacy.placement=local; privacy.clip=0.5; privacy.noise=0.05']"
    result = lexfed(
        "audit",
        blogs,
        *[word for s in (*settings, noise) for word in ("--set", s)],
        "--out",
        "audit",
    )
    assert result.returncode == 0, result.stderr
    whole, bias = json.loads((tmp_path / "audit/audit.json").read_text())
    assert (whole["attacker"], bias["attacker"]) == (WHOLE, BIAS)
    assert whole["auc_interval"][0] < 0.6
    assert bias["auc_interval"][0] > 0.65


def users(people: Population) -> list[int]:
    """The number of the user that each client is."""
    names = people.train.users.take(people.train.rows[people.starts[: len(people)]])  # type: ignore[union-attr]
    return [int(name[1:]) for name in names.to_pylist()]


def test_the_truth_comes_from_the_data_and_is_in_no_message(blogs: Path, tmp_path: Path) -> None:
    assembly = assemble(configuration.load(blogs, ["cohort.size=5", "rounds=2"]))
    genders = classes_of("gender", assembly.population)
    assert list(genders.values()) == [
        sorted(GENDERS).index(GENDERS[user % 2]) for user in users(assembly.population)
    ]
    heard: list[Recorded] = []
    federation = listened(simulate(site_of(assembly, Store(tmp_path / "clients"))), heard)
    *_, state = assembly.method.server(federation, root(0), ServerState())
    assert (state.round, len(heard)) == (2, 20)
    for message in (one.message for one in heard):
        told = (
            json.dumps(dict(message.meta)).encode()
            + b"".join(message.blobs.values())
            + " ".join(message.arrays).encode()
        )
        assert not any(name.encode() in told for name in (*GENDERS, "gender"))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            ["audit.attributes=['shoe size']"],
            "does not tell the shoe size of users (known: gender, age)",
        ),
        (["data.attributes=[]"], "does not tell the gender of users (known: none)"),
        (["data.partition=iid"], "texts of one client differ in gender"),
        (["audit.clients=3", "audit.rounds=1"], "too few; raise audit.clients"),
    ],
)
def test_attributes_that_can_not_be_guessed(
    settings: list[str], line: str, blogs: Path, lexfed: Lexfed
) -> None:
    result = lexfed(
        "audit",
        blogs,
        *[word for setting in settings for word in ("--set", setting)],
        "--out",
        "audit",
    )
    assert result.returncode == 2
    assert line in result.stderr
    assert result.stderr.count("\n") == 1


def test_attributes_are_not_guessed_from_rows_of_word_vectors(blogs: Path, lexfed: Lexfed) -> None:
    """The same users, as organisations: their file holds no table that word vectors do not read."""
    data, _, rest = CONFIG.partition("[tokenizer]")
    audit = rest[rest.index("[audit]") : rest.index("defences")]
    text = data.replace("tokenizer_for_free", "federated_word2vec") + audit
    blogs.write_text(text.format(folder=blogs.parent))
    result = lexfed("audit", blogs, "--out", "audit")
    assert result.returncode == 2
    assert "word vectors travel as rows" in result.stderr
    assert result.stderr.count("\n") == 1


def test_who_does_not_say_is_left_out(blogs: Path) -> None:
    file = blogs.parent / "users.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    silent = [{**line, "age": None} if line["user"] == "u3" else line for line in lines]
    file.write_text("".join(json.dumps(line) + "\n" for line in silent))
    people = assemble(configuration.load(blogs, ["data.clients=119"])).population
    assert len(classes_of("gender", people)) == 119
    told = classes_of("age", people)
    assert set(told) == {client for client, user in enumerate(users(people)) if user != 3}
    assert set(told.values()) == {0, 1, 2}
