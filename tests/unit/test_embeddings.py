"""What word vectors are worth, against slow references; and where the word lists for it are found."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch

from lexfed.core.errors import DataError
from lexfed.corpus import wordsim
from lexfed.metrics import embeddings
from lexfed.metrics.embeddings import analogies, nearest, neighbours, overlap, similarity
from lexfed.vocabulary.tables.vectors import load
from lexfed.vocabulary.word import Vocabulary
from tests.conftest import DATA, needs_data
from tests.references import keyed_vectors

WORDS = [f"w{i}" for i in range(60)]
IDS = {word: i for i, word in enumerate(WORDS)}


def table(rows: int = 60, dimension: int = 7, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, dimension)).astype(np.float32)


def at_degrees(*degrees: float) -> np.ndarray:
    radians = np.radians(degrees)
    return np.stack([np.cos(radians), np.sin(radians)], 1).astype(np.float32)


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    """The obvious one."""
    length = float(
        np.linalg.norm(one.astype(np.float64)) * np.linalg.norm(other.astype(np.float64))
    )
    return float(one.astype(np.float64) @ other.astype(np.float64)) / length if length else 0.0


def slow_nearest(vectors: np.ndarray, row: int, k: int) -> list[int]:
    others = [i for i in range(len(vectors)) if i != row]
    return sorted(others, key=lambda i: (-cosine(vectors[row], vectors[i]), i))[:k]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of four rows of sixty, the last one shorter, so that the borders between blocks
    are tested.
    """
    monkeypatch.setattr(embeddings, "CELLS", 4 * 60 + 7)


# --- similarity ----------------------------------------------------------------------------------


def test_spearman_by_hand() -> None:
    """Cosines fall with the angle; people swap the last two of five: rho = 1 - 6 * 2 / (5 * 24)
    = 0.9.
    """
    ids = {word: i for i, word in enumerate(["x", "a", "b", "c", "d", "e"])}
    pairs = [("x", "a", 9.0), ("x", "b", 8.0), ("x", "c", 7.0), ("x", "d", 1.0), ("x", "e", 2.0)]
    result = similarity(ids, at_degrees(0, 10, 30, 50, 70, 90), pairs)
    assert result.spearman == pytest.approx(0.9)
    assert (result.pairs, result.found, result.oov) == (5, 5, 0.0)


def test_equal_scores_share_their_rank() -> None:
    """Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5) = sqrt(0.9)."""
    ids = {word: i for i, word in enumerate("xabcd")}
    pairs = [("x", "a", 9.0), ("x", "b", 5.0), ("x", "c", 5.0), ("x", "d", 1.0)]
    assert similarity(ids, at_degrees(0, 10, 30, 50, 70), pairs).spearman == pytest.approx(0.9**0.5)


@pytest.mark.parametrize("seed", range(5))
def test_spearman_is_scipys_and_gensims(seed: int, tmp_path: Path) -> None:
    generator = np.random.default_rng(seed)
    vectors = table(seed=seed)
    words = [generator.choice(WORDS, 2, replace=False).tolist() for _ in range(80)]
    pairs = [(one, other, float(generator.integers(0, 9))) for one, other in words]
    result = similarity(IDS, vectors, pairs)
    expected = scipy.stats.spearmanr(
        [s for *_, s in pairs], [cosine(vectors[IDS[a]], vectors[IDS[b]]) for a, b, _ in pairs]
    )
    assert result.spearman == pytest.approx(expected.statistic, abs=1e-4)
    (tmp_path / "pairs").write_text("".join(f"{a}\t{b}\t{s}\n" for a, b, s in pairs))
    keyed = keyed_vectors(Vocabulary(tuple(WORDS), (1,) * 60), torch.from_numpy(vectors))
    theirs = keyed.evaluate_word_pairs(str(tmp_path / "pairs"), case_insensitive=False)
    assert result.spearman == pytest.approx(theirs[1].statistic, abs=1e-4)


