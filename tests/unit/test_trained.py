"""Tokenizers against the plain library, against each other across processes, and on any script."""

import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from lexfed.core.errors import ConfigError, DataError
from lexfed.corpus.catalogue import load as load_corpus
from lexfed.vocabulary.tokenizer import (
    LEAST,
    SPECIAL,
    Kind,
    TrainedTokenizer,
    load,
    train,
    train_on_counts,
)
from tests.references import token_words as words

KINDS: tuple[Kind, ...] = ("bpe", "word", "wordpiece", "unigram")
ROOT = Path(__file__).parents[2]


@cache
def texts() -> list[list[str]]:
    return [words(text) for text in islice(load_corpus("rotten_tomatoes"), 1200)]


@cache
def trained(kind: Kind, size: int = 1000) -> TrainedTokenizer:
    return load(train(texts(), kind, size))


# --- words ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It's 'fine', isn't it?!", ["It's", "'", "fine", "'", ",", "isn't", "it", "?", "!"]),
        ("don’t e-mail snake_case 3.5", ["don’t", "e", "-", "mail", "snake_case", "3", ".", "5"]),
        ("हिन्दी में नमस्ते।", ["हिन्दी", "में", "नमस्ते", "।"]),
        ("العَرَبِيَّة لغة", ["العَرَبِيَّة", "لغة"]),
        ("日本語。中文", ["日本語", "。", "中文"]),
        ("e\u0301te\u0301 \u0301", ["e\u0301te\u0301", "\u0301"]),
        ("👩‍💻👍🏽!❤️", ["👩‍💻", "👍🏽", "!", "❤️"]),
        ("a\x1cb\x85c\u2028d\u3000e\u00a0f\tg\r\nh", list("abcdefgh")),
        ("\x00a\u200b", ["\x00", "a", "\u200b"]),
        ("a\ud800b", ["a", "\ufffd", "b"]),
        (" \n", []),
    ],
)
def test_words_of_any_script(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def slowly_cut(text: str) -> list[str]:
    """The rule, letter by letter."""
    found, i = [], 0
    while i < len(text):
        start, i = i, i + 1
        if text[start].isspace():
            continue
        if text[start].isalnum() or text[start] == "_":
            while i < len(text) and (
                (text[i].isalnum() or text[i] == "_")
                or (
                    text[i] in "'’"
                    and text[i - 1] not in "'’"
                    and i + 1 < len(text)
                    and (text[i + 1].isalnum() or text[i + 1] == "_")
                )
            ):
                i += 1
        found.append(text[start:i])
    return found


@given(
    st.text(
        st.characters(exclude_categories=("M", "Cs", "Sk"), exclude_characters="\u200c\u200d")
        | st.sampled_from("'’_ a")
    )
)
def test_words_are_cut_by_the_rule(text: str) -> None:
    assert words(text) == slowly_cut(text)


@given(
    st.text(st.characters() | st.sampled_from("'’_ \u200d\u0301\ud800"), max_size=40), st.booleans()
)
def test_words_stay_words(text: str, lowercase: bool) -> None:
    found = words(text, lowercase)
    assert words(" ".join(found), lowercase) == found
    assert all(words(word, lowercase) == [word] for word in found)


def test_words_may_be_lower_case() -> None:
    assert words("Ein ÄPFEL", lowercase=True) == ["ein", "äpfel"]
    assert words("Ein ÄPFEL") == ["Ein", "ÄPFEL"]


@pytest.mark.parametrize(
    "text", ["It's a well-known film, OK. ", "It’s a well-known café, हिन्दी में ok. "]
)
def test_cutting_a_million_words_takes_seconds(text: str) -> None:
    start = time.process_time()
    assert len(words(text * 25_000)) >= 225_000
    assert time.process_time() - start < 2, "a quarter of a million; about 0.3 s"


# --- training ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_size_and_special_tokens(kind: Kind) -> None:
    tokenizer = trained(kind)
    assert len(tokenizer.tokens) == len(set(tokenizer.tokens)) == 1000
    assert tokenizer.tokens[:4] == SPECIAL
    assert (tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.unk) == (0, 1, 2, 3)
    assert tokenizer.kind == kind
    assert tokenizer.vocabulary.ids[tokenizer.tokens[77]] == 77
    few = load(train([["a", "bc", "bc"]], kind, 1000))
    assert len(few.tokens) < 300, "no more than the text holds"
    assert few.decode(few.encode("bc a")) == "bc a"


def by_the_library(kind: Kind, size: int) -> Any:
    """Trained on text, with the pre-tokenizer at work, and nothing counted beforehand."""
    blanks, symbols = (
        pre_tokenizers.WhitespaceSplit(),
        pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False),
    )
    if kind == "bpe":
        tokenizer, pre = Tokenizer(models.BPE()), pre_tokenizers.Sequence([blanks, symbols])
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer: Any = trainers.BpeTrainer(
            vocab_size=size,
            show_progress=False,
            special_tokens=list(SPECIAL),
            initial_alphabet=alphabet,
        )
    else:
        tokenizer, pre = Tokenizer(models.WordLevel(unk_token="<unk>")), blanks
        trainer = trainers.WordLevelTrainer(
            vocab_size=size, show_progress=False, special_tokens=list(SPECIAL)
        )
    tokenizer.pre_tokenizer = pre
    tokenizer.train_from_iterator((" ".join(text) for text in texts()), trainer)
    return json.loads(tokenizer.to_str())["model"]


