"""Public word vectors in the formats people have them in."""

from pathlib import Path

import numpy as np
import pytest

from lexfed.core.errors import DataError
from lexfed.vocabulary.reading import PrivateReader
from lexfed.vocabulary.tables.vectors import PublicTable, load
from tests.conftest import corpus_of, needs_data

WORDS = ["the", "bär", "e5", "new york"]
VECTORS = np.arange(12, dtype=np.float32).reshape(4, 3) / 8


def write(kind: str, path: Path) -> Path:
    lines = [f"{w} {' '.join(map(str, v))}" for w, v in zip(WORDS, VECTORS, strict=True)]
    if kind == "npz":
        np.savez(path, words=np.array(WORDS), vectors=VECTORS.astype(np.float16))
    elif kind == "glove":
        path.write_text("\n".join(lines) + "\n")
    elif kind == "text":
        path.write_text("4 3\n" + "\n".join(lines) + "\n")
    else:
        rows = b"".join(
            w.replace(" ", "_").encode() + b" " + v.tobytes() + b"\n"
            for w, v in zip(WORDS, VECTORS, strict=True)
        )
        path.write_bytes(b"4 3\n" + rows)
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEXFED_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("kind", "name"), [("npz", "v.npz"), ("glove", "v.txt"), ("text", "v.vec"), ("binary", "v.bin")]
)
def test_every_format_gives_the_same_table(kind: str, name: str, tmp_path: Path) -> None:
    table = load(str(write(kind, tmp_path / name)))
    assert [word.replace("_", " ") for word in table.words] == WORDS
    assert np.array_equal(table.vectors.astype(np.float32), VECTORS)
    assert isinstance(table.vectors, np.memmap), "mapped, not read"
    assert not table.vectors.flags.writeable
    assert table.rows(["bär", "the"]).tolist() == [VECTORS[1].tolist(), VECTORS[0].tolist()]


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = write("npz", tmp_path / "v.npz")
    load(str(path))
    np.savez(path, words=np.array(["other"]), vectors=np.ones((1, 2), dtype=np.float32))
    assert load(str(path)).words == ("other",)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.kv", b"x", "is a pickle, which can run code"),
        ("v.npz", b"no zip", "can't be read as word vectors"),
        ("v.txt", b"a 1 2\nb 1\n", "can't be read as word vectors"),
        ("v.bin", b"3 2\nab", "can't be read as word vectors"),
        ("v.txt", b"", "holds no table|can't be read"),
    ],
)
def test_what_is_no_table_is_one_line(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        load(str(tmp_path / name))
    assert "\n" not in str(error.value)


def test_pickled_objects_in_an_npz_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", words=np.array([{"a": 1}], dtype=object), vectors=np.ones((1, 2)))
    with pytest.raises(DataError, match="can't be read"):
        load(str(tmp_path / "v.npz"))


def test_a_private_reader_looks_further_only_for_words_it_lacks() -> None:
    table = PublicTable(("the", "bär", "film"), VECTORS[:3])
    reading = PrivateReader(("<unk>", "film"), table, 10).read(
        corpus_of(["the film", "a bär film the"], [0, 1])
    )
    assert [example.ids for example in reading.examples] == [[2, 1], [0, 3, 1, 2]]
    assert reading.beyond is not None
    assert reading.beyond.tolist() == [VECTORS[0].tolist(), VECTORS[1].tolist()]
    alone = PrivateReader(("<unk>", "film"), None, 10).read(corpus_of(["the film"], [0]))
    assert [example.ids for example in alone.examples] == [[0, 1]]
    assert alone.beyond is None


@needs_data
def test_glove_is_what_it_is_said_to_be() -> None:
    table = load("glove_6b_100d_top100k.npz")
    assert (len(table.words), table.dimension) == (100_000, 100)
    near = table.vectors[:20000].astype(np.float32) @ table.rows(["king"])[0].numpy()
    norms = np.linalg.norm(table.vectors[:20000].astype(np.float32), axis=1)
    assert "queen" in {table.words[i] for i in np.argsort(-near / norms)[:10]}