def test_words_that_are_missing_stand_beside_the_figure() -> None:
    pairs = [
        ("w1", "w2", 1.0),
        ("w3", "w4", 2.0),
        ("w5", "w6", 3.0),
        ("w7", "nowhere", 4.0),
        ("no", "where", 5.0),
    ]
    result = similarity(IDS, table(), pairs)
    alone = similarity(IDS, table(), pairs[:3])
    assert result.spearman == alone.spearman
    assert (result.pairs, result.found) == (5, 3)
    assert result.oov == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("vectors", "pairs"),
    [
        (table(), []),
        (table(), [("w1", "w2", 1.0), ("w3", "w4", 2.0)]),
        (table(), [("w1", "w2", 5.0), ("w3", "w4", 5.0), ("w5", "w6", 5.0)]),
        (
            np.ones((60, 3), dtype=np.float32),
            [("w1", "w2", 1.0), ("w3", "w4", 2.0), ("w5", "w6", 3.0)],
        ),
        (
            np.zeros((60, 3), dtype=np.float32),
            [("w1", "w2", 1.0), ("w3", "w4", 2.0), ("w5", "w6", 3.0)],
        ),
        (
            np.full((60, 3), np.nan, dtype=np.float32),
            [("w1", "w2", 1.0), ("w3", "w4", 2.0), ("w5", "w6", 3.0)],
        ),
    ],
    ids=["none", "two", "one score", "one direction", "zero", "nan"],
)
def test_where_ranks_have_no_meaning_there_is_no_figure(
    vectors: np.ndarray, pairs: list[tuple[str, str, float]]
) -> None:
    assert similarity(IDS, vectors, pairs).spearman is None


def test_rows_without_a_direction_are_like_nothing() -> None:
    vectors = at_degrees(0, 10, 30, 90, 0, 0)
    vectors[4], vectors[5] = 0, np.nan
    pairs = [("a", "b", 9.0), ("a", "c", 8.0), ("a", "d", 2.0), ("a", "e", 2.0), ("a", "f", 2.0)]
    ids = {word: i for i, word in enumerate("abcdef")}
    vectors[3] = [
        0,
        1,
    ]  # exactly upright: cosine 0, as for the zero row and the one that is no number
    assert similarity(ids, vectors, pairs).spearman == pytest.approx(1.0)


def test_rounding_makes_no_ranks() -> None:
    """Words and themselves, or tables collapsed onto one line, have cosines of 1 but for the
    last bits.
    """
    assert (
        similarity(IDS, table(), [(word, word, float(i)) for i, word in enumerate(WORDS)]).spearman
        is None
    )
    line = table(rows=1) * np.abs(table(dimension=1))
    assert (
        similarity(IDS, line, [("w1", "w2", 1.0), ("w3", "w4", 2.0), ("w5", "w6", 3.0)]).spearman
        is None
    )


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e30])
def test_lengths_do_not_matter(scale: float) -> None:
    pairs = [(WORDS[i], WORDS[i + 20], float(i)) for i in range(20)]
    assert (
        similarity(IDS, table() * np.float32(scale), pairs).spearman
        == similarity(IDS, table(), pairs).spearman
    )
    assert np.array_equal(
        nearest(table() * np.float32(scale), [3], 5)[0], nearest(table(), [3], 5)[0]
    )


# --- analogies -----------------------------------------------------------------------------------


def slow_analogies(
    vectors: np.ndarray, questions: list[tuple[str, ...]], most: int
) -> tuple[int, int]:
    units = [v / np.linalg.norm(v) for v in vectors]
    right = asked = 0
    for _, *words in questions:
        if any(IDS.get(word, most) >= most for word in words):
            continue
        a, b, c, d = (IDS[word] for word in words)
        target = units[b] - units[a] + units[c]
        scores = {
            i: float(target @ units[i]) for i in range(min(most, len(units))) if i not in (a, b, c)
        }
        asked += 1
        right += max(scores, key=lambda i: scores[i]) == d
    return right, asked