@pytest.mark.parametrize("kind", ["bpe", "word"])
def test_training_is_the_library_s(kind: Kind) -> None:
    assert json.loads(trained(kind).data)["model"] == by_the_library(kind, 1000)


def test_wordpiece_has_the_merges_of_the_library_but_for_ties() -> None:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=1000, show_progress=False, special_tokens=list(SPECIAL)
    )
    tokenizer.train_from_iterator((" ".join(text) for text in texts()), trainer)
    common = set(tokenizer.get_vocab()) & set(trained("wordpiece").tokens)
    assert len(common) > 950


def unigram_loss(tokenizer: Any, scores: dict[str, float]) -> float:
    """Nats per word of the best segmentations."""
    counts = Counter(word for text in texts() for word in text)
    lost = sum(
        n * -scores[token] for word, n in counts.items() for token in tokenizer.encode(word).tokens
    )
    return lost / sum(counts.values())


def test_the_unigram_is_no_worse_than_the_library_s() -> None:
    library = Tokenizer(models.Unigram())
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=1000, show_progress=False, special_tokens=list(SPECIAL), unk_token="<unk>"
    )
    library.train_from_iterator((" ".join(text) for text in texts()), trainer)
    theirs = unigram_loss(library, dict(json.loads(library.to_str())["model"]["vocab"]))
    ours_scores = dict(json.loads(trained("unigram").data)["model"]["vocab"])
    assert unigram_loss(trained("unigram").engine, ours_scores) < theirs
    assert sum(
        math.exp(score) for piece, score in ours_scores.items() if piece not in SPECIAL
    ) == pytest.approx(1)


@pytest.mark.parametrize("kind", KINDS)
def test_counts_do_as_well_as_text(kind: Kind) -> None:
    some = texts()[:300]
    counts = Counter(word for text in some for word in text)
    data = train(some, kind, 400)
    assert train_on_counts(counts, kind, 400) == data
    assert (
        train_on_counts(
            dict(sorted(counts.items(), reverse=True)) | {"absent": 0, "denied": -3}, kind, 400
        )
        == data
    )
    assert train_on_counts(counts | {"zzyzx": 500}, kind, 400) != data


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_large_counts_are_quick(kind: Kind) -> None:
    counts = {f"{word}{word[::-1]}": 250_000 for word in ("house", "river", "stone", "apple")}
    start = time.process_time()
    tokenizer = load(train_on_counts(counts, kind, 400))
    assert time.process_time() - start < 6, "a million words; about 0.5 s"
    assert tokenizer.encode_words(["househ", "houseesuoh"])[1][1] == 1


