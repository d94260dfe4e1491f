from hypothesis import given
from hypothesis import strategies as st

from lexfed.vocabulary.splitting import _ASCII, words
from lexfed.vocabulary.word import WordTokenizer, count_words, most_frequent
from tests.conftest import corpus_of


def test_words_of_any_script() -> None:
    assert words("It's GREAT, isn’t it?!") == ["it's", "great", ",", "isn’t", "it", "?!"]
    assert words("Привет, мир") == ["привет", ",", "мир"]


def test_the_most_frequent_words_with_ties_in_order() -> None:
    vocabulary = most_frequent({"b": 2, "a": 2, "c": 5, "d": 1}, size=4, minimum=2)
    assert vocabulary.tokens == ("<unk>", "c", "a", "b")
    assert vocabulary.counts == (1, 5, 2, 2), "what is left out is counted as unknown"


def test_encode_and_decode() -> None:
    tokenizer = WordTokenizer(most_frequent(count_words(corpus_of(["a b a"], [0])), 10, 1))
    assert tokenizer.decode(tokenizer.encode("a b c")) == "a b <unk>"
    assert tokenizer.encode("") == [0], "an empty text is one unknown word"


@given(st.text(st.sampled_from("ab Z9_.' -\n\té"), max_size=30))
def test_the_short_cut_for_plain_words_changes_nothing(text: str) -> None:
    if text.isascii():
        assert words(text) == _ASCII["runs"].findall(text.lower())