def questions_about(vectors: np.ndarray, seed: int) -> list[tuple[str, str, str, str, str]]:
    """Random questions, every other one with the word that a nearest-neighbour search would
    answer.
    """
    generator = np.random.default_rng(seed)
    questions = []
    for i in range(200):
        a, b, c, d = (int(x) for x in generator.choice(len(vectors), 4, replace=False))
        if i % 2:
            units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
            d = next(
                int(x)
                for x in np.argsort(-(units @ (units[b] - units[a] + units[c])))
                if x not in (a, b, c)
            )
        questions.append((f"section {i % 3}", WORDS[a], WORDS[b], WORDS[c], WORDS[d]))
    return questions


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("most", [10, 40, 60, 30_000])
def test_analogies_are_those_of_a_loop(most: int) -> None:
    vectors = table(seed=3)
    questions = [
        *questions_about(vectors, seed=4),
        ("x", "w1", "w2", "w3", "nowhere"),
        ("x", "no", "w2", "w3", "w4"),
    ]
    right, asked = slow_analogies(vectors, questions, most)
    result = analogies(IDS, vectors, questions, most)
    assert (result.asked, result.skipped) == (asked, 202 - asked)
    assert result.accuracy == (right / asked if asked else None)
    assert most < 60 or right > 90


def test_analogies_are_gensims(tmp_path: Path) -> None:
    vectors = table(seed=5)
    questions = questions_about(vectors, seed=6)
    (tmp_path / "questions").write_text(
        ": all\n" + "".join(f"{a} {b} {c} {d}\n" for _, a, b, c, d in questions)
    )
    keyed = keyed_vectors(Vocabulary(tuple(WORDS), (1,) * 60), torch.from_numpy(vectors))
    score, _ = keyed.evaluate_word_analogies(str(tmp_path / "questions"), case_insensitive=False)
    assert analogies(IDS, vectors, questions).accuracy == pytest.approx(score)


def test_a_parallelogram_is_completed() -> None:
    """man + (queen - king) points at woman. The nearest word to the target is a word of the
    question, and no answer.
    """
    ids = {word: i for i, word in enumerate(["man", "king", "queen", "woman", "stone"])}
    vectors = np.array(
        [[1, 0, 1], [1, 1, 1], [-1, 1, 1], [-1, 0, 1], [0, -1, -1]], dtype=np.float32
    )
    result = analogies(
        ids,
        vectors,
        [("family", "king", "queen", "man", "woman"), ("family", "king", "queen", "man", "stone")],
    )
    assert (result.accuracy, result.asked, result.skipped) == (0.5, 2, 0)


def test_questions_that_cannot_be_asked() -> None:
    nothing = analogies(IDS, table(), [("s", "w1", "w2", "w3", "w59")], most=50)
    assert (nothing.accuracy, nothing.asked, nothing.skipped) == (None, 0, 1)
    assert analogies({}, np.empty((0, 4), dtype=np.float32), []).accuracy is None
    assert analogies(IDS, table(), [], most=0).asked == 0


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_no_direction_is_no_answer(value: float) -> None:
    """All candidates tie, and the first of them would by chance be right."""
    vectors = np.full((60, 3), value, dtype=np.float32)
    assert analogies(IDS, vectors, [("s", "w1", "w2", "w3", "w0")]).accuracy == 0.0
    three = {word: IDS[word] for word in ("w0", "w1", "w2")}
    assert (
        analogies(three, at_degrees(0, 50, 90), [("s", "w0", "w1", "w2", "w0")]).accuracy == 0.0
    ), "no candidate is left"


# --- neighbours ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("k", [1, 10, 59, 200])
def test_nearest_is_a_sorted_loop(k: int) -> None:
    vectors, rows = table(seed=8), [5, 0, 59, 5, *range(20, 33)]
    found, cosines = nearest(vectors, rows, k)
    assert found.shape == cosines.shape == (len(rows), min(k, 59))
    assert found.tolist() == [slow_nearest(vectors, row, k) for row in rows]
    assert cosines == pytest.approx(
        np.array(
            [
                [cosine(vectors[row], vectors[i]) for i in near]
                for row, near in zip(rows, found, strict=True)
            ]
        ),
        abs=1e-6,
    )


