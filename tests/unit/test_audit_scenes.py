"""What is attacked besides one upload of a classifier of words: several rounds, encoders, word
vectors, language models.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lexfed.audits.closed_form.attackers import PUBLIC_FILES, moved_outputs, moved_words, spectrum
from lexfed.audits.closed_form.front_ends import Encoder, Words
from lexfed.audits.closed_form.row_names import by_frequency, row_names
from lexfed.audits.scene import Findings, act
from lexfed.audits.score import membership
from lexfed.audits.uploads import Upload
from lexfed.audits.word_lists import agreement
from lexfed.core.seeds import derive, root, torch_generator
from lexfed.experiment import config as configuration
from lexfed.experiment.assembly import assemble
from lexfed.metrics import leakage
from lexfed.models.encoder import resolve
from lexfed.vocabulary.pretrained import load_tokenizer
from lexfed.vocabulary.tables import vectors
from lexfed.vocabulary.tables.rotation import rotation
from tests.conftest import ROOT, Lexfed
from tests.references import transformer_inputs
from tests.unit.test_auditing import QUICK, SMALL, audited, one, words

QUICK_SCENES = {
    name: ROOT / "experiments" / "quick" / f"{name}.toml" for name in ("agreed", "learned")
}


# --- several rounds ------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_round_of_a_client_tells_more_than_one(lexfed: Lexfed) -> None:
    """24 texts, 100 dimensions, four rounds: words 0.41 -> 0.45 (prior 0.38), AUC of sentences
    0.89 -> 0.91. Rounds read the
    same text, so they add little."""
    small = (
        "audit.sentences=[24]",
        "audit.clients=3",
        "audit.others=100",
        "data.clients=8",
        "data.limit=600",
    )
    rounds = ("audit.rounds=4", 'audit.methods=["fedevocab"]', 'audit.defences=["none"]')
    rows = audited(
        lexfed, QUICK, *words(*small, *rounds), "--attack", "span", "--attack", "sentences"
    )
    for attack, key in (("span", "recall_at_n"), ("sentences", "auc")):
        alone, together = (
            one(rows, attack=attack, attacker=name)
            for name in ("public files", "every round of a client")
        )
        assert (alone["uploads"], together["uploads"]) == (12, 3), (
            "the same three clients in each round"
        )
        assert together[key] > alone[key]


def test_a_spectrum_of_several_uploads_is_that_of_all_their_matrices() -> None:
    first = [
        torch.randn(6, 4, generator=torch_generator(derive(root(0), number))) for number in range(2)
    ]
    seen = [
        Upload(number, 0, {}, {"lstm.weight_ih_l0": matrix, "other": matrix}, {})
        for number, matrix in enumerate(first)
    ]
    found = spectrum(seen, lambda name, value: name.startswith("lstm"))
    assert found is not None
    torch.testing.assert_close(found.values, leakage.span(*first).values)
    assert spectrum(seen, lambda name, value: False) is None


def test_tables_in_one_position_are_read_together(lexfed: Lexfed, tmp_path: Path) -> None:
    """Each client has one of two tables, each of which lacks a tenth of the words. Who attacks has
    both files, and so the position that they were brought into.
    """
    known = vectors.load("hashed:100").head(12_000)
    rows = known.rows(known.words).numpy()
    other = rows @ rotation(root(6), 100).numpy() + 3
    for name, mine, first in (("a", rows, 0), ("b", other, 1)):
        kept = [i for i in range(len(rows)) if i % 10 != 1 + first]
        np.savez(tmp_path / name, words=np.array(known.words)[kept], vectors=mine[kept])
    names = [str(tmp_path / f"{name}.npz") for name in "ab"]
    alone = (*SMALL, 'audit.methods=["fedevocab"]', 'audit.defences=["none"]')
    settings = (*alone, f"fedevocab.vectors={json.dumps(names)}")
    rows_of = audited(lexfed, QUICK, *words(*settings, "fedevocab.align=true"), "--attack", "span")
    assert one(rows_of, attack="span", attacker="public files")["recall_at_n"] >= 0.8
    apart = lexfed("audit", QUICK, *words(*settings), "--attack", "span", "--out", "apart")
    assert apart.returncode == 2
    assert "an audit reads one public table" in apart.stderr


# --- encoders ------------------------------------------------------------------------------------


def small_encoder(dimension: int) -> Encoder:
    def drawn(name: str, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=torch_generator(derive(root(1), name)))

    tokenizer = load_tokenizer(resolve("minilm"), 16)
    order = torch.randperm(40, generator=torch_generator(root(2)))[:30]
    scale, shift = drawn("scale", dimension).abs() + 0.1, drawn("shift", dimension)
    return Encoder(
        tokenizer,
        order,
        drawn("table", 40, dimension),
        drawn("places", 5, dimension),
        scale,
        shift,
        1e-12,
    )


@pytest.mark.parametrize("inputs", [3, 40])
def test_distances_at_every_position_are_those_of_the_inputs_themselves(inputs: int) -> None:
    """Residuals with few inputs, leverage with many; the inputs built one by one are the
    reference.
    """
    encoder = small_encoder(12)
    (x,) = transformer_inputs(
        encoder.table[encoder.order],
        encoder.places,
        torch.zeros(12),
        encoder.scale,
        encoder.shift,
        encoder.eps,
    )  # (30, 5, 12)
    read = x.flatten(0, 1)[:: 150 // inputs][:inputs]
    found = leakage.span(torch.randn(20, len(read), generator=torch_generator(root(3))) @ read)
    assert found.exact == (inputs == 3)
    slow = torch.stack([leakage.word_distances(found, x[:, place]) for place in range(5)], 1)
    torch.testing.assert_close(encoder.distances(found), slow, rtol=1e-3, atol=2e-6)
    order = encoder.ranking(found, PUBLIC_FILES).tolist()
    if inputs == 3:
        assert {0, 10, 20} == set(order[:3]), "the words that were read"


def test_an_upload_of_zeros_leaves_the_prior() -> None:
    encoder = small_encoder(12)
    assert encoder.ranking(leakage.span(torch.zeros(4, 12)), PUBLIC_FILES).tolist() == list(
        range(30)
    )


@pytest.mark.slow
def test_one_sentence_is_read_from_minilm(lexfed: Lexfed, tiny: Path) -> None:
    """With the pretrained weights: rows of FedAvg, the span of query, key and value of
    FedeVocab.
    """
    settings = words(
        "model.name=minilm", "train.max_length=16", "train.batch=2", "train.optimizer=sgd", "train.lr=0.01", "data.test=0.1",
        "audit.clients=1", "audit.sentences=[2]", "audit.others=20", 'audit.methods=["fedavg", "fedevocab"]',
    )  # fmt: skip
    rows = audited(
        lexfed, tiny, *settings, "--attack", "rows", "--attack", "span", "--attack", "sentences"
    )
    assert one(rows, attack="rows", method="fedavg")["recall_at_n"] == 1.0
    assert one(rows, attack="rows", method="fedevocab")["nothing_to_read"] == 1
    found = one(rows, attack="span", method="fedevocab")
    assert found["recall_at_n"] >= 0.8 > found["prior_recall_at_n"] + 0.3
    assert one(rows, attack="sentences", method="fedevocab")["auc"] > 0.9


# --- word vectors and language models ------------------------------------------------------------


def scene(name: str, *settings: str) -> Any:
    config = configuration.load(QUICK_SCENES[name], settings)
    (only,) = act({"sentences": None}, assemble(config))
    return only


def test_rows_of_word_vectors_are_the_words_of_an_organisation() -> None:
    """Input rows move for its own words alone; output rows move for the negatives too."""
    small = (
        "data.limit=600",
        "data.clients=3",
        "audit.clients=2",
        "word2vec.dimension=8",
        "rounds=1",
        "cohort.size=2",
    )
    found = scene("agreed", *small, "agreement.minimum=2", "agreement.hashed=true")
    assert {upload.client for upload in found.uploads} == {0, 1}
    for upload in found.uploads:
        names, own = row_names(found.assembly, upload), found.client(upload).train
        inputs, outputs = moved_words(upload), moved_outputs(upload)
        assert inputs is not None
        assert outputs is not None
        truth = {
            names.tokens.index(word)
            for text in own
            for word in text.lower().split()
            if word in names.tokens
        }
        assert truth <= names.read(own), "and words beside punctuation"
        assert set(inputs.tolist()) <= names.read(own)
        assert len(inputs) > 0.95 * len(names.read(own)), (
            "frequent ones are thinned, so a rare one may be missed"
        )
        assert len(set(outputs.tolist()) - names.read(own)) > 10


def test_an_agreement_in_which_nobody_is_trusted_is_attacked_too() -> None:
    """The server reads no word of one organisation alone; with another at its side, those that it
    guesses.
    """
    small = ("data.limit=300", "data.clients=3", "word2vec.dimension=8", "rounds=1")
    trust = ("agreement.minimum=2", "agreement.trust=nobody", "agreement.memory=2")
    small = (*small, "vocabulary.vectors=hashed:1")
    findings = Findings({}, 0)
    agreement(scene("agreed", *small, *trust), findings)
    found = {cell.about["attacker"]: cell.figures for cell in findings.cells.values()}
    for attacker in ("public files", "another organisation"):
        assert [figures["recall"] for figures in found[attacker]] == [0.0] * 3
    for figures in found["a colluding client"]:
        assert 0.1 < figures["recall"] < 1.0
        assert figures["precision"] == 1.0


@pytest.mark.parametrize("tied", [True, False])
def test_rows_of_a_language_model_are_the_tokens_of_a_user(tied: bool) -> None:
    small = (
        "data.clients=60",
        "data.unseen=2",
        "tokenizer.size=600",
        "language_model.width=16",
        "rounds=1",
    )
    options = (
        "audit.clients=2",
        "cohort.size=2",
        "cohort.sampling=fixed",
        "privacy.placement=none",
    )
    found = scene(
        "learned",
        *small,
        *options,
        "tokenizer_for_free.switch=[]",
        f"language_model.tied={str(tied).lower()}",
    )
    for upload in found.uploads:
        names, inputs, outputs = (
            row_names(found.assembly, upload),
            moved_words(upload),
            moved_outputs(upload),
        )
        assert inputs is not None
        assert outputs is not None
        truth = names.read(found.client(upload).train)
        n = len(truth)
        assert 20 < n < 0.6 * len(names.tokens)
        assert len(set(outputs[: n + 2].tolist()) & truth) > 0.95 * n, (
            "the bias tells in either case"
        )
        if tied:
            assert len(inputs) == len(names.tokens), "every row moves, by the softmax"
        else:
            assert set(inputs.tolist()) - names.always == truth, "only what was read moves"
        assert len(truth & set(names.prior[:n].tolist())) < 0.8 * n


def test_the_prior_is_the_order_by_frequency() -> None:
    assert by_frequency([[3, 1, 1], [3, 3]], 5).tolist() == [3, 1, 0, 2, 4]


def test_a_wire_tells_as_much_as_the_scene_itself(lexfed: Lexfed) -> None:
    """The word list that was sent once is found for every upload behind it."""
    small = words(
        "data.limit=600",
        "data.clients=3",
        "word2vec.dimension=8",
        "rounds=2",
        "word2vec.baselines=false",
    )
    assert (
        lexfed(
            "run", QUICK_SCENES["agreed"], *small, "--out", "run", "--record-wire", "wire"
        ).returncode
        == 0
    )
    rows = audited(lexfed, "wire", "--truth", "run", "--attack", "rows", "--attack", "agreement")
    assert one(rows, attack="rows")["uploads"] == 6
    assert one(rows, attack="rows")["precision"] > 0.7, "a round reads a half of the text"
    assert one(rows, attack="agreement", attacker="public files")["recall"] == 0.0
    assert json.loads(Path("run/summary.json").read_text())


# --- scoring -------------------------------------------------------------------------------------


def test_a_thousandth_takes_ten_thousand_others() -> None:
    others = torch.arange(10_000) / 10_000
    found = membership(torch.tensor([0.5, 0.9985, 0.9995, 2.0]), others)
    assert found["tpr_at_01pct_fpr"] == 0.5, "the two that only ten others reach"
    assert found["tpr_at_1pct_fpr"] == 0.75
    assert membership(torch.ones(3), others[1:])["tpr_at_01pct_fpr"] is None


def test_words_front_end_reads_as_far_as_clients_do() -> None:
    from lexfed.audits.closed_form.attackers import Public

    front = Words(Public(("good", "film", "!")), torch.eye(3), limit=3, first=())
    assert front.ids("Good unknown film !") == [0, 1]
    assert front.inputs("film", PUBLIC_FILES).tolist() == [[0.0, 1.0, 0.0]]
