"""The paper's experiment: rows and spans in closed form, the search, and both beside the wrong
table.
"""

from dataclasses import replace

import pytest

from experiments.audit.inversion_study import (
    Row,
    Target,
    cases,
    cells,
    closed_forms,
    places,
    private_texts,
    searches,
    target_of,
)
from lexfed.audits.guesses import texts
from lexfed.audits.inversion.dlg import Inversion
from lexfed.core.errors import DataError
from lexfed.core.seeds import root
from lexfed.corpus.catalogue import load
from lexfed.methods.fedrecon import is_private_token
from lexfed.models.bilstm import BiLSTMClassifier
from lexfed.models.model import Example, ModelOptions
from lexfed.vocabulary.splitting import words
from lexfed.vocabulary.tables.vectors import load as load_vectors
from lexfed.vocabulary.word import UNKNOWN, Vocabulary, WordTokenizer
from tests.conftest import needs_data

CLASSES = 4


@pytest.fixture(scope="module")
def news() -> tuple[Target, list[Example]]:
    public = load_vectors("glove_6b_100d_top100k.npz").head(5000)
    corpus = load("ag_news").where("splits", "test")
    digits = sorted(
        {word for text in corpus for word in words(text) if is_private_token(word)}
        - set(public.words)
    )
    tokens = (UNKNOWN, *public.words, *digits)
    tokenizer = WordTokenizer(Vocabulary(tokens, (0,) * len(tokens)))
    model = BiLSTMClassifier(ModelOptions(embedding=100, hidden=50, dropout=0.0), CLASSES)
    return target_of(model, tokens, public, CLASSES, root(0)), private_texts(
        corpus, tokenizer, 2, 32, root(1)
    )


@needs_data
def test_private_texts_have_three_digit_words(news: tuple[Target, list[Example]]) -> None:
    target, examples = news
    for example in examples:
        assert sum(is_private_token(target.tokens[i]) for i in example.ids) >= 3
        assert len(example.ids) <= 32
    with pytest.raises(DataError, match="only 0 of the texts"):
        private_texts(
            load("ag_news").where("splits", "test"),
            WordTokenizer(Vocabulary((UNKNOWN,), (0,))),
            1,
            32,
            root(1),
        )


@needs_data
def test_what_needs_no_search(news: tuple[Target, list[Example]]) -> None:
    """In pairs: rows show all of FedAvg, of FedRecon all but digits; a span shows all, and
    beside another table nothing.
    """
    target, examples = news
    rows = list(closed_forms(target, examples, places(2, (1, 2)), root(0)))
    assert {(row.batch, row.first, row.sentences) for row in rows} == {
        (1, 0, 1),
        (1, 1, 1),
        (2, 0, 2),
    }
    for size in (1, 2):
        cell = {
            (row.attack, row.method, row.decoding): row for row in cells(rows) if row.batch == size
        }
        read, hidden = cell["rows", "fedavg", "-"], cell["rows", "fedrecon", "-"]
        assert (read.precision, read.recall, read.ptlr) == (1, 1, 1)
        assert (hidden.precision, hidden.ptlr) == (1, 0)
        right, wrong = (cell["span", "fedevocab", decoding] for decoding in ("right", "wrong"))
        assert (right.recall, right.ptlr) == (1, 1)
        assert (wrong.recall or 0) < 0.05 < (cell["prior", "-", "-"].recall or 0) < 0.5


@needs_data
def test_the_search_row_by_row(news: tuple[Target, list[Example]]) -> None:
    target, examples = news
    options = Inversion(root(0), steps=40)
    rows = list(searches(target, examples, [(1, 0), (2, 0)], options))
    for size in (1, 2):
        cell = {(row.method, row.decoding): row for row in rows if row.batch == size}
        wrong, right = (cell["fedevocab", decoding] for decoding in ("wrong", "right"))
        assert (wrong.recall or 0) < 0.05, (
            "the paper's figure: decoded with a table that is not the client's"
        )
        assert (right.recall or 0) > (wrong.recall or 0) + 0.1
        assert cell["fedrecon", "wrong"].ptlr == 0
        assert (cell["fedavg", "moved rows"].recall or 0) >= (right.recall or 0)
        assert (right.rouge_1 or 0) >= (right.rouge_l or 0) >= (wrong.rouge_l or 0)
    again = list(searches(target, examples, [(1, 0)], options))
    assert [replace(row, seconds=0) for row in again] == [
        replace(row, seconds=0) for row in rows if row.batch == 1
    ]


@needs_data
def test_tokens_that_every_text_has_do_not_count(news: tuple[Target, list[Example]]) -> None:
    target, examples = news
    known = examples[0].ids[0]
    target = replace(target, prior=target.prior[target.prior != known])
    rows = {
        row.attack: row
        for row in closed_forms(target, examples, [(1, 0)], root(0))
        if row.method != "fedrecon"
    }
    assert rows["rows"].precision == 1
    assert rows["rows"].recall == 1


def test_texts_are_beside_the_best_guess_of_their_length() -> None:
    true = [["a", "b", "c"], ["d", "e", "f"], ["g"]]
    guessed = [["d", "e", "x"], ["c", "b", "a"], ["g"]]
    rouge = texts(true, guessed)
    assert rouge == pytest.approx(
        {"rouge_1": (1 + 2 / 3 + 1) / 3, "rouge_2": 0.5 / 3, "rouge_l": (1 / 3 + 2 / 3 + 1) / 3}
    )


@needs_data
def test_cases_stand_side_by_side(news: tuple[Target, list[Example]]) -> None:
    target, examples = news
    case = next(cases(target, examples, Inversion(root(0), steps=20)))
    assert case.original == " ".join(target.tokens[i] for i in examples[0].ids)
    assert {"fedavg, right", "fedrecon, wrong", "fedevocab, wrong", "fedevocab, right"} <= set(
        case.read
    )
    assert all(len(text.split()) == len(examples[0].ids) for text in case.read.values())


def test_cells_are_means_over_texts() -> None:
    one = Row("dlg", "fedavg", "right", 2, 0, 2, 1.0, 0.5, 0.6, None)
    last = replace(one, first=2, sentences=1, precision=0.4, ptlr=0.5)
    (cell,) = cells([one, last])
    assert (cell.sentences, cell.precision, cell.ptlr) == (3, pytest.approx(0.8), 0.5)
