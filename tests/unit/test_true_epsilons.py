"""Epsilons that were printed and not true, each with the attack that showed it.

The breaks were found in commit a32e4ef; on it every test here fails but those that say otherwise.
"""

import gzip
import json
import os
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import lexfed as library
from lexfed.core.errors import ConfigError, DataError
from lexfed.core.params import Update
from lexfed.core.seeds import Seed, root
from lexfed.corpus.catalogue import load as load_corpus
from lexfed.corpus.loading import Columns, from_table
from lexfed.corpus.overlap import Common, common
from lexfed.corpus.population import Data, parted
from lexfed.corpus.population import build as build_people
from lexfed.corpus.text import Corpus
from lexfed.experiment import config
from lexfed.experiment.assembly import assemble
from lexfed.learning.classifying import Made, of_text
from lexfed.privacy.gaussian import GaussianMechanism, Privacy
from lexfed.privacy.mechanism import Asked
from lexfed.privacy.promise import build
from lexfed.records.rundir import RunDir
from lexfed.runs import account
from lexfed.use.generating import may_quote
from lexfed.vocabulary import word
from tests.conftest import ROOT, Lexfed, no_pictures
from tests.unit.test_promises import CENTRAL, PRIVATE, PUBLIC, sets, summary_of
from tests.unit.test_tokenizer_for_free import folder  # noqa: F401

WORDS = "good bad fine dull film story acting love hate moving slow quick music scene plot actor"
Rows = Sequence[Mapping[str, Any]]


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with no_pictures():
        yield


def written(place: Path, rows: Rows) -> Path:
    place.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place


def people_of(users: int, texts: int, seed: int = 3) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    return [
        {
            "text": " ".join(draw.choices(WORDS.split(), k=8)),
            "label": draw.randint(0, 1),
            "user": f"u{user:02d}",
        }
        for user in range(users)
        for _ in range(texts)
    ]


# --- who trains on what ---------------------------------------------------------------------------


def corpus_of(rows: Rows) -> Corpus:
    return from_table(pa.Table.from_pylist(list(rows)), "hand-made", Columns())


def training_texts(rows: Rows, **options: Any) -> dict[str, list[str]]:
    corpus = corpus_of(rows)
    clients = len({row["user"] for row in rows}) - options.get("unseen", 0)
    data = Data(partition="user", **{"clients": clients, **options})
    people = parted(corpus, data, root(5), apart=True)
    found = {}
    for client in range(len(people) + people.unseen):
        own = people.client(client).train
        found[str(own.users.take(own.rows)[0])] = sorted(own)
    return found


@pytest.mark.parametrize(
    "options",
    [{}, {"test": 0.0}, {"validation": 0.0}, {"limit": 90}, {"test_of": "each"}, {"unseen": 5}],
    ids=str,
)
def test_what_a_user_trains_on_depends_on_no_other_user(options: dict[str, Any]) -> None:
    """The split drew from all rows together, and dropped others' texts that a held-out one
    equals.
    """
    rows = people_of(30, 6)
    rows.append({"text": rows[0]["text"], "label": 0, "user": "u07"})  # the same words as u00's
    with_all = training_texts(rows, **options)
    without = training_texts([row for row in rows if row["user"] != "u07"], **options)
    assert set(without) == set(with_all) - {"u07"}
    assert all(with_all[user] == texts for user, texts in without.items())


def test_users_are_drawn_so_that_one_more_moves_at_most_one_other() -> None:
    rows = people_of(30, 4)
    before = training_texts(rows, clients=20, unseen=0)
    after = training_texts([*rows, *people_of(31, 4)[-4:]], clients=20)
    assert len(set(before) - set(after)) <= 1
    assert all(after[user] == before[user] for user in set(before) & set(after))


def test_a_users_split_holds_out_a_share_and_no_text_twice() -> None:
    rows = people_of(200, 10)
    rows += [dict(row) for row in rows[::10]]  # a text that its own user wrote twice
    left = training_texts(rows, test=0.3, validation=0.0)
    kept = sum(map(len, left.values()))
    assert 0.7 * len(rows) == pytest.approx(kept, rel=0.05)
    for user in {row["user"] for row in rows}:
        own = [row["text"] for row in rows if row["user"] == user]
        assert all(left.get(user, []).count(text) in (0, own.count(text)) for text in own)
    limited = training_texts(rows, limit=600, test=0.0, validation=0.0)
    assert {len(texts) for texts in limited.values()} == {3}
    with pytest.raises(DataError, match=r"data\.limit"):
        training_texts(rows, limit=199)