SCRIPT = """
import sys
from hashlib import sha256
from lexfed.vocabulary.tokenizer import train, load
assert not {"torch", "tokenizers"} & set(sys.modules), "ordinary runs load neither"
texts = [line.split() for line in sys.stdin]
for kind in ("bpe", "word", "wordpiece", "unigram"):
    print(sha256(train(texts, kind, 500)).hexdigest())
assert "torch" not in sys.modules
"""


def test_the_same_bytes_in_every_process() -> None:
    some = "\n".join(" ".join(text) for text in texts()[:250])
    settings = [
        {"PYTHONHASHSEED": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        {"PYTHONHASHSEED": "2", "RAYON_NUM_THREADS": "3", "TOKENIZERS_PARALLELISM": "true"},
        {"PYTHONHASHSEED": "3"},
    ]
    answers = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            input=some,
            cwd=ROOT,
            env=os.environ | setting,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for setting in settings
    }
    assert len(answers) == 1
    assert len(set(answers.pop().split())) == 4


def test_what_can_not_be_trained() -> None:
    for kind in KINDS:
        with pytest.raises(ConfigError, match=f"at least {LEAST[kind]}"):
            train([["a"]], kind, LEAST[kind] - 1)
        assert load(train([["a", "b"]], kind, LEAST[kind])).tokens[:4] == SPECIAL
        with pytest.raises(DataError, match="no words"):
            train([], kind, 300)
        for stray in ("two words", "", "\ud800", "\udc7f", "\udc80", "\udd00", "a\x1c"):
            with pytest.raises(DataError, match="not one word"):
                train([["a", stray]], kind, 300)
    with pytest.raises(ConfigError, match="not 'char'"):
        train([["a"]], "char", 300)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_more_letters_than_tokens(kind: Kind) -> None:
    """Of a script with thousands of letters the most frequent get in, and the size holds."""
    many = [
        [chr(0x4E00 + i) + chr(0x4E00 + j)] * (5 if i < 4 else 1)
        for i in range(60)
        for j in range(60)
    ]
    tokenizer = load(train(many, kind, 60))
    assert len(tokenizer.tokens) <= 60
    assert tokenizer.unk not in tokenizer.encode("\u4e00\u4e01")
    assert tokenizer.unk in tokenizer.encode(chr(0x4E00 + 59) * 2)


# --- use -----------------------------------------------------------------------------------------


@given(
    st.text(st.characters() | st.sampled_from("'’_ \u200d\u0301\ud800\u2581\u0120#"), max_size=40)
)
def test_byte_level_bpe_writes_every_text_back(text: str) -> None:
    tokenizer = trained("bpe")
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == " ".join(words(text))
    assert not set(ids) & {0, 1, 2, 3}


@pytest.mark.parametrize(
    "text",
    [
        "हिन्दी में नमस्ते",
        "العَرَبِيَّة",
        "日本語。",
        "👩‍💻👍🏽",
        "<s> <unk> [PAD] </s>",
        "Ġ ▁ ##x",
        "\x00\x7f\x80",
    ],
)
def test_no_script_breaks_a_tokenizer(text: str) -> None:
    for kind in KINDS:
        tokenizer = trained(kind)
        ids, lengths = tokenizer.encode_words(words(text))
        assert min(lengths) >= 1
        assert not set(ids) & {0, 1, 2}, "a text can't bring special tokens in"
        assert (tokenizer.unk in ids) <= (kind != "bpe")
    assert trained("bpe").decode(trained("bpe").encode(text)) == " ".join(words(text))
    assert trained("word").unk in trained("word").encode(text)


@pytest.mark.parametrize("kind", KINDS)
def test_words_keep_their_tokens(kind: Kind) -> None:
    tokenizer, text = trained(kind), texts()[3] + ["zzyzx"]
    ids, lengths = tokenizer.encode_words(text)
    assert (sum(lengths), len(lengths)) == (len(ids), len(text))
    assert ids == [i for word in text for i in tokenizer.encode(word)], (
        "no word knows its neighbours"
    )
    assert ids == tokenizer.engine.encode(" ".join(text)).ids, (
        "any other reader of the file gets the same"
    )
    assert tokenizer.encode_words(text) == (ids, lengths), "from memory too"
    assert tokenizer.sequence(text) == [1, *ids, 2]
    known = [word for word in text if tokenizer.unk not in tokenizer.encode(word)]
    assert tokenizer.decode(tokenizer.sequence(known)) == " ".join(known)
    assert ("zzyzx" in known) == (kind != "word")


