"""Public word vectors: read once from any usual format, then memory-mapped and shared by every
client of a machine.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lexfed.core.errors import DataError
from lexfed.core.seeds import derive, numpy_generator
from lexfed.corpus.catalogue import FOLDER
from lexfed.corpus.catalogue import load as load_corpus
from lexfed.vocabulary.word import count_words

CACHE = "LEXFED_CACHE"
HASHED, HASHED_TEXT = "hashed:", "imdb"  # numbers that anybody can make, for the words of this text


@dataclass(frozen=True, eq=False)
class PublicTable:
    """Words and their vectors, read-only. What is in it is known to everybody."""

    words: tuple[str, ...]
    vectors: npt.NDArray[Any]  # (V, d), any float type, memory-mapped

    @property
    def dimension(self) -> int:
        return int(self.vectors.shape[1])

    @cached_property
    def ids(self) -> Mapping[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    def head(self, size: int) -> "PublicTable":
        """Its first words only."""
        return PublicTable(self.words[:size], self.vectors[:size])

    def rows(self, words: Iterable[str]) -> Tensor:
        """The vectors of words the table has, (n, d)."""
        ids = [self.ids[word] for word in words]
        return torch.from_numpy(np.asarray(self.vectors[ids], dtype=np.float32)).reshape(
            len(ids), self.dimension
        )


def load(name: str) -> PublicTable:
    """The table at this path, or of this name in the folder LEXFED_DATA: .npz, word2vec/GloVe text,
    word2vec binary.

    `hashed:100`: no file, but numbers that anybody can make (100 of them) for the words of the
    embedded film reviews.
    """
    if name.startswith(HASHED):
        return hashed(name.removeprefix(HASHED))
    path = Path(os.path.expanduser(name))
    if not path.is_file() and os.environ.get(FOLDER):
        path = Path(os.environ[FOLDER]) / name
    if not path.is_file():
        raise DataError(f"there are no word vectors at {name}; set vocabulary.vectors")
    about = path.stat()
    return _mapped(path.resolve(), about.st_size, about.st_mtime_ns)


@cache
def hashed(dimension: str) -> PublicTable:
    """Random vectors that are public: each from its word alone, the most frequent words first."""
    if not dimension.isdigit() or not 0 < int(dimension) <= 10_000:
        raise DataError(
            f"vocabulary.vectors = 'hashed:{dimension}' wants a number of dimensions, as in "
            "hashed:100"
        )
    counts = count_words(load_corpus(HASHED_TEXT))
    known = sorted(
        (word for word, count in counts.items() if count >= 5),
        key=lambda word: (-counts[word], word),
    )
    draws = [
        numpy_generator(derive(b"hashed", word)).standard_normal(int(dimension), np.float32)
        for word in known
    ]
    return PublicTable(tuple(known), np.stack(draws) * np.float32(0.4))


@cache
def _mapped(path: Path, size: int, modified: int) -> PublicTable:
    """Through a copy in numpy's own format, which can be mapped; made when a file is first seen, or
    has changed.
    """
    key = blake2b(f"{path}:{size}:{modified}".encode(), digest_size=12).hexdigest()
    folder = Path(os.environ.get(CACHE, "~/.cache/lexfed")).expanduser() / "vectors" / key
    if not folder.is_dir():
        words, vectors = _read(path)
        temporary = folder.with_name(f".{key}.{os.getpid()}")
        temporary.mkdir(parents=True)
        (temporary / "words.txt").write_text("\n".join(words), encoding="utf-8")
        np.save(temporary / "vectors.npy", vectors)
        try:
            temporary.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(temporary)
    words = (folder / "words.txt").read_text(encoding="utf-8").split("\n")
    return PublicTable(tuple(words), np.load(folder / "vectors.npy", mmap_mode="r"))


def _read(path: Path) -> tuple[Sequence[str], npt.NDArray[Any]]:
    if path.suffix == ".kv":
        raise DataError(
            f"{path} is a pickle, which can run code; save it with save_word2vec_format and use "
            "that"
        )
    try:
        if path.suffix == ".npz":
            arrays = np.load(path)
            words, vectors = [str(word) for word in arrays["words"]], np.asarray(arrays["vectors"])
        else:
            with path.open("rb") as file:
                words, vectors = _binary(file) if path.suffix == ".bin" else _text(file)
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise DataError(
            f"{path} can't be read as word vectors: {' '.join(str(error).split())}"
        ) from error
    if not words or vectors.ndim != 2 or len(words) != len(vectors):
        raise DataError(f"{path} holds no table of word vectors")
    first = {word: i for i, word in reversed(list(enumerate(words))) if word and "\n" not in word}
    # a word that occurs twice keeps its first vector; one that breaks a line is left out
    kept = sorted(first.values())
    return ([words[i] for i in kept], vectors[kept]) if len(kept) < len(words) else (words, vectors)


def _text(file: BinaryIO) -> tuple[list[str], npt.NDArray[np.float32]]:
    """word2vec's text format, whose first line counts rows and columns, or GloVe's, which has no
    such line.
    """
    first = file.readline().decode().rstrip("\n").split(" ")
    if first == [""]:
        raise ValueError("the file is empty")
    lines: Iterator[str] = (line.decode() for line in file)
    if len(first) == 2:
        dimension = int(first[1])
    else:
        dimension, lines = len(first) - 1, chain([" ".join(first)], lines)
    words, rows = [], []
    for line in lines:
        # from the right: some words hold blanks
        word, *numbers = line.rstrip().rsplit(" ", dimension)
        words.append(word)
        rows.append(np.array(numbers, dtype=np.float32))
    return words, np.stack(rows) if rows else np.empty((0, dimension), dtype=np.float32)


def _binary(file: BinaryIO) -> tuple[list[str], npt.NDArray[np.float32]]:
    count, dimension = map(int, file.readline().split())
    words, vectors = [], np.empty((count, dimension), dtype=np.float32)
    for i in range(count):
        word = bytearray()
        while (letter := file.read(1)) != b" ":
            if not letter:
                raise EOFError("the file ends in the middle of a word")
            word += letter
        words.append(word.decode("utf-8", errors="replace").lstrip("\n"))
        vectors[i] = np.frombuffer(file.read(4 * dimension), dtype=np.float32)
    return words, vectors
