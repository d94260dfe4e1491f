"""Organisations that join with their own site.toml: own texts, own secrets, scores on what each
holds out, and the server that sees no text.
"""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lexfed.core.errors import CheckpointError, ConfigError
from lexfed.core.seeds import derive, public_identity, root
from lexfed.corpus.loading import Columns
from lexfed.corpus.population import Data
from lexfed.corpus.sources import load
from lexfed.deployment.driving import deployed, drive, prepared
from lexfed.privacy.accounting import Release, SummedGaussian, epsilon
from lexfed.records.rundir import RunDir
from lexfed.runs.launch import Manner
from lexfed.secure.identity import Roster, write_identity, write_roster
from lexfed.site.policy import Policy
from lexfed.use import predicting
from tests.conftest import Lexfed
from tests.organisations import QUICK, SERVER, Local, close, desk, server_keys, site

IDENTITIES = [derive(root(n), "identity") for n in range(4)]
CLASSIFIER = """
rounds = 3
method = "{method}"
[data]
labels = ["bad", "good"]
[vocabulary]
size = 800
[model]
embedding = 16
hidden = 16
[cohort]
sampling = "everyone"
[train]
max_length = 30
"""
VECTORS = """
rounds = 2
method = "federated_word2vec"
[agreement]
minimum = 3
[word2vec]
dimension = 16
[cohort]
sampling = "everyone"
"""
LANGUAGE = """
rounds = 3
method = "tokenizer_for_free"
[tokenizer]
size = 300
public = "rotten_tomatoes"
words_per_user = 500
[language_model]
width = 16
layers = 1
context = 16
[tokenizer_for_free]
switch = [2]
sample_words = 300
[cohort]
size = 3
sampling = "poisson"
[train]
batch = 8
"""


def texts_of(number: int, folder: Path) -> Path:
    corpus = load("rotten_tomatoes", Columns())
    texts, labels = list(corpus), corpus.labels.tolist()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "texts.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        for i in range(120):
            place = (number * 120 + i) * 2753 % len(texts)
            rows.writerow([texts[place], ("bad", "good")[labels[place]]])
    return path


def federated(text: str, folder: Path, *settings: str, **allowed: Any) -> RunDir:
    """Four organisations with files of their own."""
    folder.mkdir(exist_ok=True)
    (folder / "federation.toml").write_text(text)
    keys = server_keys(folder / "keys", IDENTITIES)
    config = deployed(folder / "federation.toml", list(settings), len(IDENTITIES))
    policy = Policy(methods=(config.method,), **allowed)
    desks = {}
    for number in range(len(IDENTITIES)):
        data = Data(name=str(texts_of(number, folder / f"site{number}")), partition="iid")
        mine = site(folder / f"site{number}", number, IDENTITIES, policy, data=data)
        desks[number] = desk(mine)
    prepared(config, keys, folder / "run", QUICK)
    try:
        return drive(Local(desks), folder / "run", Manner(quiet=True))
    finally:
        close(desks.values())


def logs(folder: Path) -> str:
    return "".join(path.read_text() for path in sorted(folder.glob("site*/site.log")))


@pytest.mark.parametrize("method", ["fedavg", "fedevocab", "local_only"])
@pytest.mark.parametrize("secure", [False, True])
def test_classifiers_score_themselves(method: str, secure: bool, tmp_path: Path) -> None:
    text = CLASSIFIER.format(method=method)
    if method == "local_only":
        text = text.replace("rounds = 3\n", "").partition("[cohort]")[0]
    if method == "local_only" and secure:
        with pytest.raises(ConfigError, match="nothing is added up"):
            federated(text, tmp_path, "secure.sums=true")
        return
    run = federated(text, tmp_path, *(["secure.sums=true"] if secure else []))
    summary = run.summary()
    assert "refused" not in logs(tmp_path)
    assert 0.3 < summary["global_accuracy"] < 0.9
    assert summary["clients"] == 4
    assert summary["seed"] is None
    assert json.loads((run.artifacts / "labels.json").read_text()) == ["bad", "good"]


def test_word_vectors_of_organisations(tmp_path: Path) -> None:
    summary = federated(VECTORS, tmp_path).summary()
    assert "could not" not in logs(tmp_path)
    assert summary["heldout_loss"] < summary["untrained_heldout_loss"]
    assert summary["vocabulary_size"] > 50


