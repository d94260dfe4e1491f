"""Word vectors as files that other programs read, gensim's real readers among them."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from gensim.models import KeyedVectors
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from lexfed.core.errors import DataError
from lexfed.vocabulary.export import (
    read_tables,
    write_projector,
    write_tables,
    write_word2vec,
)
from lexfed.vocabulary.tables import vectors as public
from lexfed.vocabulary.word import Vocabulary
from tests.references import keyed_vectors

PLAIN = ("<unk>", "the", "bär", "москва", "東京", "🙂", "e5", "4", "don't", "…", "x" * 5000)
BROKEN = (
    "new york",
    "a\tb",
    "two\nlines",
    "",
    " ",
    "\u3000",
    "no\u00a0break",
    "c\rr",
    "\u2028",
    "nul\0",
    "\ud800",
)


def vocabulary_of(*tokens: str) -> Vocabulary:
    return Vocabulary(tokens, tuple(range(len(tokens) + 5, 5, -1)), version=3)


def rows(count: int, dimension: int = 6) -> Tensor:
    return torch.randn(count, dimension, generator=torch.Generator().manual_seed(count))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEXFED_CACHE", str(tmp_path / "cache"))


# --- word2vec's two formats ----------------------------------------------------------------------

both = pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])


def read_back(path: Path, binary: bool) -> tuple[list[str], np.ndarray]:
    """gensim's reader and ours, which must agree."""
    theirs = KeyedVectors.load_word2vec_format(str(path), binary=binary)
    ours = public.load(str(path))
    assert list(ours.words) == theirs.index_to_key
    assert np.array_equal(np.asarray(ours.vectors), theirs.vectors, equal_nan=True)
    return theirs.index_to_key, theirs.vectors


def file_of(folder: Path, binary: bool) -> Path:
    return folder / ("v.bin" if binary else "v.txt")


@both
def test_every_reader_reads_the_same(binary: bool, tmp_path: Path) -> None:
    path, table = file_of(tmp_path, binary), rows(len(PLAIN))
    assert write_word2vec(path, vocabulary_of(*PLAIN), table, binary) == []
    words, vectors = read_back(path, binary)
    assert words == list(PLAIN)
    assert np.array_equal(vectors, table.numpy()), "to the last bit, in text too"


@both
def test_words_that_break_a_format_are_changed_and_named(binary: bool, tmp_path: Path) -> None:
    path, tokens = file_of(tmp_path, binary), ("the", *BROKEN, "end")
    assert write_word2vec(path, vocabulary_of(*tokens), rows(len(tokens)), binary) == list(BROKEN)
    words, vectors = read_back(path, binary)
    assert np.array_equal(vectors, rows(len(tokens)).numpy()), "every row in its place"
    escaped = [
        "new▁york",
        "a\\tb",
        "two\\nlines",
        "▁",
        "▁▁",
        "\\u3000",
        "no\\xa0break",
        "c\\rr",
        "\\u2028",
        "nul\\x00",
        "\\ud800",
    ]
    assert words == ["the", *escaped, "end"]
    assert all(len(word.split()) == 1 for word in words), (
        "no reader that splits at white space is misled"
    )


@both
@pytest.mark.parametrize(
    "tokens",
    [
        ("new york", "new▁york"),
        ("new▁york", "new york", "new▁york▁"),
        ("", " ", "▁", "▁▁", "  "),
        ("a\tb", "a\\tb", "a\\tb▁"),
    ],
)
def test_a_changed_word_is_never_another_word(
    tokens: tuple[str, ...], binary: bool, tmp_path: Path
) -> None:
    path = file_of(tmp_path, binary)
    changed = write_word2vec(path, vocabulary_of(*tokens), rows(len(tokens)), binary)
    words, vectors = read_back(path, binary)
    assert len(set(words)) == len(tokens)
    assert np.array_equal(vectors, rows(len(tokens)).numpy())
    assert [w for w, t in zip(words, tokens, strict=True) if t not in changed] == [
        t for t in tokens if t not in changed
    ]


@both
def test_an_empty_vocabulary_is_a_header(binary: bool, tmp_path: Path) -> None:
    path = file_of(tmp_path, binary)
    assert write_word2vec(path, vocabulary_of(), rows(0), binary) == []
    assert path.read_bytes() == b"0 6\n"
    assert len(KeyedVectors.load_word2vec_format(str(path), binary=binary)) == 0


@both
def test_numbers_of_every_kind(binary: bool, tmp_path: Path) -> None:
    table = torch.tensor(
        [
            [0.0, -0.0, 0.1],
            [float("nan")] * 3,
            [float("inf"), -float("inf"), 1e-45],
            [3e38, 1 / 3, 1e-20],
        ]
    )
    write_word2vec(file_of(tmp_path, binary), vocabulary_of(*"abcd"), table, binary)
    assert np.array_equal(
        read_back(file_of(tmp_path, binary), binary)[1], table.numpy(), equal_nan=True
    )