@pytest.mark.parametrize(
    ("rows", "k", "shape"), [([], 3, (0, 3)), ([1, 2], 0, (2, 0)), ([1], -1, (1, 0))]
)
def test_nearest_of_nothing(rows: list[int], k: int, shape: tuple[int, int]) -> None:
    assert nearest(table(), rows, k)[0].shape == shape
    assert nearest(table(rows=1), [0], 5)[0].shape == (1, 0), "a word alone has no neighbours"


def test_nearest_takes_any_float_and_changes_nothing() -> None:
    half = table().astype(np.float16)
    half.flags.writeable = False
    assert nearest(half, [3], 4)[0].tolist() == [slow_nearest(half, 3, 4)]


def test_neighbours_are_words() -> None:
    words = ["x", "away", "close", "closer", "nothing"]
    ids = {word: i for i, word in enumerate(words)}
    vectors = np.concatenate([at_degrees(0, 120, 40, 20), np.zeros((1, 2), dtype=np.float32)])
    near = neighbours(ids, words, vectors, "x", 4)
    assert [word for word, _ in near] == ["closer", "close", "nothing", "away"]
    assert [value for _, value in near] == pytest.approx(
        [np.cos(np.radians(20)), np.cos(np.radians(40)), 0.0, -0.5]
    )
    assert neighbours(ids, words, vectors, "x", 1) == near[:1]
    assert neighbours(ids, words, vectors, "unheard-of", 3) == [], "a word we do not know has none"
    assert neighbours(ids, words, vectors, "nothing", 3) == [], (
        "a word without a direction has none"
    )


# --- overlap -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("k", [1, 10, 100])
def test_overlap_is_that_of_sets(k: int) -> None:
    one, rows = table(seed=1), [3, 7, 41, *range(10, 20)]
    other = np.concatenate(
        [one, table(dimension=3, seed=2)], axis=1
    )  # related, and of another dimension
    shares = [
        len(set(slow_nearest(one, r, k)) & set(slow_nearest(other, r, k))) / min(k, 59)
        for r in rows
    ]
    assert overlap(one, other, rows, k) == pytest.approx(np.mean(shares))
    assert 0 < np.mean(shares) < 1 or k == 100


def test_overlap_knows_only_directions() -> None:
    one, rows = table(), list(range(60))
    turn = np.linalg.qr(table(rows=7, seed=9))[0]
    assert overlap(one, one, rows) == 1.0
    assert overlap(one, 3 * one @ turn, rows) == pytest.approx(1.0)
    assert 0 < (overlap(one, table(seed=12), rows) or 0) < 0.4, "by chance: 10 of 59"


def test_overlap_of_rows_that_were_never_trained_is_none() -> None:
    one = table()
    one[[1, 2]] = 0
    other = one.copy()
    other[2], other[3] = table(seed=4)[2], np.nan
    assert overlap(one, other, [1, 2, 3]) == 0.0
    assert overlap(one, one, [1, 2, 3, 4]) == 0.5
    assert overlap(one, one, []) is None
    assert overlap(one[:1], one[:1], [0]) is None, "a word alone has no neighbours"
    with pytest.raises(ValueError, match="60 and 59 rows"):
        overlap(one, one[:59], [1])


# --- the word lists ------------------------------------------------------------------------------


