"""Rows when the tokenizer changes, against the obvious loop; what must stay the same stays so bit
for bit.
"""

import math
import time
from collections import Counter
from functools import cache
from itertools import islice

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from lexfed.core.seeds import root, torch_generator
from lexfed.corpus.catalogue import load as load_corpus
from lexfed.federation.server_optimizer import ServerOptimizer
from lexfed.vocabulary.remap import pieces, remap_params, remap_slots, remapped, unigram_bias
from lexfed.vocabulary.tokenizer import Kind, TrainedTokenizer, load, train, train_on_counts
from tests.references import token_words as words

KINDS: tuple[Kind, ...] = ("bpe", "word", "wordpiece", "unigram")


@cache
def texts() -> list[list[str]]:
    return [words(text) for text in islice(load_corpus("rotten_tomatoes"), 1000)]


@cache
def old(kind: Kind) -> TrainedTokenizer:
    return load(train(texts()[:400], kind, 500))


@cache
def new(kind: Kind) -> TrainedTokenizer:
    return load(train(texts()[400:], kind, 800))


def table(rows: int, *more: int) -> Tensor:
    return torch.randn(rows, *more, generator=torch_generator(root(rows)))


def named(tokenizer: TrainedTokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.tokens[i] for i in ids]


# --- pieces --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_tokenizer_changes_nothing(kind: Kind) -> None:
    same = pieces(old(kind), load(old(kind).data))
    assert same == [[i] for i in range(500)]
    rows = table(500, 7)
    rows[5] = -0.0
    for before in (rows, rows[:, 0], rows.double()):
        assert remapped(before, same).numpy().tobytes() == before.numpy().tobytes()
    assert pieces(new(kind), old(kind))[:500] != same, "the pair: another one does"


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_that_the_old_one_has_keeps_its_row(kind: Kind) -> None:
    found, rows = pieces(new(kind), old(kind)), table(500, 5)
    after = remapped(rows, found)
    common = [i for i, token in enumerate(new(kind).tokens) if token in old(kind).vocabulary.ids]
    assert 200 < len(common) < 800
    for i in common:
        assert torch.equal(after[i], rows[old(kind).vocabulary.ids[new(kind).tokens[i]]])


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_pieces_write_their_token(kind: Kind) -> None:
    whole = 0
    for token, ids in zip(new(kind).tokens, pieces(new(kind), old(kind)), strict=True):
        parts = named(old(kind), ids)
        glued = parts[0] + "".join(part.removeprefix("##") for part in parts[1:])
        assert glued == token or (kind != "bpe" and "<unk>" in parts), "a letter the old text lacks"
        whole += glued == token
    assert whole > 780


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_pieces_of_a_token_that_begins_a_word_are_the_word_s(kind: Kind) -> None:
    """Where the old tokenizer meets the same string in text, it cuts it so: an independent way
    to the same pieces.
    """
    marks = {"bpe": "Ġ", "wordpiece": "", "unigram": "▁"}
    found, checked = pieces(new(kind), old(kind)), 0
    for token, ids in zip(new(kind).tokens[4:], found[4:], strict=True):
        word = token.removeprefix(marks[kind])
        if token == marks[kind] + word and word.isalpha() and word.isascii():
            checked += 1
            assert ids == old(kind).encode_words([word])[0]
    assert checked > 100


def test_a_repeated_piece_counts_twice() -> None:
    before = load(train_on_counts({"xha": 50, "yha": 50}, "bpe", 261))  # one merge: ha
    after = load(train_on_counts({"haha": 90}, "bpe", 270))
    token, found, rows = after.vocabulary.ids["Ġhaha"], pieces(after, before), table(261, 3)
    assert named(before, found[token]) == ["Ġ", "ha", "ha"]
    blank, ha = rows[before.vocabulary.ids["Ġ"]], rows[before.vocabulary.ids["ha"]]
    assert torch.allclose(remapped(rows, found)[token], (blank + 2 * ha) / 3)
    assert not torch.allclose(remapped(rows, found)[token], (blank + ha) / 3), (
        "what the paper's `=` would give"
    )


def test_continuations_stay_continuations() -> None:
    before = load(
        train_on_counts({"doing": 5, "go": 5, "ing": 50, "sing": 20, "x": 1}, "wordpiece", 40)
    )
    after = load(train_on_counts({"doing": 50, "going": 50, "king": 9}, "wordpiece", 40))
    found = {
        token: named(before, ids)
        for token, ids in zip(after.tokens, pieces(after, before), strict=True)
    }
    assert found["##oing"][0].startswith("##o")
    assert (
        found["##oing"][0] + "".join(part.removeprefix("##") for part in found["##oing"][1:])
        == "##oing"
    )
    assert found["k"] == ["<unk>"], "a letter the old one has never seen"


