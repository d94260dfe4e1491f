"""Public tables of different origin, brought into one position by the words that they share."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from lexfed.core.devices import one_thread
from lexfed.core.errors import ConfigError, DataError
from lexfed.core.seeds import derive, numpy_generator, root
from lexfed.learning.private_table import CHOICE, WORDS
from lexfed.methods.fedevocab import FedeVocab, fedevocab, private_table
from lexfed.models.model import PROJECTION, TABLE
from lexfed.runtime.store import Store
from lexfed.vocabulary.tables import one_position
from lexfed.vocabulary.tables import rotation as rotations
from lexfed.vocabulary.tables.one_position import brought_to
from lexfed.vocabulary.tables.rotation import rotated, rotation
from lexfed.vocabulary.tables.vectors import PublicTable
from tests.conftest import ROOT, hand_made
from tests.unit.test_fedevocab import LATER, PUBLIC_WORDS, parts, run

D = 6
Floats = npt.NDArray[np.float32]
KNOWN = (*PUBLIC_WORDS, *(f"w{i}" for i in range(60)))  # enough of them


def vectors(count: int, seed: int = 3) -> Floats:
    """Along few axes and far from the middle, as real vectors are."""
    drawn = numpy_generator(root(seed)).normal(size=(count, D))
    return (drawn * [9, 3, 1, 1, 0.5, 0.3] + [5, 0, 0, 2, 0, 0]).astype(np.float32)


def table(rows: Floats, first: int = 0) -> PublicTable:
    return PublicTable(tuple(f"w{first + i}" for i in range(len(rows))), rows)


def turned(rows: Floats, by: int = 1, grow: float = 2.5, shift: float = 7.0) -> Floats:
    return (grow * rows @ rotation(root(by), D).numpy() + shift).astype(np.float32)


@pytest.mark.parametrize("order", ["drawn", "reversed", "foreign first"])
def test_a_table_that_was_turned_and_moved_comes_back(order: str) -> None:
    """Also for words that the first table lacks, in whatever order words stand, and whatever else
    stands there.
    """
    rows = vectors(500)
    first = table(rows[:400])
    places = {
        "drawn": numpy_generator(root(5)).permutation(500),
        "reversed": np.arange(500)[::-1],
        "foreign first": np.arange(500),
    }[order]
    words = [f"w{i}" for i in places]
    others = turned(rows)[places]
    if order == "foreign first":
        words = [*(f"x{i}" for i in range(300)), *words]
        others = np.concatenate([100 * vectors(300, seed=11), others])
    other = PublicTable(tuple(words), others)
    found = brought_to(first, other)
    assert found.words == other.words
    near = found.rows([f"w{i}" for i in range(500)]).numpy()
    assert np.abs(near - rows).max() < 0.02
    assert np.abs(turned(rows) - rows).max() > 10, "the pair: before, they differ"


def test_no_other_rotation_brings_whitened_tables_nearer() -> None:
    """The obvious search beside the closed form: tables with noise, a thousand rotations."""
    rows = vectors(300)
    noisy = turned(rows) + numpy_generator(root(8)).normal(size=rows.shape).astype(np.float32)
    first, other = table(rows), table(noisy)
    y, x = (rotated(one, None, whiten=True).rows(one.words) for one in (first, other))
    x = x * (y.norm() / x.norm())
    found = rotated(brought_to(first, other), None, whiten=True).rows(other.words)
    best = float((found - y).norm())
    tried = (x @ rotation(derive(root(9), i), D) for i in range(1000))
    assert best < min(float((one - y).norm()) for one in tried)
    torch.testing.assert_close(found.norm(), y.norm(), rtol=1e-2, atol=0)


def test_rows_are_mapped_as_they_are_asked_for() -> None:
    rows = vectors(400)
    found = brought_to(table(rows), table(turned(rows)))
    assert found.vectors.shape == (400, D)
    assert found.dimension == D
    whole = np.asarray(found.vectors[:])
    np.testing.assert_allclose(np.asarray(found.vectors[[7, 3]]), whole[[7, 3]], rtol=1e-5)
    np.testing.assert_allclose(found.head(5).rows(["w4"]).numpy(), whole[[4]], rtol=1e-5)
    assert brought_to(one := table(rows), two := table(turned(rows))) is brought_to(one, two)


@pytest.mark.parametrize(("mine", "theirs"), [(D, 4), (4, D), (D, D)])
def test_a_table_gets_the_width_of_the_first_and_its_lengths(mine: int, theirs: int) -> None:
    rows = vectors(400)
    first, other = rows[:, :mine].copy(), turned(rows)[:, :theirs].copy()
    found = brought_to(table(first), table(other))
    assert found.dimension == mine
    moved = np.asarray(found.vectors[:])
    spread = [float(np.sqrt(np.trace(np.cov(one.T)))) for one in (moved, first)]
    np.testing.assert_allclose(moved.mean(0), first.mean(0), atol=0.05)
    # of a narrower table some directions are empty, and not always those in which words differ most
    assert 0.5 * spread[1] < spread[0] < 1.6 * spread[1]


@pytest.mark.parametrize("width", [1, 3, 5])
def test_the_first_columns_of_a_table_lie_where_they_lay(width: int) -> None:
    """In directions that have nothing to do with each other, so that a narrower table can tell of
    its own. The others stay at the mean.
    """
    drawn = numpy_generator(root(3)).normal(size=(4000, D))
    rows = (drawn * [9, 3, 1, 1, 0.5, 0.3] + [5, 0, 0, 2, 0, 0]).astype(np.float32)
    found = np.asarray(brought_to(table(rows), table(rows[:, :width].copy())).vectors[:])
    for column in range(width):
        slope = np.polyfit(rows[:, column], found[:, column], 1)[0]
        assert slope == pytest.approx(1, abs=0.02), column
    np.testing.assert_allclose(found[:, width:].std(0) / rows[:, width:].std(0), 0, atol=0.2)
    np.testing.assert_allclose(found.mean(0), rows.mean(0), atol=0.05)


@pytest.mark.parametrize("width", [D, 4])
def test_a_word_that_lies_where_no_shared_word_does_is_not_blown_up(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it leave the mean in directions that the other table does not fill."""
    rows = vectors(400)
    flat = (turned(rows, shift=0.0) @ rotation(root(1), D).numpy().T)[:, D - width :]
    flat[390:, -1] = 1e3
    flat[:390, -1] = 0.0  # the words that both have say nothing in this direction

    def apart() -> Floats:
        moved = np.asarray(brought_to(table(rows[:390]), table(flat)).vectors[:])
        return moved - rows[:390].mean(0)

    found, bound = apart(), 2 * np.linalg.norm(rows[:390] - rows[:390].mean(0), axis=1).max()
    far = np.linalg.norm(found, axis=1)
    assert far.max() == pytest.approx(bound, rel=1e-3)
    assert far[:390].max() <= 0.6 * bound
    monkeypatch.setattr(one_position, "FARTHEST", 1e9)
    blown = apart()
    assert np.linalg.norm(blown, axis=1).max() > 10 * bound, "the pair: without a bound"
    np.testing.assert_allclose(found[:390], blown[:390], rtol=1e-5, atol=1e-5)
    ends = [one[390:] / np.linalg.norm(one[390:], axis=1, keepdims=True) for one in (found, blown)]
    np.testing.assert_allclose(*ends, atol=1e-4)