def test_a_language_model_is_scored_on_what_each_holds_out(tmp_path: Path) -> None:
    summary = federated(LANGUAGE, tmp_path).summary()
    assert "could not" not in logs(tmp_path)
    assert summary["test_users"] == 4
    assert summary["after_switch"]["round"] == 2
    assert 0 < summary["word_perplexity"] < 1e9  # it was hardly trained


PRIVATE = ("privacy.placement=central", "privacy.noise=1.0", "privacy.delta=1e-4")


def test_a_promise_is_kept_and_nobody_is_scored(tmp_path: Path) -> None:
    run = federated(LANGUAGE, tmp_path, *PRIVATE)
    summary = run.summary()
    assert summary["word_perplexity"] is None
    assert summary["ledger"][0]["count"] == 3
    assert "scores" not in logs(tmp_path)
    books = [json.loads(path.read_text()) for path in tmp_path.glob("site*/ledger.json")]
    assert all(book["ledger"][0]["event"] == "gaussian" for book in books)  # no secret cohort


def test_noise_in_shares_under_a_sites_own_epsilon(tmp_path: Path) -> None:
    """Each adds its own part of the noise, and counts for itself."""
    settings = (
        "secure.sums=true", "privacy.placement=distributed", "privacy.noise=3.0",
        "privacy.delta=1e-4",
    )  # fmt: skip
    two, three = (_epsilon_of(rounds) for rounds in (2, 3))
    own = {"epsilon": (two + three) / 2, "delta": 1e-4, "noise": "own", "secure_sums": True}
    run = federated(CLASSIFIER.format(method="fedavg"), tmp_path, *settings, **own)
    said = logs(tmp_path)
    assert [record["clients"] for record in run.records()] == [4, 4, 0]
    assert said.count("(policy.epsilon)") >= 4
    books = [json.loads(path.read_text()) for path in tmp_path.glob("site*/ledger.json")]
    assert all(book["ledger"][0]["event"] == "summed_gaussian" for book in books)


def _epsilon_of(rounds: int) -> float:
    event = SummedGaussian(3.0, parts=4, steps=1000)
    return epsilon((Release("user", event, rounds),), "user", 1e-4)


def test_an_organisation_uses_what_was_trained(tmp_path: Path, lexfed: Lexfed) -> None:
    """With its own words and table; somebody else has only what is common; and nobody's folder
    opens another's.
    """
    run = federated(CLASSIFIER.format(method="fedevocab"), tmp_path)
    write_site(tmp_path / "site1", 1)
    texts = ["a fine and moving film", "dull, slow and badly written"]
    own = predicting.predict(run.path, texts, site=tmp_path / "site1")
    common = predicting.predict(run.path, texts)
    assert own.labels == common.labels == ("bad", "good")
    assert own.whose.startswith("client 1")
    assert not torch.equal(own.logits, common.logits)
    with pytest.raises(ConfigError, match="this site is client 1"):
        predicting.predict(run.path, texts, client=2, site=tmp_path / "site1")
    with pytest.raises(CheckpointError, match="--site"):
        predicting.predict(run.path, texts, client=1)
    # the same from the command line, into a file
    Path("new.txt").write_text("\n".join(texts) + "\n")
    words = ("--in", "new.txt", "--site", tmp_path / "site1", "--out", "own.csv")
    told = lexfed("predict", run.path, *words)
    assert told.returncode == 0, told.stderr
    assert "model: client 1" in told.stdout
    with open("own.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == [row["label"] for row in own.rows()]
    assert [float(row["p_good"]) for row in rows] == [row["p_good"] for row in own.rows()]
    at_home = lexfed("predict", run.path, *words[:4], "--at-home")
    assert at_home.returncode == 0, at_home.stderr
    lost = lexfed("predict", run.path, "--in", "new.txt", "--site", "elsewhere")
    assert lost.returncode == 2


def write_site(folder: Path, me: int) -> None:
    """The files that `site` of tests/organisations.py stands for."""
    write_identity(folder / "identity.pem", IDENTITIES[me])
    clients = dict(enumerate(map(public_identity, IDENTITIES)))
    write_roster(folder / "peers.json", Roster(clients, public_identity(SERVER)))
    (folder / "secret").write_bytes(derive(root(me), "site"))
    (folder / "secret").chmod(0o600)
    policy = '[policy]\nmethods = ["fedevocab"]\n'
    (folder / "site.toml").write_text(f'[data]\nname = "texts.csv"\n{policy}')
