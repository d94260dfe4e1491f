"""Canary phrases in chosen clients, and what uploads tell of them; what an agreement tells of
single-source words.
"""

from math import log2
from pathlib import Path

import numpy as np
import pytest
import torch

from lexfed.audits import cells as auditing
from lexfed.audits.closed_form.exposure import exposure
from lexfed.audits.closed_form.phrases import DIGITS, drawn, phrases, planted, slots
from lexfed.core.seeds import root
from lexfed.experiment import config as configuration
from lexfed.report.revealed import Revealed
from lexfed.runs import agreement_alone as agreeing
from tests.conftest import ROOT, Lexfed, hand_made
from tests.unit.test_auditing import QUICK, SMALL, audited, one, words

AGREED = ROOT / "experiments" / "quick" / "agreed.toml"


# --- planting ------------------------------------------------------------------------------------


def test_a_planted_phrase_is_one_more_text_of_its_client_and_of_nobody_else() -> None:
    people = hand_made((3, 2, 4, 1))
    after = planted(people, {1: "john smith 4711", 3: "mary jones 2093"})
    for number in range(4):
        before, own = people.client(number).train, after.client(number).train
        more = {1: ["john smith 4711"], 3: ["mary jones 2093"]}.get(number, [])
        assert list(own) == more + list(before)
        assert own.labels.tolist() == before.labels[: len(more)].tolist() + before.labels.tolist()
    assert planted(people, {}) is people


def test_phrases_are_of_public_words_that_every_method_knows() -> None:
    config = configuration.load(
        QUICK, ["audit.canaries=3", "audit.clients=3", "vocabulary.size=3000"]
    )
    found = phrases(config)
    assert list(found) == [0, 1, 2]
    assert len(set(found.values())) == 3
    known = [set(place) for place in slots(config)]
    for phrase in found.values():
        first, last, *numbers = phrase.split()
        assert first in known[0]
        assert last in known[1]
        assert len(numbers) == DIGITS
        assert all(any(map(str.isdigit, number)) and number in known[2] for number in numbers)
    assert (
        phrases(configuration.load(QUICK, ["seed=1", "audit.canaries=3", "audit.clients=3"]))
        != found
    )


def test_phrases_are_drawn_once_each_while_there_are_enough() -> None:
    assert len(set(drawn([["a", "b"], ["c", "d"]], 4, root(0)))) <= 4
    many = drawn([[str(i) for i in range(100)]] * 3, 1000, root(0))
    assert len(many) == len(set(many)) == 1000


# --- exposure ------------------------------------------------------------------------------------


def test_exposure_is_that_of_the_rank() -> None:
    """By sorting: the slow way. Ties count half, so an upload that tells nothing gives one bit,
    not all.
    """
    scores = torch.tensor([0.3, 0.1, 0.9, 0.2, 0.5, 0.0, 0.8, 0.25])
    rank = sorted(scores.tolist(), reverse=True).index(scores[0].item()) + 1
    assert exposure(scores) == pytest.approx(log2(8 / rank))
    assert exposure(torch.zeros(10_001)) == pytest.approx(log2(10_001 / 5_001))
    ranks = np.arange(1, 10_001)
    assert np.log2(10_000 / ranks).mean() == pytest.approx(1.4427, abs=1e-3), (
        "what chance gives, as the report says"
    )


@pytest.mark.slow
def test_phrases_are_exposed_where_words_are_and_hidden_where_they_are_not(lexfed: Lexfed) -> None:
    """The pairs: FedAvg's rows and FedeVocab's span put the phrase first among 10,000; a
    rotation hides it from the server,
    and not from a client that works with the server."""
    rows = audited(lexfed, QUICK, *words(*SMALL, "audit.canaries=2"), "--attack", "canaries")
    most = log2(10_000)
    assert one(rows, method="fedavg")["exposure"] == pytest.approx(most)
    found = one(rows, method="fedevocab", defence="none")
    assert found["exposure"] == pytest.approx(most)
    assert found["recall_at_n"] == 1.0 > found["prior_recall_at_n"] + 0.5
    hidden = {row["attacker"]: row for row in rows if row["defence"] != "none"}
    assert hidden["public files"]["exposure"] < 5
    assert hidden["a colluding client"]["exposure"] == pytest.approx(most)


def test_more_canaries_than_clients_can_not_be_meant(lexfed: Lexfed) -> None:
    result = lexfed("audit", QUICK, *words("audit.canaries=6", "audit.clients=5"), "--out", "audit")
    assert result.returncode == 2
    assert "audit.canaries" in result.stderr
    result = lexfed(
        "audit", QUICK, *words("audit.canaries=1", "vocabulary.size=30"), "--out", "audit"
    )
    assert result.returncode == 2
    assert "names and words with digits" in result.stderr
    assert not Path("audit").exists()


# --- agreement -----------------------------------------------------------------------------------

ORGANISATIONS = (
    "data.limit=500",
    "data.clients=3",
    "word2vec.dimension=8",
    'audit.attacks=["agreement"]',
    "audit.clients=3",
)


def agreed(rule: str) -> tuple[dict[str, dict[str, float]], Revealed]:
    """The attack's figures, and the experimenter's own account of the same agreement: the
    reference.
    """
    settings = (
        *ORGANISATIONS,
        f"agreement.rule={rule}",
        "agreement.minimum=1",
        "vocabulary.vectors=hashed:100",
    )
    config = configuration.load(AGREED, settings)
    return {row["attacker"]: row for row in auditing.of_config(config)}, agreeing.run(
        config
    ).revealed


def test_a_union_shows_what_one_alone_holds() -> None:
    """Everything that an organisation alone holds is told to the server, and to the others."""
    rows, revealed = agreed("union")
    assert rows["public files"]["precision"] == rows["public files"]["recall"] == 1.0
    assert all(o.agreed.to_server == o.agreed.to_others > 0 for o in revealed.organisations)
    others = rows["another organisation"]
    assert others["recall"] == 1.0
    single = revealed.union_single_source_words
    alone = [o.agreed.to_others for o in revealed.organisations]
    unknown = [revealed.union_size - o.agreed.known for o in revealed.organisations]
    expected = np.mean([(single - own) / more for own, more in zip(alone, unknown, strict=True)])
    assert others["precision"] == pytest.approx(expected)


def test_a_sum_shows_none_of_it_but_to_who_has_the_key() -> None:
    """The pair: two holders are asked for. With the key, a public list of words is tried out
    against the hashes.
    """
    rows, revealed = agreed("summed")
    assert revealed.single_source_words == 0
    assert rows["public files"]["recall"] == rows["another organisation"]["recall"] == 0.0
    assert rows["a colluding client"]["recall"] > 0.3
    assert rows["a colluding client"]["precision"] == 1.0
