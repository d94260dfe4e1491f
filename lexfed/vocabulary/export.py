"""Trained word vectors and tokenizers as the files other programs expect, and vectors as one from
which training can go on.

A file is written row by row under a temporary name and then renamed: a table is never in memory
twice, and a kill leaves the old file or the new one.

The formats of others split at white space. A word that holds some is written differently, "new
york" as "new▁york", and under a name that no other word has; the writers return the words they had
to change.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor

from lexfed.core.errors import DataError
from lexfed.core.params import Params
from lexfed.vocabulary.splitting import final_sigma, spelled_out
from lexfed.vocabulary.tokenizer import TrainedTokenizer
from lexfed.vocabulary.word import Vocabulary

FORMAT = "lexfed word tables 1"
COUNTS = "counts"
BLANK = "▁"  # as SentencePiece writes it
# what some reader splits at or stops at, and what UTF-8 can't hold
_BREAKS = re.compile(r"[\s\0\ud800-\udfff]")
_BLOCK = 4096  # rows


def write_word2vec(path: Path, vocabulary: Vocabulary, vectors: Tensor, binary: bool) -> list[str]:
    """word2vec's format, text or binary, with the line that counts rows and columns. Numbers are
    exact in both.
    """
    _check(vocabulary, {"vectors": vectors})
    names, changed = _escaped(vocabulary.tokens)
    with _replacing(path) as temporary, temporary.open("wb") as file:
        file.write(f"{len(vectors)} {vectors.shape[1]}\n".encode())
        for name, row in zip(names, _rows(vectors), strict=True):
            file.write(
                name.encode() + b" " + (row.tobytes() if binary else _text(row, " ")) + b"\n"
            )
    return changed


def write_projector(folder: Path, vocabulary: Vocabulary, vectors: Tensor) -> list[str]:
    """`vectors.tsv` and `metadata.tsv`, to be loaded into projector.tensorflow.org."""
    _check(vocabulary, {"vectors": vectors})
    names, changed = _escaped(vocabulary.tokens)
    folder.mkdir(parents=True, exist_ok=True)
    with _replacing(folder / "vectors.tsv") as temporary, temporary.open("wb") as file:
        file.writelines(_text(row, "\t") + b"\n" for row in _rows(vectors))
    with _replacing(folder / "metadata.tsv") as temporary, temporary.open("wb") as file:
        # with two columns the projector takes the first line for their names
        file.write(b"Word\tCount\n")
        file.writelines(
            f"{name}\t{n}\n".encode() for name, n in zip(names, vocabulary.counts, strict=True)
        )
    return changed


# --- tokenizers ----------------------------------------------------------------------------------


def tokenizer_files(tokenizer: TrainedTokenizer, lowercase: bool) -> dict[str, bytes]:
    """The files from which `transformers` opens a tokenizer that cuts texts as lexfed does, and
    puts the beginning and the end around each.

    A tokenizer that was made elsewhere is left as it is: lexfed hands it words, and what it does to
    whole texts is its own affair.
    """
    roles = {"bos": tokenizer.bos, "eos": tokenizer.eos, "unk": tokenizer.unk, "pad": tokenizer.pad}
    names = {f"{role}_token": tokenizer.tokens[i] for role, i in roles.items() if i is not None}
    about = {
        **names,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # "</s>" in a text is four symbols
    }
    return {
        "tokenizer.json": completed(tokenizer, lowercase),
        "tokenizer_config.json": _json(about),
        "special_tokens_map.json": _json(names),
    }


def completed(tokenizer: TrainedTokenizer, lowercase: bool) -> bytes:
    """A tokenizer.json of ours with what lexfed does around it: the lower case, the rule for words,
    the special tokens. Made of itself, it is the same.
    """
    file = json.loads(tokenizer.data)
    inner = _inside(file["pre_tokenizer"])
    if inner is None:
        return tokenizer.data
    file["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [_words_rule(), *inner]}
    if lowercase and file["normalizer"] is None:
        file["normalizer"] = {"type": "Sequence", "normalizers": _lower_case()}
    bos, eos = tokenizer.bos, tokenizer.eos
    file["post_processor"] = _template(tokenizer.tokens[bos], bos, tokenizer.tokens[eos], eos)
    return _json(file)


def _inside(pre_tokenizer: Any) -> list[Any] | None:
    """What our tokenizers do to a word, behind the rule that cuts words; None: it is not ours."""
    parts = pre_tokenizer or {}
    parts = parts["pretokenizers"] if parts.get("type") == "Sequence" else [parts]
    rule, rest = parts[0], parts[1:]
    if rule in ({"type": "WhitespaceSplit"}, _words_rule()):
        return list(rest)
    ours = {"type": "Metaspace", "prepend_scheme": "always"}
    return list(parts) if ours.items() <= rule.items() else None


def _words_rule() -> dict[str, Any]:
    pattern = {"Regex": spelled_out("single")}
    return {"type": "Split", "pattern": pattern, "behavior": "Removed", "invert": True}


def _lower_case() -> list[dict[str, Any]]:
    """As Python has it: the library's own does not know the sigma at a word's end."""
    pattern = {"Regex": final_sigma()}
    return [{"type": "Replace", "pattern": pattern, "content": "ς"}, {"type": "Lowercase"}]


def _template(bos: str, bos_id: int, eos: str, eos_id: int) -> dict[str, Any]:
    def special(token: str) -> dict[str, Any]:
        return {"SpecialToken": {"id": token, "type_id": 0}}

    def text(name: str) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": 0}}

    known = {
        token: {"id": token, "ids": [number], "tokens": [token]}
        for token, number in ((bos, bos_id), (eos, eos_id))
    }
    single = [special(bos), text("A"), special(eos)]
    pair = [*single, special(bos), text("B"), special(eos)]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": known}


def _json(content: Any) -> bytes:
    return (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode()


# --- a file to go on from -------------------------------------------------------------------------


def write_tables(path: Path, vocabulary: Vocabulary, tables: Params) -> None:
    """One safetensors file: the tables ("input", "output") as they are, the counts, and in its
    metadata the words.
    """
    _check(vocabulary, tables)
    if COUNTS in tables:
        raise DataError(f"no table may be called '{COUNTS}': the words' counts are")
    arrays = {name: table.detach().cpu().contiguous() for name, table in tables.items()}
    arrays[COUNTS] = torch.tensor(vocabulary.counts, dtype=torch.int64)
    about = {
        "format": FORMAT,
        "version": str(vocabulary.version),
        "words": json.dumps(vocabulary.tokens),
    }
    try:
        with _replacing(path) as temporary:
            # from where they are, without a copy
            save_file(arrays, temporary, about | {"digest": _digest(about, arrays)})
    except (
        safetensors.SafetensorError
    ) as error:  # a full disk; or words of more than 100 MB, its limit for a header
        raise DataError(f"{path} can't be written: {' '.join(str(error).split())}") from error


def read_tables(path: Path) -> tuple[Vocabulary, dict[str, Tensor]]:
    """What `write_tables` wrote. The tables are mapped into memory; changing them does not change
    the file.
    """
    try:
        with safetensors.safe_open(path, "pt") as file:
            about = dict(file.metadata() or {})
            if about.get("format") != FORMAT:
                raise DataError(f"{path} is a safetensors file, but not of lexfed's word tables")
            tables = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if about.pop("digest", None) != _digest(about, tables):
            raise DataError(f"{path} is damaged: it is not what was written")
        counts = tables.pop(COUNTS)
        vocabulary = Vocabulary(
            _words(about["words"]), tuple(counts.tolist()), int(about["version"])
        )
        _check(vocabulary, tables)
    except (
        safetensors.SafetensorError,
        OSError,
        KeyError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        raise DataError(
            f"{path} can't be read as word tables: {' '.join(str(error).split())[:200]}"
        ) from error
    return vocabulary, tables


def _words(text: str) -> tuple[str, ...]:
    words = json.loads(text)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError("its words are not a list of words")
    return tuple(words)


def _digest(about: Mapping[str, str], arrays: Params) -> str:
    """Of everything in the file: safetensors itself notices a damaged header, but not a damaged
    number.
    """
    shapes = {name: [str(array.dtype), *array.shape] for name, array in arrays.items()}
    digest = blake2b(json.dumps([dict(about), shapes], sort_keys=True).encode(), digest_size=16)
    for name in sorted(arrays):
        digest.update(arrays[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


# --- what the formats share -----------------------------------------------------------------------


def _check(vocabulary: Vocabulary, tables: Params) -> None:
    """A file in which words and rows do not belong together would be read without complaint."""
    words = len(vocabulary)
    if len(vocabulary.counts) != words:
        raise DataError(f"a vocabulary of {words} words has {len(vocabulary.counts)} counts")
    if len(vocabulary.ids) != words:
        twice = next(word for i, word in enumerate(vocabulary.tokens) if vocabulary.ids[word] != i)
        raise DataError(f"the vocabulary holds {twice[:50]!r} twice")
    for name, table in tables.items():
        if table.ndim != 2 or table.shape[1] == 0:
            raise DataError(
                f"'{name}' of shape {tuple(table.shape)} is not a table with a row for each word"
            )
        if len(table) != words:
            raise DataError(
                f"a vocabulary of {words} words can't have '{name}' of {len(table)} rows"
            )


def _escaped(tokens: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names under which words are written, each different from all others; and the words whose
    name is another.
    """
    changed = [word for word in tokens if not word or _BREAKS.search(word)]
    taken, names = set(tokens), {}
    for word in changed:
        name = _BREAKS.sub(_visible, word)
        while not name or name in taken:
            name += BLANK
        taken.add(name)
        names[word] = name
    return [names.get(word, word) for word in tokens], changed


def _visible(match: re.Match[str]) -> str:
    r"""A blank as its sign, other characters as \t, \u3000."""
    return BLANK if match[0] == " " else match[0].encode("unicode_escape").decode()


def _rows(vectors: Tensor) -> Iterator[npt.NDArray[np.float32]]:
    for start in range(0, len(vectors), _BLOCK):
        yield from vectors[start : start + _BLOCK].detach().to("cpu", torch.float32).numpy()


def _text(row: npt.NDArray[np.float32], between: str) -> bytes:
    """Nine digits tell any two single-precision numbers apart."""
    return (between.join(["%.9g"] * len(row)) % tuple(row.tolist())).encode()


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary file to write, which then replaces the one at `path`; `files.write_atomically`
    for what is too big for it.

    safetensors replaces the file by one that only its owner can read, so the mode is set again.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    mode = os.fstat(descriptor).st_mode
    os.close(descriptor)
    try:
        yield temporary
        temporary.chmod(mode)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