@pytest.mark.parametrize("one", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_from_any_kind_to_any_kind(one: Kind, other: Kind) -> None:
    found = pieces(new(one), old(other))
    assert found[:4] == [[0], [1], [2], [3]], "special tokens to their namesakes"
    assert len(found) == 800
    assert all(0 <= i < 500 for ids in found for i in ids)
    form = {"bpe": "Ġmovie", "word": "movie", "wordpiece": "movie", "unigram": "▁movie"}
    movie = new(one).vocabulary.ids[form[one]]
    assert found[movie] == old(other).encode_words(["movie"])[0]


def test_across_kinds_a_token_goes_by_its_text() -> None:
    counts = {"doing": 50, "going": 50, "sing": 20, "ring": 20}
    bpe = load(train_on_counts(counts, "bpe", 280))
    wordpiece, unigram = (
        load(train_on_counts(counts, kind, 30)) for kind in ("wordpiece", "unigram")
    )

    def names(new: TrainedTokenizer, old: TrainedTokenizer, token: str) -> list[str]:
        return named(old, pieces(new, old)[new.vocabulary.ids[token]])

    assert names(wordpiece, bpe, "##ing") == ["ing"], "it begins no word"
    assert names(bpe, wordpiece, "ing") == names(unigram, wordpiece, "ing") == ["##ing"]
    assert names(bpe, wordpiece, "Ġ") == ["<unk>"], "a blank has no text"
    assert names(bpe, unigram, "Ġ") == ["▁"]
    assert names(unigram, bpe, "▁") == ["Ġ"]
    assert names(bpe, unigram, "é".encode().decode("latin-1")[0]) == ["<unk>"], "half a character"


def test_what_has_no_piece_and_no_unknown_gets_the_mean() -> None:
    """A foreign tokenizer of bytes without <unk>."""
    gpt = Tokenizer(models.BPE({"<|endoftext|>": 0, "a": 1, "Ġ": 2, "Ġa": 3}, [("Ġ", "a")]))
    gpt.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    before = load(gpt.to_str().encode())
    after = load(train_on_counts({"a": 5, "b": 5}, "bpe", 262))
    found = pieces(after, before)
    assert found[:4] == [[], [0], [0], []]
    ids = after.vocabulary.ids
    assert (found[ids["Ġa"]], found[ids["a"]], found[ids["z"]]) == ([3], [1], [])
    rows = table(4, 2)
    assert torch.allclose(remapped(rows, found)[ids["z"]], rows.mean(0))


# --- rows ----------------------------------------------------------------------------------------


def slowly(rows: Tensor, found: list[list[int]]) -> Tensor:
    return torch.stack(
        [sum(rows[i] for i in ids) / len(ids) if ids else rows.mean(0) for ids in found]
    )  # type: ignore[misc]


def test_rows_are_means() -> None:
    found = [[0], [1, 2], [2, 2, 1], [], [4, 4], [3]]
    for rows in (table(5, 3), table(5), table(5, 2, 3), table(5, 3).double()):
        after = remapped(rows, found)
        assert after.dtype == rows.dtype
        assert torch.allclose(after, slowly(rows, found))
        assert torch.equal(after[5], rows[3])
    real = pieces(new("bpe"), old("bpe"))
    assert torch.allclose(remapped(table(500, 8), real), slowly(table(500, 8), real), atol=1e-6)
    with pytest.raises(ValueError, match="has 4 rows"):
        remapped(table(4, 3), found)


def test_fifty_thousand_rows_are_quick() -> None:
    found = [[i % 997, i % 31, i % 7] for i in range(50_000)]
    start = time.process_time()
    assert remapped(table(1000, 128), found).shape == (50_000, 128)
    assert time.process_time() - start < 2, "about 0.1 s"


def test_parameters_and_the_server_s_memory() -> None:
    found, names = pieces(new("bpe"), old("bpe")), ["embedding", "bias"]
    params = {"embedding": table(500, 4), "bias": table(500), "body": table(3, 3)}
    server = ServerOptimizer("adam", lr=0.1)
    params, slots = server.step(params, {name: value.sin() for name, value in params.items()}, {})
    after, memory = remap_params(params, names, found), remap_slots(slots, names, found)
    assert [tuple(after[name].shape) for name in params] == [(800, 4), (800,), (3, 3)]
    assert after["body"] is params["body"]
    for slot in ("m", "v"):
        assert memory[slot]["body"] is slots[slot]["body"]
        for name in names:
            assert torch.allclose(memory[slot][name], slowly(slots[slot][name], found), atol=1e-7)
    assert (memory["v"]["bias"] >= slowly(slots["v"]["bias"].sqrt(), found) ** 2 - 1e-7).all(), (
        "never too small"
    )
    moved, _ = server.step(
        after, {name: torch.ones_like(value) for name, value in after.items()}, memory
    )
    assert moved["embedding"].shape == (800, 4), "training goes on"
    assert remap_slots({"m": {}}, names, found) == {"m": {}}
    assert remap_slots({}, names, found) == {}
    with pytest.raises(ValueError, match="no parameter tail"):
        remap_params(params, ["tail"], found)


def test_the_bias_is_the_sample_s_unigram() -> None:
    sample, tokenizer = texts()[:50], new("bpe")
    bias = unigram_bias(tokenizer, iter(sample))
    counts = Counter(i for text in sample for i in [*tokenizer.sequence(text)[1:]])
    total = sum(counts.values())
    expected = [math.log((counts[i] + 1) / (total + 800)) for i in range(800)]
    assert bias.tolist() == pytest.approx(expected, rel=1e-5)
    assert torch.logsumexp(bias, 0).item() == pytest.approx(0.0, abs=1e-5), "a distribution"
    assert counts[tokenizer.eos] == 50
    assert bias[0] == bias[1] == bias.min() < bias[tokenizer.eos]
