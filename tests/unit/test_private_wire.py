"""The pair: FedAvg's embedding rows give its clients' words away completely; FedeVocab has nothing
to read.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from lexfed.audits.transcript import Recorded, transcript
from lexfed.experiment import config as configuration
from lexfed.experiment.assembly import Assembly, assemble
from lexfed.learning.training_verbs import TRAIN
from lexfed.methods.lg_fedavg import WARM_UP
from lexfed.runtime.store import Store
from lexfed.vocabulary.splitting import words
from lexfed.wire import encode
from tests.conftest import Lexfed


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    vocabulary = [
        "a",
        "film",
        "fine",
        "dull",
        "fun",
        "story",
        "acting",
        "we",
        "it",
        "loved",
        "great",
        "7",
        "12",
        "unused",
    ]
    table = np.random.default_rng(0).normal(size=(len(vocabulary), 4)).astype("f4")
    np.savez(tmp_path / "public.npz", words=np.array(vocabulary), vectors=table)
    return tmp_path / "public.npz"


def record(
    method: str, tiny: Path, vectors: Path, lexfed: Lexfed, tmp_path: Path
) -> tuple[Assembly, list[Recorded]]:
    # four dimensions: dropout could hide a word that occurs once
    settings = [f"method={method}", f"vocabulary.vectors={vectors}", "model.dropout=0.0"]
    words_ = [word for setting in settings for word in ("--set", setting)]
    result = lexfed("run", tiny, "--out", "a", "--record-wire", "wire", *words_)
    assert result.returncode == 0, result.stderr
    assembly = assemble(configuration.load(tmp_path / "a/config.toml"))
    return assembly, list(transcript(tmp_path / "wire", assembly.method.client))


def client_words(assembly: Assembly, client: int) -> set[str]:
    return {word for text in assembly.population.client(client).train for word in words(text)}


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedavg_finetune"])
def test_fedavg_gives_every_word_away(
    method: str, tiny: Path, vectors: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    assembly, messages = record(method, tiny, vectors, lexfed, tmp_path)
    tokens = assembly.tokenizer.vocabulary.tokens
    ups = [m for m in messages if m.verb is TRAIN and m.direction == "up"]
    assert ups
    for m in ups:
        moved = m.message.arrays["delta/embedding.weight"].abs().sum(1).nonzero().flatten().tolist()
        read = {tokens[i] for i in moved} - {"<unk>"}
        assert read == client_words(assembly, m.client) & set(tokens), "recall 1, precision 1"


def test_fedevocab_sends_neither_table_nor_word(
    tiny: Path, vectors: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    assembly, messages = record("fedevocab", tiny, vectors, lexfed, tmp_path)
    store = Store(tmp_path / "a/checkpoint/clients")
    everybody = set().union(*(client_words(assembly, k) for k in range(len(assembly.population))))
    telling = [
        word.encode() for word in everybody if len(word) > 4
    ]  # short ones occur in any bytes
    tables = {
        tuple(store.load(k, (99, 0)).params["embedding.weight"].shape)
        for k in range(6)
        if store.load(k, (99, 0)).params
    }
    assert tables
    for m in messages:
        assert not any("embedding" in name for name in m.message.arrays)
        assert not any(tuple(value.shape) in tables for value in m.message.arrays.values())
        data = encode(m.message)
        assert not [word for word in telling if word in data]


def test_nothing_of_the_servers_holds_a_word(
    tiny: Path, vectors: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    """Not only the wire: with private vocabularies the run directory has words in the clients'
    own folders alone.
    """
    assembly, _ = record("fedevocab", tiny, vectors, lexfed, tmp_path)
    everybody = set().union(*(client_words(assembly, k) for k in range(len(assembly.population))))
    telling = [word.encode() for word in everybody if len(word) > 5]
    theirs = tmp_path / "a/checkpoint/clients"
    ours = [
        path
        for path in (tmp_path / "a").rglob("*")
        if path.is_file() and theirs not in path.parents
    ]
    assert len(ours) > 5
    for path in ours:
        data = path.read_bytes()
        if path.name == "report.html":  # but for the library that draws its charts
            data = re.sub(rb"<script.*?</script>", b"", data, flags=re.S)
        assert not [word for word in telling if word in data], path.name
    assert any(
        word in path.read_bytes() for path in theirs.rglob("*.safetensors") for word in telling
    ), "they do keep them"


def test_the_private_rows_of_fedrecon_never_travel(
    tiny: Path, vectors: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    assembly, messages = record("fedrecon", tiny, vectors, lexfed, tmp_path)
    digits = [
        token for token in assembly.tokenizer.vocabulary.tokens if any(c.isdigit() for c in token)
    ]
    shared = len(assembly.tokenizer.vocabulary) - len(digits)
    assert digits
    for m in messages:
        for name, value in m.message.arrays.items():
            if "embedding" in name:
                assert name.endswith("embedding.weight")
                assert value.shape[0] == shared


def test_lg_fedavg_keeps_its_table_after_the_warm_start(
    tiny: Path, vectors: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    settings = ("--set", "lg_fedavg.warm=1")
    result = lexfed(
        "run", tiny, "--out", "a", "--record-wire", "wire", "--set", "method=lg_fedavg", *settings
    )
    assert result.returncode == 0, result.stderr
    verbs = assemble(configuration.load(tmp_path / "a/config.toml")).method.client
    ups = [m for m in transcript(tmp_path / "wire", verbs) if m.direction == "up"]
    telling = {
        m.verb
        for m in ups
        if "delta/embedding.weight" in {name.partition("#")[0] for name in m.message.arrays}
    }
    assert telling == {WARM_UP}
    assert any(m.verb is TRAIN and m.message.arrays for m in ups), "and then the rest travels"