def test_no_token_spans_two_words() -> None:
    tokens = trained("bpe").tokens[4:]
    assert all("Ġ" not in token[1:] for token in tokens)
    assert any(token == "Ġthe" for token in tokens), "the pair: the mark is there"
    assert "the" not in tokens or "Ġthe" in tokens
    loose = Tokenizer(models.BPE())  # without a pre-tokenizer tokens do span words
    loose.train_from_iterator(
        [" ".join(text) for text in texts()[:50]],
        trainers.BpeTrainer(vocab_size=300, show_progress=False),
    )
    assert any(" " in token[1:] for token in loose.get_vocab())


def test_transformers_reads_the_file(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    for kind in KINDS:
        tokenizer = trained(kind)
        (tmp_path / "tokenizer.json").write_bytes(tokenizer.data)
        other = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(tmp_path / "tokenizer.json")
        )
        text = " ".join(texts()[5])
        assert other(text)["input_ids"] == tokenizer.encode(text)
        assert other.decode(tokenizer.encode(text), skip_special_tokens=True) == tokenizer.decode(
            tokenizer.encode(text)
        )


def foreign(kind: str) -> Tokenizer:
    if kind == "bert":
        vocab = {
            token: i
            for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "fi", "##lm", "a"])
        }
        tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
        tokenizer.normalizer, tokenizer.pre_tokenizer = (
            normalizers.BertNormalizer(),
            pre_tokenizers.BertPreTokenizer(),
        )
        tokenizer.decoder = decoders.WordPiece()
        tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
        tokenizer.enable_truncation(1)
        tokenizer.enable_padding(length=9)
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer, tokenizer.decoder = (
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            decoders.ByteLevel(),
        )
        trainer = trainers.BpeTrainer(
            vocab_size=300,
            show_progress=False,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )
        tokenizer.train_from_iterator(["a film, a film"], trainer)
    return tokenizer


def test_tokenizers_made_elsewhere() -> None:
    bert = load(foreign("bert").to_str().encode())
    assert (bert.kind, bert.pad, bert.unk, bert.bos, bert.eos) == ("wordpiece", 0, 1, 2, 3)
    assert bert.encode_words(["A", "film", "\x00", "xyz"]) == ([6, 4, 5, 1, 1], [1, 2, 1, 1]), (
        "what it swallows is unknown"
    )
    gpt = load(foreign("gpt").to_str().encode())
    assert (gpt.kind, gpt.byte_level, gpt.pad, gpt.unk, gpt.bos, gpt.eos) == (
        "bpe",
        True,
        None,
        None,
        0,
        0,
    )
    ids, lengths = gpt.encode_words(["film", "a", "film"])
    assert ids[: lengths[0]] == ids[-lengths[2] :], "the first word has the form of all others"
    assert gpt.decode(ids) == "film a film"


def test_files_that_are_no_tokenizer() -> None:
    data = trained("word").data
    bare = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")).to_str().encode()
    gaps = (
        Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "<unk>": 7}, unk_token="<unk>"))
        .to_str()
        .encode()
    )
    for damaged, what in [
        (data[:-20], "not a tokenizer.json"),
        (b"", "not a tokenizer.json"),
        (b"{}", "not a tokenizer.json"),
        (b"\xff\xfe", "not a tokenizer.json"),
        (data.replace(b'"unk_token":"<unk>"', b'"unk_token":"<huh>"'), "can be used"),
        (bare, "lacks a special token"),
        (gaps, "gaps"),
    ]:
        with pytest.raises(DataError, match=what) as error:
            load(damaged)
        assert "\n" not in str(error.value)