@pytest.fixture(params=["LEXFED_DATA", "gensim"])
def both_places(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "gensim":
        monkeypatch.delenv("LEXFED_DATA", raising=False)
    elif not (Path(DATA or "") / "wordsim").is_dir():
        pytest.skip("LEXFED_DATA has no word lists")


@pytest.mark.usefixtures("both_places")
def test_the_lists_are_what_they_are_said_to_be() -> None:
    assert wordsim.pairs("wordsim353")[:2] == (("love", "sex", 6.77), ("tiger", "cat", 7.35))
    assert wordsim.pairs("simlex999")[0] == ("old", "new", 1.58)
    assert (len(wordsim.pairs("wordsim353")), len(wordsim.pairs("simlex999"))) == (353, 999)
    questions = wordsim.analogies()
    assert questions[0] == ("capital-common-countries", "athens", "greece", "baghdad", "iraq")
    assert (len(questions), len({section for section, *_ in questions})) == (19_544, 14)
    assert all(word == word.lower() for question in questions for word in question[1:])
    assert wordsim.pairs("wordsim353") is wordsim.pairs("wordsim353"), "read once"


def test_ones_own_lists_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wordsim").mkdir()
    (tmp_path / "wordsim" / "simlex999.txt").write_text(
        "# mine\n\nBär\tÉlan\t3\r\nnew york\ttown\t4.5", encoding="utf-8"
    )
    (tmp_path / "wordsim" / "questions-words.txt").write_text(": one\nA b C d\n\n: two\ne F g H\n")
    monkeypatch.setenv("LEXFED_DATA", str(tmp_path))
    assert wordsim.pairs("simlex999") == (("bär", "élan", 3.0), ("new york", "town", 4.5))
    assert wordsim.analogies() == (("one", "a", "b", "c", "d"), ("two", "e", "f", "g", "h"))
    assert len(wordsim.pairs("wordsim353")) == 353, "the rest still comes from gensim"


def test_lists_that_are_nowhere_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEXFED_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "gensim", None)  # as if it were not installed
    for ask in (lambda: wordsim.pairs("wordsim353"), wordsim.analogies):
        with pytest.raises(DataError, match=r"LEXFED_DATA.*gensim") as error:
            ask()
        assert "\n" not in str(error.value)
    with pytest.raises(DataError, match="did you mean 'simlex999'"):
        wordsim.pairs("simlex")


@pytest.mark.parametrize(
    ("file", "content", "line"),
    [
        ("wordsim353.tsv", b"a\tb\t1\na\tb\n", 2),
        ("wordsim353.tsv", b"# x\na\tb\tmuch\n", 2),
        ("wordsim353.tsv", b"a\tb\tnan\n", 1),
        ("wordsim353.tsv", b"\xff\xfe", None),
        ("wordsim353.tsv", b"# nothing\n", None),
        ("questions-words.txt", b": s\na b c\n", 2),
        ("questions-words.txt", b"a b c d\n", 1),
    ],
)
def test_damaged_lists_are_one_line(
    file: str, content: bytes, line: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wordsim").mkdir()
    (tmp_path / "wordsim" / file).write_bytes(content)
    monkeypatch.setenv("LEXFED_DATA", str(tmp_path))
    with pytest.raises(DataError, match=f"line {line}" if line else file) as error:
        wordsim.analogies() if file == "questions-words.txt" else wordsim.pairs("wordsim353")
    assert "\n" not in str(error.value)


def test_gensim_is_found_without_being_imported() -> None:
    code = "from lexfed.corpus.wordsim import pairs; import sys; assert pairs('simlex999'); assert 'gensim' not in sys.modules"
    subprocess.run(
        [sys.executable, "-c", f"import os; os.environ.pop('LEXFED_DATA', 0); {code}"], check=True
    )


@needs_data
def test_glove_scores_what_is_known_of_it() -> None:
    """Published for 6B, 100 dimensions: WordSim353 about 0.53 and SimLex-999 about 0.30
    (Pennington et al. have 300).
    """
    glove = load("glove_6b_100d_top100k.npz")
    wordsim353 = similarity(glove.ids, glove.vectors, wordsim.pairs("wordsim353"))
    assert wordsim353.spearman == pytest.approx(0.53, abs=0.03)
    assert wordsim353.found >= 350
    assert similarity(
        glove.ids, glove.vectors, wordsim.pairs("simlex999")
    ).spearman == pytest.approx(0.30, abs=0.03)
    family = [question for question in wordsim.analogies() if question[0] == "family"]
    result = analogies(glove.ids, glove.vectors, family)
    assert (result.accuracy or 0) > 0.75
    assert result.asked + result.skipped == 506
