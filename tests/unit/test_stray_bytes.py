"""What a model writes are bytes, and not all of them are text: half a letter of another script
stays what it is, and is not made a sign that nobody ever wrote.
"""

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import chain, islice
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from lexfed.core.seeds import root
from lexfed.corpus.catalogue import load as load_corpus
from lexfed.federation import ServerState
from lexfed.language.language_task import TOKENIZER, tokenizer_of
from lexfed.language.soft_targets import Reader, paired
from lexfed.language.switching import new_tokenizer, switched, written
from lexfed.language.teaching import Written
from lexfed.vocabulary import learned
from lexfed.vocabulary.splitting import words, words_with_stray_bytes
from lexfed.vocabulary.stray_bytes import has_stray, in_symbols, readable, symbols, text_of, whole
from lexfed.vocabulary.tokenizer import SPECIAL, Kind, TrainedTokenizer, load, train
from tests.references import token_words
from tests.unit.test_teaching import OPTIONS, task_of

REPLACED = "ï¿½"  # U+FFFD, as byte-level tokenizers have its three bytes
HALF = "я".encode()[:1].decode("utf-8", "surrogateescape")


@cache
def tokenizer_of_kind(kind: Kind) -> TrainedTokenizer:
    texts = [token_words(text) for text in islice(load_corpus("rotten_tomatoes"), 300)]
    return load(train(texts, kind, 700))


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


any_bytes = st.lists(st.integers(0, 255), max_size=30).map(bytes)


# --- words ----------------------------------------------------------------------------------------


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), st.booleans())
def test_text_is_cut_as_ever(text: str, lowercase: bool) -> None:
    assert words_with_stray_bytes(text, lowercase) == words(text, lowercase, "single")


def test_half_a_letter_is_a_letter() -> None:
    assert words_with_stray_bytes(f"a{HALF}b c! {HALF}", True) == [f"a{HALF}b", "c", "!", HALF]
    assert words_with_stray_bytes(f"\U0001f469\u200d{HALF} b", True)[-1] == "b"
    joined = words_with_stray_bytes(f"!\u200d{HALF}", True)
    assert joined == ["!\u200d", HALF], "no symbol takes half a letter along"


@given(any_bytes)
def test_words_hold_all_but_the_blanks(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    assert "".join(words_with_stray_bytes(text, False)) == "".join(text.split())


def test_who_is_whole_and_who_can_be_read() -> None:
    assert whole(["a", f"b{HALF}", "я", "\ufffd"]) == ["a", "я", "\ufffd"]
    assert readable(f"b{HALF}") == "b\ufffd"
    assert readable("я") == "я"


# --- bytes and tokens -----------------------------------------------------------------------------


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30))
def test_symbols_are_those_of_the_library(text: str) -> None:
    theirs = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    assert in_symbols(text) == theirs.pre_tokenize_str(text)[0][0]


@given(any_bytes)
def test_symbols_lose_nothing(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    assert text_of(in_symbols(text)) == text
    assert text_of([*in_symbols(text), "▁x"]) == f"{text}▁x"


def drawn(tokenizer: TrainedTokenizer, places: list[int]) -> list[int]:
    """Any tokens that a model may write: no special ones."""
    special = {tokenizer.bos, tokenizer.eos, tokenizer.unk, tokenizer.pad}
    can = [i for i in range(len(tokenizer.tokens)) if i not in special]
    return [can[place % len(can)] for place in places]


@given(st.lists(st.integers(0, 10**6), max_size=20))
def test_what_was_written_is_the_tokens_bytes(places: list[int]) -> None:
    tokenizer = tokenizer_of_kind("bpe")
    ids = drawn(tokenizer, places)
    byte_of = {symbol: byte for byte, symbol in symbols().items()}
    told = bytes(byte_of[symbol] for i in ids for symbol in tokenizer.tokens[i])
    found = tokenizer.decode_bytes(ids)
    assert as_bytes(found) == told.removeprefix(b" ")
    if not has_stray(found):
        assert found == tokenizer.decode(ids)


@given(st.lists(st.integers(0, 10**6), max_size=20))
def test_words_that_were_written_are_written_again(places: list[int]) -> None:
    """Byte by byte, but for the blanks between them."""
    tokenizer = tokenizer_of_kind("bpe")
    text = tokenizer.decode_bytes(drawn(tokenizer, places))
    cut = words_with_stray_bytes(text, False)
    again = tokenizer.decode_bytes(tokenizer.encode_words(cut)[0])
    assert as_bytes(again).split() == [as_bytes(word) for word in cut]


def test_a_broken_word_begins_as_its_whole_beginning() -> None:
    """With the blank before it, and the tokens that training has learned for that."""
    tokenizer = tokenizer_of_kind("bpe")
    whole_ids, broken = (tokenizer.encode_words([word])[0] for word in ("the", f"the{HALF}"))
    assert tokenizer.tokens[whole_ids[0]] == "Ġthe"
    assert broken[: len(whole_ids)] == whole_ids


@pytest.mark.parametrize("kind", ["word", "wordpiece", "unigram"])
def test_who_knows_letters_alone_reads_them_as_unknown_signs(kind: Kind) -> None:
    tokenizer = tokenizer_of_kind(kind)
    assert tokenizer.encode_words([f"a{HALF}"]) == tokenizer.encode_words(["a\ufffd"])
    ids = tokenizer.encode_words(["the", "boat"])[0]
    assert tokenizer.decode_bytes(ids) == tokenizer.decode(ids)


# --- tokenizers made elsewhere --------------------------------------------------------------------


def foreign(
    alphabet: str, lowercase: bool = False, unk: bool = False, digits: bool = False
) -> TrainedTokenizer:
    """Byte-level, of single symbols, with tokens that somebody added."""
    tokens = ["<s>", "</s>", *(["<unk>"] if unk else []), *alphabet]
    model = models.BPE({token: i for i, token in enumerate(tokens)}, [])
    engine = Tokenizer(model)
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    cut = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])
    engine.pre_tokenizer = cut if digits else plain
    engine.decoder = decoders.ByteLevel()
    if lowercase:
        engine.normalizer = normalizers.Lowercase()
    engine.add_special_tokens(["<s>", "</s>", "<mask>"])
    engine.add_tokens([AddedToken("New York", normalized=False)])
    return load(engine.to_str().encode())