def test_several_tables_are_joined_by_rank() -> None:
    one = PublicTable(("a", "b", "c"), np.array([[1.0], [2.0], [3.0]], np.float32))
    two = PublicTable(("b", "d", "a", "e"), np.array([[20.0], [40.0], [10.0], [50.0]], np.float32))
    known = one_position.joined([one, two], 10)
    assert known.words == ("a", "b", "d", "c", "e")
    # "b" stands higher up in the second table
    assert known.vectors[:, 0].tolist() == [1.0, 20.0, 40.0, 3.0, 50.0]
    assert one_position.joined([one, two], 2).words == ("a", "b")
    assert one_position.joined([one], 2).vectors[:, 0].tolist() == [1.0, 2.0]


def test_the_first_tables_width_is_the_models() -> None:
    with pytest.raises(ConfigError, match=r"set model\.embedding = 16"):
        private_table(parts(), FedeVocab(vectors=("hashed:16", "hashed:24"), align=True))


def test_tables_that_share_few_words_are_refused() -> None:
    rows = vectors(100)
    with pytest.raises(DataError, match="has 5 words in common with the first"):
        brought_to(table(rows), table(turned(rows), first=95))


@pytest.mark.parametrize("rows", [np.zeros((200, D)), np.full((200, D), np.nan)])
def test_a_table_that_says_nothing_is_refused(rows: Floats) -> None:
    with pytest.raises(DataError, match="all alike, or no numbers"):
        brought_to(table(vectors(200)), table(rows.astype(np.float32)))


