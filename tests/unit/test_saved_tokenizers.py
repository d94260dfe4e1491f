"""A saved tokenizer cuts texts as lexfed does, whoever opens it."""

import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from lexfed.corpus.catalogue import load as load_corpus
from lexfed.vocabulary import tokenizer as trained
from lexfed.vocabulary.export import completed, tokenizer_files
from lexfed.vocabulary.splitting import Symbols, spelled_out, words
from lexfed.vocabulary.tokenizer import Kind, TrainedTokenizer

KINDS: tuple[Kind, ...] = ("bpe", "word", "wordpiece", "unigram")
ODD = [
    "Η ΟΔΟΣ ΤΟΥ ΟΔΥΣΣΕΑΣ, Σ' ΑΥΤΟΣ. ΤΗΣ",
    "नमस्ते दुनिया, क्या हाल है?",
    "你好，世界！这是一个测试。",
    "مرحبا بالعالم، كَيْفَ حَالُكَ",
    "Привет, МИР — как дела?",
    "สวัสดีชาวโลก",
    "한국어 문장입니다.",
    "İstanbul'DA ıslak STRASSE ẞ",
    "👩‍👩‍👧‍👦 👍🏽 ok❤️ 🇩🇪!!",
    "a\u00a0b\u2003c\td\r\n e\u2028f\x85g\x1fh\u200bi",
    "don't I’ll '' x' 'y rock'n'roll",
    "½ ² Ⅷ ٣ 1,000.50 $5 _x_ a_b __",
    "</s> <s> <unk> <pad> ##ing Ġthe ▁the ▁ ##",
    "é e\u0301 \u0301x \u200d\u200d a\u200db",
    "",
    "  \n ",
    "x" * 150,
    "... -- !?!? (;-)",
]


@cache
def real() -> list[str]:
    return list(load_corpus("rotten_tomatoes"))[:1000]


@cache
def of(kind: Kind, lowercase: bool) -> TrainedTokenizer:
    texts = (words(text, lowercase, "single") for text in [*real(), *ODD])
    return trained.load(trained.train(texts, kind, 800))


def saved(tokenizer: TrainedTokenizer, lowercase: bool, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for name, data in tokenizer_files(tokenizer, lowercase).items():
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize(("kind", "lowercase"), [("bpe", False), *((kind, True) for kind in KINDS)])
def test_transformers_cuts_real_texts_as_lexfed_does(
    kind: Kind, lowercase: bool, tmp_path: Path
) -> None:
    ours, texts = of(kind, lowercase), [*real(), *ODD]
    theirs = PreTrainedTokenizerFast.from_pretrained(saved(ours, lowercase, tmp_path / "saved"))
    cut = [words(text, lowercase, "single") for text in texts]
    bare = theirs(texts, add_special_tokens=False)["input_ids"]
    assert bare == [ours.encode_words(one)[0] for one in cut]
    assert theirs(texts)["input_ids"] == [ours.sequence(one) for one in cut]
    assert (theirs.bos_token, theirs.eos_token) == (trained.BOS, trained.EOS)
    assert (theirs.pad_token, theirs.unk_token) == (trained.PAD, trained.UNK)
    for ids in bare[:50]:
        assert theirs.decode(ids, skip_special_tokens=True).removeprefix(" ") == ours.decode(ids)
    assert AutoTokenizer.from_pretrained(tmp_path / "saved")(texts[0]) == theirs(texts[0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_saved_file_is_as_good_to_lexfed_as_the_one_that_travels(kind: Kind) -> None:
    """And completing it again changes nothing."""
    ours = of(kind, True)
    for lowercase in (False, True):
        again = trained.load(completed(ours, lowercase))
        assert (again.tokens, again.kind) == (ours.tokens, ours.kind)
        assert again.byte_level == ours.byte_level
        for text in [*real()[:200], *ODD]:
            cut = words(text, True, "single")
            assert again.encode_words(cut) == ours.encode_words(cut)
        assert completed(again, lowercase) == again.data


def test_a_tokenizer_from_elsewhere_stays_as_it_came(tmp_path: Path) -> None:
    from tests.unit.test_trained import foreign

    for kind in ("bert", "gpt2"):
        data = foreign(kind).to_str().encode()
        ours = trained.load(data)
        assert completed(ours, lowercase=True) == data
        opened = PreTrainedTokenizerFast.from_pretrained(saved(ours, True, tmp_path / kind))
        assert opened.bos_token_id == ours.bos


@pytest.mark.parametrize("symbols", ["runs", "single"])
def test_the_rule_spelled_out_is_the_rule(symbols: Symbols) -> None:
    expression = re.compile(spelled_out(symbols))
    letters = "aA1_ '’\u200d\u200c\u0301👍🏽.-\n\u00a0नम्Σ½"

    @given(st.text(st.one_of(st.sampled_from(letters), st.characters(exclude_categories=["Cs"]))))
    def agree(text: str) -> None:
        assert expression.findall(text) == words(text, False, symbols)

    agree()
    # all that is assigned but for private use: every boundary of a class is in it
    points = [*range(0xD800), *range(0xF900, 0x1FC00), *range(0xE0000, 0xE0200)]
    assigned = "".join(map(chr, points))
    assert expression.findall(assigned) == words(assigned, False, symbols)