@both
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_float_any_layout_and_gradients(
    dtype: torch.dtype, binary: bool, tmp_path: Path
) -> None:
    table = rows(6, 4).to(dtype).T.requires_grad_()  # (4, 6), its columns contiguous
    write_word2vec(file_of(tmp_path, binary), vocabulary_of(*"abcd"), table, binary)
    assert np.array_equal(
        read_back(file_of(tmp_path, binary), binary)[1], table.detach().float().numpy()
    )


@both
def test_more_rows_than_a_block(binary: bool, tmp_path: Path) -> None:
    tokens = tuple(f"w{i}" for i in range(9001))
    write_word2vec(file_of(tmp_path, binary), vocabulary_of(*tokens), rows(9001, 2), binary)
    words, vectors = read_back(file_of(tmp_path, binary), binary)
    assert tuple(words) == tokens
    assert np.array_equal(vectors, rows(9001, 2).numpy())


@pytest.mark.parametrize(
    ("vocabulary", "table", "message"),
    [
        (vocabulary_of("a", "b"), rows(3), "2 words.* 3"),
        (vocabulary_of("a"), torch.ones(1), "table"),
        (vocabulary_of("a"), torch.ones(1, 0), "table"),
        (vocabulary_of("a", "b", "a"), rows(3), "'a' .*twice"),
        (Vocabulary(("a", "b"), (1,)), rows(2), "2 words.*1 count"),
    ],
)
def test_what_does_not_belong_together_is_refused(
    vocabulary: Vocabulary, table: Tensor, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x"
    for write in (
        lambda: write_word2vec(path, vocabulary, table, binary=False),
        lambda: write_projector(path, vocabulary, table),
        lambda: write_tables(path, vocabulary, {"input": table}),
    ):
        with pytest.raises(DataError, match=message):
            write()
    assert not path.exists()


class KillError(Exception):
    pass


class Breaking:
    """Stands for a table in the middle of whose writing the process is stopped."""

    def __init__(self, table: Tensor) -> None:
        self.table = table
        self.shape, self.ndim = table.shape, table.ndim

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, block: slice) -> Tensor:
        if block.start:
            raise KillError
        return self.table[block]


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path, vocabulary = tmp_path / "v.txt", vocabulary_of(*(f"w{i}" for i in range(9001)))
    write_word2vec(path, vocabulary, rows(9001, 2), binary=False)
    before = path.read_bytes()
    with pytest.raises(KillError):
        write_word2vec(path, vocabulary, Breaking(torch.zeros(9001, 2)), binary=False)  # type: ignore[arg-type]
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["v.txt"], "and nothing is left behind"


# --- the embedding projector ---------------------------------------------------------------------


def test_the_projectors_two_files(tmp_path: Path) -> None:
    folder, table = tmp_path / "deep" / "projector", rows(4, 3)
    assert write_projector(folder, vocabulary_of("東京", "a\tb", "new york", ""), table) == [
        "a\tb",
        "new york",
        "",
    ]
    assert sorted(os.listdir(folder)) == ["metadata.tsv", "vectors.tsv"]
    metadata = (folder / "metadata.tsv").read_text(encoding="utf-8")
    assert metadata == "Word\tCount\n東京\t9\na\\tb\t8\nnew▁york\t7\n▁\t6\n"
    lines = (folder / "vectors.tsv").read_text().splitlines()
    assert [[np.float32(x) for x in line.split("\t")] for line in lines] == table.tolist()


def test_the_projector_has_nothing_to_show(tmp_path: Path) -> None:
    assert write_projector(tmp_path, vocabulary_of(), rows(0)) == []
    assert (tmp_path / "metadata.tsv").read_text() == "Word\tCount\n"
    assert (tmp_path / "vectors.tsv").read_text() == ""


# --- safetensors, to go on from ------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [(*PLAIN, *BROKEN), ()], ids=["words", "empty"])
def test_everything_comes_back(tokens: tuple[str, ...], tmp_path: Path) -> None:
    path, vocabulary = tmp_path / "v.safetensors", vocabulary_of(*tokens)
    tables = {
        "input": rows(len(tokens)),
        "output": rows(len(tokens), 4).half(),
        "slots": rows(len(tokens), 1),
    }
    write_tables(path, vocabulary, tables)
    again, read = read_tables(path)
    assert again == vocabulary
    assert {n: (t.dtype, t.tolist()) for n, t in read.items()} == {
        n: (t.dtype, t.tolist()) for n, t in tables.items()
    }