def test_one_dimension_can_be_whitened() -> None:
    rows = vectors(200)[:, :1].copy()
    assert rotated(table(rows), None, whiten=True).rows(["w0"]).isfinite().all()


def test_bits_do_not_tell_how_many_threads_there_are() -> None:
    """Of whitened and turned rows, and of a table in another's position."""
    program = """
import hashlib, numpy as np
from lexfed.core.seeds import numpy_generator, root
from lexfed.vocabulary.tables.one_position import brought_to
from lexfed.vocabulary.tables.rotation import rotated, rotation
from lexfed.vocabulary.tables.vectors import PublicTable
def table(seed):
    rows = numpy_generator(root(seed)).standard_normal((3000, 100), np.float32)
    return PublicTable(tuple(map(str, range(3000))), rows)
turned = rotated(table(1), rotation(root(2), 100), True, True).vectors[:]
moved = brought_to(table(1), table(3)).vectors[:]
print(hashlib.md5(turned.tobytes() + moved.tobytes()).hexdigest())
"""
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ
            | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
            | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    }
    assert len(said) == 1


def test_rows_are_made_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: a machine on which two give the same bits tells nothing of others."""
    seen: list[int] = []

    @contextmanager
    def watched() -> Iterator[None]:
        with one_thread():
            seen.append(torch.get_num_threads())
            yield

    for module in (one_position, rotations):
        monkeypatch.setattr(module, "one_thread", watched)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        rows = vectors(300, seed=31)
        table_of = rotated(table(rows), rotation(root(77), D), True, True)
        made = len(seen)
        table_of.rows(["w1"])
        assert len(seen) > made > 0, "to make it, and each time that rows are asked for"
        near = brought_to(table(rows), table(turned(rows)))
        made = len(seen)
        near.rows(["w1"])
        assert len(seen) > made
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}


@pytest.mark.parametrize("names", [(), ("a.npz",), ("a.npz", "random"), ("a.npz", "a.npz")])
def test_one_table_is_in_its_own_position(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"fedevocab\.vectors"):
        FedeVocab(vectors=names, align=True)


def test_clients_with_different_tables_start_alike(tmp_path: Path) -> None:
    """The row of a word that several clients use, whichever table each of them chose."""
    names = []
    for number, rows in enumerate((vectors(len(KNOWN)), turned(vectors(len(KNOWN))))):
        names.append(str(tmp_path / f"{number}.npz"))
        np.savez(names[-1], words=np.array(KNOWN), vectors=rows)
    people = hand_made((8,) * 12)

    def apart(align: bool) -> float:
        """How far the same word stands apart between clients that chose otherwise."""
        own = private_table(parts(), FedeVocab(vectors=(*names, "random"), align=align))
        states = [own.start(people.client(k)) for k in range(12)]
        found: dict[bytes, torch.Tensor] = {}
        for state in states:
            words = state.blobs[WORDS].decode().split("\n")
            if "acting" in words:
                found[state.blobs[CHOICE]] = state.params[TABLE][words.index("acting")]
        return float((found[b"0"] - found[b"1"]).norm())

    assert apart(align=True) < 0.01
    assert apart(align=False) > 1


def test_a_run_with_tables_in_one_position(tmp_path: Path) -> None:
    """Also with a table of another width: then no private projection is needed."""
    names = []
    for number, rows in enumerate((vectors(len(KNOWN)), turned(vectors(len(KNOWN)))[:, :4])):
        names.append(str(tmp_path / f"{number}.npz"))
        np.savez(names[-1], words=np.array(KNOWN), vectors=rows)
    for align in (True, False):
        store = tmp_path / f"store-{align}"
        run(fedevocab(parts(), FedeVocab(vectors=tuple(names), align=align)), store)
        projected = [PROJECTION in Store(store).load(k, LATER).params for k in range(4)]
        assert any(projected) == (not align)