ALL = "".join(symbols().values())


def test_special_tokens_are_left_out_and_others_say_themselves() -> None:
    tokenizer = foreign(ALL)
    ids = {token: i for i, token in enumerate(tokenizer.tokens)}
    half = ids[in_symbols(HALF)]
    assert tokenizer.decode_bytes([ids["<mask>"], ids["a"], half]) == f"a{HALF}"
    assert tokenizer.decode_bytes([half, ids["New York"]]) == f"{HALF}New York"
    assert tokenizer.decode_bytes([ids["<mask>"], ids["a"]]) == "a"


def test_a_tokenizer_that_does_something_first_reads_letters() -> None:
    tokenizer = foreign(ALL, lowercase=True)
    assert tokenizer.encode_words([f"A{HALF}"]) == tokenizer.encode_words(["a\ufffd"])


def test_so_does_one_that_cuts_words_in_a_way_of_its_own() -> None:
    assert foreign(ALL).reads_bytes
    tokenizer = foreign(ALL, digits=True)
    assert not tokenizer.reads_bytes
    assert tokenizer.encode_words([f"2019{HALF}"]) == tokenizer.encode_words(["2019\ufffd"])


def test_a_broken_word_of_which_nothing_is_known_is_an_unknown_one() -> None:
    tokenizer = foreign("ab", unk=True)
    assert tokenizer.encode_words([HALF, "a"]) == ([2, 3], [1, 1])


# --- a model that writes bytes --------------------------------------------------------------------


@cache
def of_bytes() -> ServerState:
    """A model that has learned nothing writes any byte."""
    old = learned.learn([["history", "of", "the", "county", "in", "a", "war"]], "bpe", 290, "x")
    params = task_of().model.init(len(old.tokenizer.tokens), root(0))
    return ServerState(params=dict(params), blobs={TOKENIZER: old.to_bytes()})


def test_the_words_of_a_model_are_the_bytes_that_it_wrote() -> None:
    state = of_bytes()
    old = tokenizer_of(state)
    texts = list(written(task_of(), OPTIONS, state.params, old, root(4), 500))
    assert sum(has_stray(word) for text in texts for word in text.words) > 100
    for text in texts:
        told = text_of(old.tokenizer.tokens[i] for i in text.drawn if i >= len(SPECIAL))
        assert "".join(text.words) == "".join(told.lower().split())


@pytest.mark.parametrize("kind", ["bpe", "word", "wordpiece", "unigram"])
def test_a_tokenizer_is_learned_from_whole_words(kind: Kind) -> None:
    state, options = of_bytes(), OPTIONS
    if kind != "bpe":
        options = OPTIONS.__class__(switch=(1,), sample_words=2000, sample_length=20, kind=kind)
    text, new = new_tokenizer(task_of(), options, state, root(4))
    assert new.words == dict(Counter(chain.from_iterable(map(whole, text))))
    assert any(has_stray(word) for words in text for word in words), "the pair"
    long = [token for token in new.tokenizer.tokens if REPLACED in token or "\ufffd" in token]
    assert not long


@pytest.mark.parametrize("targets", ["hard", "soft"])
def test_a_switch_goes_through_all_of_it(targets: Literal["hard", "soft"]) -> None:
    options = replace(OPTIONS, teach_targets=targets, teach_epochs=1)
    after = switched(task_of(), options, of_bytes(), root(2))
    assert tokenizer_of(after).tokenizer.reads_bytes
    assert all(bool(value.isfinite().all()) for value in after.params.values())


def test_a_sound_text_with_stray_bytes_is_paired() -> None:
    old = tokenizer_of_kind("bpe")
    new = load(train([["the", "boat"]] * 9, "bpe", 280))
    ids = old.encode_words(["the", f"b{HALF}at", "the"])[0]
    cut = words_with_stray_bytes(old.decode_bytes(ids), True)
    assert len(cut) == 3
    pair = paired(Written(cut, True, ids), Reader(old, lowercase=True), new)
    assert len(pair.at_old) == 4, "three words and the end"
    assert new.decode_bytes(pair.new[1:-1].tolist()) == f"the b{HALF}at the"
