"""One rule cuts text into words; symbols come in runs or one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexfed.vocabulary.splitting import words

CASES = [
    ("It's fine... isn't it?!", ["it's", "fine", "...", "isn't", "it", "?!"]),
    ("naïve café — déjà-vu", ["naïve", "café", "—", "déjà", "-", "vu"]),
    ("नमस्ते दुनिया!!", ["नमस्ते", "दुनिया", "!!"]),
    ("a\ud800b", ["a", "\ufffd", "b"]),
    ("", []),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_symbols_come_in_runs_in_word_lists(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@given(st.text(max_size=60))
def test_the_two_ways_differ_in_symbols_alone(text: str) -> None:
    """Letters are cut alike; all runs, and all single symbols, are the same characters."""
    runs, single = (words(text, symbols=how) for how in ("runs", "single"))
    assert [w for w in runs if w[0].isalnum()] == [w for w in single if w[0].isalnum()]
    assert "".join(runs) == "".join(single)


@given(st.text(alphabet="ab1 '.,!-", max_size=40))
def test_the_quick_way_is_the_rule(text: str) -> None:
    """A text of words and blanks alone takes a short cut: one more symbol does not."""
    assert words(text) == words(f"{text} é")[:-1]