def test_training_goes_on_without_touching_the_file(tmp_path: Path) -> None:
    path, table = tmp_path / "v.safetensors", rows(3)
    write_tables(path, vocabulary_of(*"abc"), {"input": table})
    _, read = read_tables(path)
    read["input"] += 1
    assert torch.equal(read_tables(path)[1]["input"], table)
    write_tables(path, vocabulary_of(*"abc"), read)  # over the file it came from
    assert torch.equal(read_tables(path)[1]["input"], table + 1)


def test_any_tool_can_read_the_tables(tmp_path: Path) -> None:
    path = tmp_path / "v.safetensors"
    stacked = rows(4).reshape(2, 2, 6)
    write_tables(
        path,
        vocabulary_of("bär", "new york"),
        {"input": stacked[0], "output": stacked[1].requires_grad_()},
    )
    arrays = load_file(path)
    assert {name: array.dtype for name, array in arrays.items()} == {
        "counts": torch.int64, "input": torch.float32, "output": torch.float32,
    }  # fmt: skip
    assert arrays["counts"].tolist() == [7, 6]
    with safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["words"]) == ["bär", "new york"]
        assert file.metadata()["version"] == "3"


def test_artefacts_are_for_everybody(tmp_path: Path) -> None:
    """As `files.write_atomically` leaves them: safetensors alone would make its file readable
    by the owner only.
    """
    before = os.umask(0o022)
    try:
        write_tables(tmp_path / "a", vocabulary_of("a"), {"input": rows(1)})
        write_word2vec(tmp_path / "b", vocabulary_of("a"), rows(1), binary=True)
        os.umask(0o077)
        write_tables(tmp_path / "c", vocabulary_of("a"), {"input": rows(1)})
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in "abc"] == [0o644, 0o644, 0o600]
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c"]


def test_counts_is_not_a_table(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="counts"):
        write_tables(tmp_path / "v", vocabulary_of("a"), {"counts": rows(1)})


def test_more_words_than_a_header_holds(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="header too large"):
        write_tables(tmp_path / "v", vocabulary_of("x" * 100_000_000), {"input": rows(1)})
    assert os.listdir(tmp_path) == [], "not a file that nobody can read"


def metadata_of(path: Path) -> dict[str, str]:
    with safe_open(path, "pt") as file:
        return dict(file.metadata())


def test_every_kind_of_damage_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "v.safetensors"
    write_tables(path, vocabulary_of("a", "b"), {"input": rows(2), "output": rows(2)})
    good = path.read_bytes()
    for place in range(0, len(good), 3):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(DataError) as error:
            read_tables(path)
        assert "\n" not in str(error.value)
        path.write_bytes(good[:place])
        with pytest.raises(DataError):
            read_tables(path)
    path.write_bytes(good)
    assert read_tables(path)[0].tokens == ("a", "b")


@pytest.mark.parametrize(
    "change",
    [
        {"words": '["a"]'},
        {"words": '["a", "a"]'},
        {"words": '["a", 7]'},
        {"words": '{"a": 1, "b": 2}'},
        {"words": "[" * 100_000},
        {"words": "no json"},
        {"version": "latest"},
        {"format": "pt"},
        {"digest": "0" * 32},
    ],
    ids=str,
)
def test_foreign_metadata_is_one_line(change: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "v.safetensors"
    write_tables(path, vocabulary_of("a", "b"), {"input": rows(2)})
    save_file(load_file(path), path, metadata_of(path) | change)
    with pytest.raises(DataError, match=str(path)) as error:
        read_tables(path)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_files_of_others_are_one_line(tmp_path: Path) -> None:
    save_file({"weight": rows(2)}, tmp_path / "no metadata")
    save_file({"weight": rows(2)}, tmp_path / "transformers", {"format": "pt"})
    torch.save({"weight": rows(2)}, tmp_path / "pickle")
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    for name in ("no metadata", "transformers", "pickle", "empty", "folder", "missing"):
        with pytest.raises(DataError, match=name) as error:
            read_tables(tmp_path / name)
        assert "\n" not in str(error.value)


# --- gensim ------------------------------------------------------------------------------------


def test_what_gensim_writes_of_them_is_what_we_write(tmp_path: Path) -> None:
    keyed = keyed_vectors(vocabulary_of(*PLAIN), rows(len(PLAIN)))
    keyed.save_word2vec_format(str(tmp_path / "theirs.bin"), binary=True)
    write_word2vec(tmp_path / "ours.bin", vocabulary_of(*PLAIN), rows(len(PLAIN)), binary=True)
    theirs, ours = (
        public.load(str(tmp_path / "theirs.bin")),
        public.load(str(tmp_path / "ours.bin")),
    )
    assert theirs.words == ours.words
    assert np.array_equal(theirs.vectors, ours.vectors)
