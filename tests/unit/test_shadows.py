"""Shadow models and the released model's audit: on the project's own training, and through the
command.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lexfed.audits.membership.lira import dp_limit, loss_threshold, losses
from lexfed.audits.membership.released import limit, studied
from lexfed.audits.membership.shadows import SCORES, ShadowStudy, joined
from lexfed.core.errors import ConfigError
from lexfed.core.seeds import root
from lexfed.experiment.assembly import assemble
from lexfed.experiment.config import Config, load
from lexfed.federation import Federation, Requests, Sum
from lexfed.learning.training_verbs import TRAIN
from lexfed.wire import ClientId, Message, Verb
from tests.conftest import Lexfed

SMALL = (
    "data.partition=iid",
    "data.clients=20",
    "data.validation=0.0",
    "audit.shadows=4",
    "train.optimizer=sgd",
)
PRIVATE = (
    "cohort.sampling=poisson",
    "privacy.placement=central",
    "privacy.noise=2.0",
    "privacy.accountant=rdp",
    "data.classes=2",
    "vocabulary.corpus=rotten_tomatoes",  # the users' own words would take the promise away
)


@pytest.fixture
def small(tiny: Path) -> Config:
    return load(tiny, [*SMALL, "rounds=2"])


def study_of(config: Config) -> ShadowStudy:
    return studied(assemble(config), root(0))


def test_a_study_trains_every_model_on_its_own_clients(small: Config) -> None:
    study = study_of(small)
    assert study.phi.shape == study.inside.shape == (6, len(study.labels))
    assert torch.equal(study.inside[::2], ~study.inside[1::2]), (
        "in pairs: each client joins one of the two"
    )
    assert len({tuple(row.tolist()) for row in study.inside}) == 6
    assert study.phi.isfinite().all()
    assert len({tuple(row.tolist()) for row in study.phi}) == 6, "each from a start of its own"
    assert (study.epsilon, study.delta, limit(study)) == (None, None, None)
    assert torch.equal(study.phi, study_of(small).phi), "the same bits from the same seed"
    assert torch.equal(SCORES["threshold"](study, 3), loss_threshold(losses(study.phi[3])))
    assert torch.equal(SCORES["lira"](study, 3), study.attack(3, online=True))
    assert torch.equal(SCORES["lira offline"](study, 3), study.attack(3, online=False))
    counted = study.matched(0, root(1))
    inside, labels = study.inside[0], study.labels
    for label in (0, 1):
        both = [(side & counted & (labels == label)).sum() for side in (inside, ~inside)]
        assert both[0] == both[1] > 0


def test_who_did_not_join_is_asked_and_says_nothing() -> None:
    """The server samples from, and divides by, all of them: in or out is one update more or
    less, and nothing else.
    """
    heard: list[list[ClientId]] = []

    def ask(verb: Verb, requests: Requests) -> Iterator[tuple[ClientId, Message]]:
        heard.append(list(requests))
        yield from requests.items()

    def total(verb: Verb, requests: Requests) -> Sum:
        return Sum({}, len(list(ask(verb, requests))), 0)

    some = joined(Federation(range(4), ask, total), np.array([True, False, True, False]))
    requests = dict.fromkeys([0, 1, 2], Message({}))
    assert list(some.clients) == [0, 1, 2, 3]
    assert [client for client, _ in some.ask(TRAIN, requests)] == [0, 2]
    assert some.total(TRAIN, requests).clients == 2
    assert heard == [[0, 2], [0, 2]]


def test_the_last_mean_is_what_is_released(small: Config) -> None:
    mean = replace(small, server=replace(small.server, average=0.5))
    assert not torch.equal(study_of(small).phi, study_of(mean).phi)


def test_a_private_study_tells_the_epsilon_of_its_configuration(tiny: Path) -> None:
    private = load(tiny, [*SMALL, *PRIVATE, "rounds=2"])
    study = study_of(private)
    assert study.epsilon is not None
    assert study.delta is not None
    assert 0.5 < study.epsilon < 20
    assert study.delta == private.privacy.delta
    assert limit(study) == dp_limit(study.epsilon, study.delta, 0.01)
    everyone = replace(private, cohort=replace(private.cohort, size=20))
    dearer = study_of(everyone).epsilon
    assert dearer is not None
    assert dearer > study.epsilon, "the pair: who is always asked pays more"


def test_noise_of_one_s_own_says_nothing_of_who_took_part(tiny: Path) -> None:
    local = load(
        tiny,
        [
            *SMALL,
            "rounds=1",
            "privacy.placement=local",
            "privacy.noise=2.0",
            "privacy.accountant=rdp",
        ],
    )
    assert study_of(local).epsilon is None


def test_only_what_all_share_has_shadows(tiny: Path) -> None:
    with pytest.raises(ConfigError, match="all share"):
        study_of(load(tiny, [*SMALL, "method=lg_fedavg"]))


# --- the command ---------------------------------------------------------------------------------


def audited(lexfed: Lexfed, config: Path, *settings: str) -> list[dict[str, Any]]:
    words = [word for setting in (*SMALL, *settings) for word in ("--set", setting)]
    result = lexfed("audit", config, *words, "--attack", "membership", "--out", "audit")
    assert result.returncode == 0, result.stderr
    rows: list[dict[str, Any]] = json.loads(Path("audit/audit.json").read_text())
    return rows


def test_membership_through_the_command(lexfed: Lexfed, tiny: Path) -> None:
    """Texts of few words, learnt by heart: members are told. Under noise that costs an epsilon
    of 1 or so they are not.
    """
    private = "; ".join((*PRIVATE[:2], "privacy.noise=8.0", *PRIVATE[3:], "train.epochs=1"))
    learnt = (
        "rounds=2",
        "train.lr=0.05",
        "train.epochs=8",
        "cohort.sampling=everyone",
        "data.clients=8",
    )
    learnt = (
        *learnt,
        "model.embedding=16",
        "model.hidden=8",
        "model.dropout=0.0",
        "audit.sentences=[2, 3]",
    )
    rows = audited(
        lexfed, tiny, *learnt, 'audit.optimizers=["adam"]', f'audit.defences=["none", "{private}"]'
    )
    assert [row["attack"] for row in rows] == 2 * ["threshold", "lira", "lira offline"], (
        "once, whatever audit.sentences"
    )
    plain, noisy = rows[:3], rows[3:]
    assert all(
        row["uploads"] == 6 and row["sentences"] is None and row["tpr_at_1pct_fpr"] is None
        for row in rows
    )
    assert all(row["auc_interval"][0] <= row["auc"] <= row["auc_interval"][1] for row in rows)
    assert all((row["epsilon"], row["dp_limit"]) == (None, None) for row in plain)
    assert all(0 < row["epsilon"] < 5 and 0.01 < row["dp_limit"] < 1 for row in noisy)
    assert min(row["auc"] for row in plain) > 0.6
    assert max(row["auc"] for row in noisy) < 0.6, "the pair"
    assert plain[1]["attacker"] == "shadow models"
    page = Path("audit/audit.html").read_text()
    assert "Was this text trained on?" in page
    assert "saw no message" in page
    assert f"{noisy[0]['dp_limit']:.3f}" in page, "chance is 0.01: two digits would not tell"


def test_audits_of_models_that_can_not_be_meant(lexfed: Lexfed, tiny: Path) -> None:
    for setting, line in [("audit.shadows=5", "even number"), ("method=fedevocab", "all share")]:
        result = lexfed("audit", tiny, "--set", setting, "--attack", "membership", "--out", "audit")
        assert (result.returncode, result.stderr.count("\n")) == (2, 1)
        assert line in result.stderr
    wire = Path("wire")
    wire.mkdir()
    result = lexfed("audit", wire, "--truth", tiny, "--attack", "membership")
    assert result.returncode == 2
    assert "not read from a wire" in result.stderr