def test_the_sums_of_neighbours_are_one_clip_apart(
    tmp_path: Path, lexfed: Lexfed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5.67 clips, where the account assumes 1."""
    rows, sums = people_of(30, 6), []
    release = GaussianMechanism.release

    def watched(
        self: GaussianMechanism, total: Update, asked: Asked, state: Any, seed: Seed
    ) -> Any:
        sums.append(torch.cat([total[name].double().flatten() for name in sorted(total)]))  # type: ignore[union-attr]
        return release(self, total, asked, state, seed)

    monkeypatch.setattr(GaussianMechanism, "release", watched)
    for name, some in (("with", rows), ("without", [r for r in rows if r["user"] != "u07"])):
        file = written(tmp_path / f"{name}.jsonl", some)
        users = len({row["user"] for row in some})
        settings = (
            f"data.name={file}", "data.partition=user", f"data.clients={users}", "rounds=1",
            "cohort.sampling=everyone", "privacy.clip=0.05", "train.lr=0.05", "train.batch=200",
            "model.dropout=0.0", "privacy.placement=central", "privacy.noise=1.0", PUBLIC,
            "vocabulary.size=500", "privacy.accountant=rdp",
            "model.embedding=4", "model.hidden=3",
        )  # fmt: skip
        (tmp_path / "one.toml").write_text('name = "one"\n')
        run = lexfed("run", tmp_path / "one.toml", "--out", name, *sets(*settings))
        assert run.returncode == 0, run.stderr
    apart = float((sums[0] - sums[1]).norm()) / 0.05
    assert 0 < apart <= 1 + 1e-4


@pytest.mark.parametrize(
    ("partition", "test_of", "digest"),
    [
        ("iid", "all", "3a7b6da6"), ("iid", "each", "f83bf35e"), ("dirichlet", "all", "6d79c9f5"),
        ("dirichlet", "each", "a70a33c4"), ("user", "all", "52a974ff"), ("user", "each", "bbb22b6e"),
    ],
)  # fmt: skip
def test_runs_without_privacy_are_parted_as_before(
    partition: str, test_of: str, digest: str
) -> None:
    """These are the old code's: results were made with them."""
    options: Any = {"partition": partition, "test_of": test_of}
    data = Data(clients=20, unseen=2, limit=150, **options)
    people = parted(corpus_of(people_of(30, 6)), data, root(5))
    texts = [*people.train, *people.common_test, *people.common_validation]
    assert blake2b("\n".join(texts).encode(), digest_size=4).hexdigest() == digest


def test_an_older_runs_users_stay_who_they_were_and_its_split_costs_the_promise(
    tmp_path: Path,
) -> None:
    """Holds on the old code, but for the taint: a run that is resumed must find its users."""
    file = written(tmp_path / "texts.jsonl", people_of(30, 6))
    table = {"data": {"name": str(file), "clients": 20, "partition": "user"}}
    new = config.parse(table, [*PRIVATE, PUBLIC])
    text = config.to_toml(new)
    assert config.loads(text) == new
    old = config.loads(text.replace('splits = "apart"\n', ""))
    assert old.data.splits == "together"
    promise = assemble(old).promise
    assert promise is not None
    (taint,) = promise.taints
    assert "from all users' texts together" in taint
    bare = config.parse(table, [PUBLIC])
    texts = [list(assemble(each).population.train) for each in (old, bare, new)]
    assert texts[0] == texts[1] != texts[2]


def test_a_fork_does_not_hand_a_users_state_to_another(
    folder: Path,  # noqa: F811
    lexfed: Lexfed,
) -> None:
    bare = sets("rounds=3", "privacy.placement=none")
    assert lexfed("run", folder / "small.toml", "--out", "bare", *bare).returncode == 0
    fork = lexfed("run", folder / "small.toml", "--from", "bare", "--out", "fork")
    assert fork.returncode == 2
    assert "is of other users" in fork.stderr
    assert not Path("fork").exists()


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_where_a_client_is_no_user_the_partition_is_taken_as_it_is(partition: Any) -> None:
    data = Data(clients=20, limit=150, partition=partition)
    corpus = corpus_of(people_of(30, 6))
    one, two = (parted(corpus, data, root(5), apart=apart) for apart in (False, True))
    assert list(one.train) == list(two.train)


# --- what the unit is -----------------------------------------------------------------------------


def test_the_unit_is_a_client_where_a_client_is_no_user(tiny: Path, lexfed: Lexfed) -> None:
    plan = lexfed("privacy", tiny, *sets(*PRIVATE, PUBLIC))
    assert plan.returncode == 0, plan.stderr
    words = " ".join(plan.stdout.split())
    assert "unit: a client" in words
    assert "parted beforehand" in words
    assert "one client added or removed" in words
    assert "user" not in words.partition("This run:")[2].partition("against:")[0]


def test_a_user_at_many_clients_is_promised_nothing(tmp_path: Path, lexfed: Lexfed) -> None:
    """One user at 14 clients: the epsilon of one client was printed as "unit: a user"."""
    file = written(tmp_path / "texts.jsonl", people_of(8, 20))
    (tmp_path / "c.toml").write_text(
        f'[data]\nname = "{file}"\nclients = 40\npartition = "iid"\nclasses = 2\n'
    )
    for partition, holds in (("iid", False), ("user", True)):
        clients = {"iid": 40, "user": 8}[partition]
        setting = (f"data.partition={partition}", f"data.clients={clients}", "cohort.size=3")
        chosen = config.load(tmp_path / "c.toml", [*PRIVATE, PUBLIC, *setting])
        promise = assemble(chosen).promise
        assert promise is not None
        if holds:
            assert promise.taints == ()
            assert promise.unit == "user"
        else:
            (taint,) = promise.taints
            assert "of one user lie with up to" in taint
            assert "data.partition = 'user'" in taint


# --- the users' own text under another name -------------------------------------------------------


@pytest.mark.parametrize("name", ["copy.jsonl", "hard.jsonl", "folder", "packed.jsonl.gz"])
def test_a_copy_of_the_users_text_is_the_users_own(name: str, tiny: Path) -> None:
    here = tiny.parent
    texts = here / "texts.jsonl"
    (here / "folder").mkdir()
    {
        "copy.jsonl": lambda: shutil.copy(texts, here / name),
        "hard.jsonl": lambda: os.link(texts, here / name),
        "folder": lambda: shutil.copy(texts, here / name / "x.jsonl"),
        "packed.jsonl.gz": lambda: (here / name).write_bytes(gzip.compress(texts.read_bytes())),
    }[name]()
    promise = assemble(config.load(tiny, [*PRIVATE, f"vocabulary.corpus={here / name}"])).promise
    assert promise is not None
    (taint,) = promise.taints
    assert "word list was made from the users' own texts" in taint


def test_text_of_ones_own_must_be_other_text_and_the_promise_says_so(tiny: Path) -> None:
    other = written(tiny.parent / "other.jsonl", [{"text": "something else entirely"}])
    promise = assemble(config.load(tiny, [*PRIVATE, f"vocabulary.corpus={other}"])).promise
    assert promise is not None
    assert promise.taints == ()
    assert promise.notes == (f"'{other}' was not made from these users' texts",)


@pytest.mark.parametrize(
    ("users", "source", "related", "holds"),
    [
        ("rotten_tomatoes", "movie_reviews", True, False),
        ("sst2", "rotten_tomatoes", True, False),
        ("a file", "rotten_tomatoes", False, False),
        ("imdb", "rotten_tomatoes", False, True),
    ],
)
def test_a_named_corpus_that_holds_the_users_texts(
    users: str, source: str, related: bool, holds: bool
) -> None:
    if users == "sst2" and not os.environ.get("LEXFED_DATA"):
        pytest.skip("LEXFED_DATA is not set")
    assert word.holds(users, source) is related
    name = "rotten_tomatoes" if users == "a file" else users
    people = build_people(Data(name=name, limit=600, clients=6, partition="iid"), root(0))
    _, _, promise = build(Privacy(placement="central", noise=1.0), 1, "poisson")
    assert promise is not None
    for known in (users, "x"):  # by its name, and by what it holds
        after = of_text(promise, Made("word list", "", source), known, people)
        assert (not after.taints) is holds
        assert after.notes == (), "nothing is left that only people could know"


def test_hashed_vectors_are_of_imdbs_words() -> None:
    """They were taken for a file of which nothing is known."""
    for users, holds in (("imdb", False), ("rotten_tomatoes", True)):
        table = {"data": {"name": users, "limit": 60, "clients": 6, "partition": "iid"},
                 "model": {"embedding": 4, "hidden": 3}, "cohort": {"size": 3}}  # fmt: skip
        promise = assemble(config.parse(table, [*PRIVATE, "vocabulary.vectors=hashed:4"])).promise
        assert promise is not None
        assert (not promise.taints) is holds
        assert promise.notes == ()


def test_a_corpus_that_is_handed_over_is_known_by_its_texts(tmp_path: Path) -> None:
    """Its name is that of a file, and the default public text is imdb."""
    reviews = load_corpus("imdb")
    some = reviews.take(np.arange(0, 25_000, 400))
    run = library.run(
        {"method": "fedavg", "rounds": 1, "model": {"embedding": 4, "hidden": 3},
         "cohort": {"size": 3, "sampling": "poisson"}, "evaluation": {"limit": 20},
         "privacy": {"placement": "central", "noise": 1.0},
         "data": {"clients": 6, "partition": "iid", "classes": 2}},
        corpus=some, out=tmp_path / "r", quiet=True,
    )  # fmt: skip
    assert run.summary["epsilon_this_run"] is None
    (taint,) = run.summary["promise"]["taints"]
    assert "word list" in taint


def test_texts_are_compared_whatever_their_spaces_and_case(tmp_path: Path) -> None:
    file = written(
        tmp_path / "a.jsonl",
        [{"text": "It's  a FINE, and moving film!"}, {"text": "something else and more of it"}],
    )
    rows = ["it 's a fine and moving film", "the end", *(f"text number {i} here" for i in range(8))]
    users = load_corpus(str(written(tmp_path / "b.jsonl", [{"text": row} for row in rows])))
    assert common(users, str(file)) == Common(9, 1, 0), "two words may be anybody's"
    assert Common(9, 1, 0).notable
    assert Common(100_000, 3, 3).notable
    assert not Common(100_000, 3, 2).notable
    assert not Common(5, 0, 0).notable


# --- classes --------------------------------------------------------------------------------------


def test_class_names_that_nobody_stated_take_the_promise_away(
    tmp_path: Path, lexfed: Lexfed
) -> None:
    """One user's label name was in labels.json, and its absence showed in the model's shape."""
    rows = [
        {**row, "label": ("well", "ill")[row["label"]], "user": row["user"]}
        for row in people_of(20, 4)
    ]
    named = [{**row, "label": "syphilis"} if row["user"] == "u01" else row for row in rows]
    (tmp_path / "c.toml").write_text(
        'rounds = 1\n[data]\npartition = "user"\nclients = 15\n'
        "[model]\nembedding = 4\nhidden = 3\n[cohort]\nsize = 3\n"
    )
    base = [*CENTRAL, PUBLIC, f"data.name={written(tmp_path / 'n.jsonl', named)}"]
    run = lexfed("run", tmp_path / "c.toml", "--out", "read", *sets(*base))
    assert run.returncode == 0, run.stderr
    (taint,) = summary_of(tmp_path / "read")["promise"]["taints"]
    assert "data.labels" in taint
    stated = 'data.labels=["well", "ill", "syphilis"]'
    for name, some in (("with", named), ("without", rows)):
        file = f"data.name={written(tmp_path / f'{name}.jsonl', some)}"
        run = lexfed("run", tmp_path / "c.toml", "--out", name, *sets(*base, file, stated))
        assert run.returncode == 0, run.stderr
        assert summary_of(tmp_path / name)["promise"]["holds"] is True
        labels = json.loads((tmp_path / name / "artifacts/labels.json").read_text())
        assert labels == ["well", "ill", "syphilis"], "whoever is there"
    missing = lexfed("run", tmp_path / "c.toml", "--out", "x", *sets(*base, 'data.labels=["well"]'))
    assert missing.returncode == 2
    assert "data.labels" in missing.stderr
    assert "syphilis" not in missing.stderr


def test_stated_classes_number_the_labels_and_are_checked() -> None:
    corpus = corpus_of([{"text": t, "label": n} for t, n in (("a", "x"), ("b", "y"), ("c", "x"))])
    data = Data(clients=1, test=0.0, validation=0.0, partition="iid", labels=("y", "z", "x"))
    people = parted(corpus, data, root(0))
    assert people.labels == ("y", "z", "x")
    assert sorted(people.train.labels.tolist()) == [0, 2, 2]
    numbered = corpus_of([{"text": "a", "label": 0}, {"text": "b", "label": 1}])
    two = replace(data, labels=("no", "yes"))
    assert parted(numbered, two, root(0)).labels == ("no", "yes")
    for wrong in ({"labels": ("a", "a")}, {"labels": ("a", "b"), "classes": 3}):
        with pytest.raises(ConfigError, match=r"data\.labels"):
            Data(**wrong)  # type: ignore[arg-type]


# --- a plan is what the run will pay --------------------------------------------------------------


LITTLE = (
    "data.limit=400", "evaluation.limit=20", "model.embedding=4", "model.hidden=3",
    "vocabulary.size=500", "privacy.accountant=rdp", *PRIVATE,
)  # fmt: skip
QUICK = {
    "fedavg": LITTLE,
    "private": LITTLE,
    "agreed": ("data.limit=300", "data.clients=3", "agreement.minimum=2", "word2vec.dimension=8",
               "word2vec.epochs=1", "word2vec.baselines=false"),
    "learned": ("data.clients=60", "data.unseen=4", "tokenizer.size=300", "language_model.width=8",
                "tokenizer_for_free.switch=[1]", "tokenizer_for_free.sample_words=300"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("fedavg", ()),
        pytest.param("fedavg", ("privacy.placement=none",), marks=pytest.mark.slow),
        ("private", ()),
        pytest.param("private", ("privacy.placement=local", "cohort.sampling=everyone"), marks=pytest.mark.slow),
        ("private", ("method=lg_fedavg", "lg_fedavg.warm=1")),
        pytest.param("agreed", (), marks=pytest.mark.slow),
        ("agreed", ("agreement.rule=dp", "agreement.epsilon=30.0")),
        pytest.param("learned", (), marks=pytest.mark.slow),
        ("learned", ("tokenizer_for_free.protocol=from_scratch", "rounds=4")),
        pytest.param("learned", ("tokenizer.start=heavy_hitters", "tokenizer.kind=word"), marks=pytest.mark.slow),
        ("learned", ("tokenizer.start=heavy_hitters", "tokenizer.kind=word",
                     "tokenizer_for_free.protocol=from_scratch")),
    ],
)  # fmt: skip
def test_a_plan_is_what_the_run_pays(
    name: str, more: tuple[str, ...], lexfed: Lexfed, tmp_path: Path
) -> None:
    """With heavy hitters the plan said 1.63, and the run paid 25.6."""
    file = ROOT / f"experiments/quick/{name}.toml"
    setting = ("rounds=2", *QUICK[name], *more)
    plan = account.of(file, list(setting))
    run = lexfed("run", file, "--out", "r", *sets(*setting))
    assert run.returncode == 0, run.stderr
    after = account.of(tmp_path / "r")
    assert plan.rows == after.rows
    if plan.statement is not None:
        assert after.statement is not None
        assert plan.statement.epsilon_this_run == after.statement.epsilon_this_run
        assert plan.statement.epsilon_deployment == after.statement.epsilon_deployment
        assert plan.statement.holds == after.statement.holds


def test_a_plan_with_votes_pays_for_them(tmp_path: Path) -> None:
    """TrieHH takes a thousand users, so it is planned alone; the run's ledger is tested with
    it.
    """
    file = ROOT / "experiments/quick/learned.toml"
    setting = ["tokenizer.start=heavy_hitters", "heavy_hitters.by=triehh", "heavy_hitters.length=3"]
    setting += ["heavy_hitters.delta=1e-9"]
    plain, votes = account.of(file), account.of(file, setting)
    assert len(votes.rows) == len(plain.rows) + 1
    assert "voted" in votes.rows[0][0]
    assert plain.statement is not None
    assert votes.statement is not None
    assert plain.statement.epsilon_deployment == pytest.approx(2.0, rel=0.01)
    assert votes.statement.epsilon_deployment is not None
    assert votes.statement.epsilon_deployment > 5


def test_a_plan_ends_where_its_budget_does(tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    setting = (*PRIVATE, PUBLIC, "privacy.epsilon=10.0", "rounds=9", "privacy.accountant=rdp")
    plan = account.of(tiny, list(setting)).statement
    run = lexfed("run", tiny, "--out", "r", *sets(*setting))
    assert run.returncode == 0, run.stderr
    summary = summary_of(tmp_path / "r")
    assert summary["stopped"] == "budget"
    assert plan is not None
    assert plan.epsilon_this_run == summary["epsilon_this_run"]


# --- delta ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("delta", "holds"), [("0.5", False), ("0.1667", False), ("0.1", True)])
def test_a_delta_of_one_in_all_users_promises_nothing(delta: str, holds: bool, tiny: Path) -> None:
    promise = assemble(config.load(tiny, [*PRIVATE, PUBLIC, f"privacy.delta={delta}"])).promise
    assert promise is not None
    assert (not promise.taints) is holds
    assert holds or "privacy.delta" in promise.taints[0]


def test_the_users_of_a_deployment_count_for_its_delta(tiny: Path) -> None:
    deployed = ("privacy.noise_cohort=1000.0", "privacy.population=2000000")
    promise = assemble(config.load(tiny, [*PRIVATE, PUBLIC, *deployed])).promise
    assert promise is not None
    (taint,) = promise.taints
    assert "2,000,000" in taint


# --- what is said of a promise --------------------------------------------------------------------


def test_a_promise_says_for_what_it_holds() -> None:
    """`holds` was true beside an epsilon of 2.4e7."""
    base = {"placement": "central", "noise": 1.0, "accountant": "rdp"}
    carried = Privacy(**base, noise_cohort=1000.0, population=100_000)  # type: ignore[arg-type]
    for options, sought in ((Privacy(**base), "this run"), (carried, "deployment")):  # type: ignore[arg-type]
        _, _, promise = build(options, 10, "poisson")
        assert promise is not None
        said = promise.statement((promise.mechanism.planned(3.0, 100),))
        assert said.holds
        assert said.holds_for == sought
        assert said.to_json()["holds_for"] == sought
    nothing = promise.tainted("why").statement(())
    assert not nothing.holds
    assert nothing.holds_for is None


def test_a_verb_that_brings_nothing_back_costs_nothing(tiny: Path) -> None:
    """LG-FedAvg hands its lower layers out; the replies are empty."""
    promise = assemble(config.load(tiny, [*PRIVATE, PUBLIC, "method=lg_fedavg"])).promise
    assert promise is not None
    assert promise.taints == ()


def test_the_experimenters_figures_are_listed_whatever_was_scored(
    tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    listed = {}
    for secrets in ("seed", "system"):
        setting = sets(*PRIVATE, PUBLIC, f"secrets={secrets}", "rounds=1")
        run = lexfed("run", tiny, "--out", secrets, *setting)
        assert run.returncode == 0, run.stderr
        listed[secrets] = set(summary_of(tmp_path / secrets)["experimenter"])
    for key in ("test_majority_accuracy", "held_back", "bytes_up", "bytes_down", "refused",
                "global_accuracy", "bytes_up_per_client_round", "seconds"):  # fmt: skip
        assert all(key in keys for keys in listed.values()), key
    for key in ("epsilon_this_run", "rounds", "delta", "ledger", "vocabulary_size"):
        assert not any(key in keys for keys in listed.values()), key
    assert listed["seed"] == listed["system"]


def test_the_card_of_a_private_model_tells_no_bytes_and_calls_its_seed_guessable(
    tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    run = lexfed("run", tiny, "--out", "r", *sets(*PRIVATE, PUBLIC, "rounds=1"))
    assert run.returncode == 0, run.stderr
    assert lexfed("export", "r", "--to", "x").returncode == 0
    card = (tmp_path / "x/README.md").read_text()
    assert "sent up" not in card
    assert "seconds" not in card.partition("## Figures")[2]
    assert "can be tried out" in " ".join(card.split())
    assert "epsilon" in card.partition("## Privacy")[2].partition("## Figures")[0]


def test_the_card_of_a_clients_own_model_promises_nothing(
    tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    setting = sets(*PRIVATE, "method=fedevocab", "vocabulary.vectors=hashed:4", "rounds=1")
    run = lexfed("run", tiny, "--out", "r", *setting)
    assert run.returncode == 0, run.stderr
    assert lexfed("export", "r", "--to", "own", "--client", 0).returncode == 0
    privacy = (tmp_path / "own/README.md").read_text().partition("## Privacy")[2]
    privacy, _, rest = privacy.partition("## Figures")
    assert "Nothing is promised for this file" in privacy
    assert "epsilon" not in privacy
    assert "epsilon of this run" not in rest.partition("## Repeat")[0]


def test_the_card_of_a_simulation_of_a_deployment_promises_nothing_for_this_model(
    folder: Path,  # noqa: F811
    lexfed: Lexfed,
    tmp_path: Path,
) -> None:
    setting = sets("rounds=3", "privacy.noise_cohort=2000.0", "privacy.population=100000")
    run = lexfed("run", folder / "small.toml", "--out", "r", *setting)
    assert run.returncode == 0, run.stderr
    assert summary_of(tmp_path / "r")["promise"]["holds_for"] == "deployment"
    assert lexfed("export", "r", "--to", "x").returncode == 0
    privacy = (tmp_path / "x/README.md").read_text().partition("## Privacy")[2]
    assert "Nothing is promised to those whose texts it was trained on" in privacy
    assert may_quote(RunDir(tmp_path / "r"))


# --- files ----------------------------------------------------------------------------------------


def open_to_others(path: Path, top: Path) -> bool:
    """Whether somebody else on this machine may read it: every folder on the way counts."""
    below = [path, *(p for p in path.parents if p.is_relative_to(top))]
    return all(p.stat().st_mode & (0o004 if p.is_file() else 0o001) for p in below)


def test_what_holds_users_words_is_for_its_owner_alone(
    tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text(texts.read_text().replace("film", "zyzzyva"))
    run = lexfed("run", tiny, "--out", "r", *sets("rounds=1"))
    assert run.returncode == 0, run.stderr
    assert lexfed("predict", "r", "--in", texts, "--out", "p.csv").returncode == 0
    assert not open_to_others(tmp_path / "p.csv", tmp_path)
    holders = [p for p in (tmp_path / "r").rglob("*") if p.is_file() and b"zyzzyva" in bytes_of(p)]
    assert tmp_path / "r/artifacts/vocabulary.txt" in holders
    assert not [p for p in holders if open_to_others(p, tmp_path / "r")]
    states = list((tmp_path / "r/checkpoint").glob("state*"))
    assert len(states) == 2
    assert not [p for p in states if open_to_others(p, tmp_path / "r")]


def bytes_of(path: Path) -> bytes:
    return path.read_bytes()


def test_an_oracles_tokenizer_is_for_its_owner_alone(
    folder: Path,  # noqa: F811
    lexfed: Lexfed,
    tmp_path: Path,
) -> None:
    for start, closed in (("oracle", True), ("public", False)):
        setting = sets(f"tokenizer.start={start}", "rounds=3", "privacy.placement=none")
        run = lexfed("run", folder / "small.toml", "--out", start, *setting)
        assert run.returncode == 0, run.stderr
        file = tmp_path / start / "artifacts/tokenizer.json"
        assert open_to_others(file, tmp_path / start) is not closed
        for kept in (tmp_path / start / "kept").rglob("*.safetensors"):
            assert not open_to_others(kept, tmp_path / start)
