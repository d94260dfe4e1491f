"""Tables from files, as people have them: parquet, csv with any separator, tsv, jsonl, json, plain
text, Arrow; packed with gzip; in other encodings; a folder of them.

A message never quotes a file: what stands in it may be somebody's text. So the reasons of parsers,
which like to print the row they failed on, are not passed on.
"""

import csv
import gzip
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from lexfed.core.errors import DataError

SEPARATORS = (",", ";", "\t", "|")
TEXT, LABEL, SOURCE = "text", "label", "source"  # the columns that a folder or a text file gives


def read_file(path: Path) -> pa.Table:
    """The table in a file or a folder."""
    if path.is_dir():
        return _read_folder(path)
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty")
    kind = kind_of(path)
    if kind is None:
        raise DataError(f"{path} has an unknown ending; a file ends in {ENDINGS}")
    try:
        return READERS[kind](path)
    except (pa.ArrowException, OSError, ValueError, EOFError, csv.Error) as error:
        raise DataError(
            f"{path} can't be read as {kind.removeprefix('.')}: {_reason(error)}"
        ) from error


def columns_of(path: Path) -> list[str]:
    """What its columns are called; none, if it is no table that can be read."""
    try:
        return list(map(str, read_file(path).column_names)) if path.exists() else []
    except DataError:
        return []


def kind_of(path: Path) -> str | None:
    """The ending that says how it is read, whether it is packed or not; None: it is no table."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = suffixes[-1:] == [".gz"]
    ending = suffixes[-2 if packed else -1] if len(suffixes) > packed else ""
    return ending if ending in READERS and not (packed and ending in _WHOLE) else None


def _reason(error: Exception) -> str:
    """What went wrong, in words that hold nothing of the file."""
    words = str(error)
    if found := re.search(r"Expected (\d+) columns, got (\d+)", words):
        row = re.search(r"Row #(\d+)", words)
        where = f"row {row[1]}" if row else "a row"
        return f"{where} has {found[2]} columns, not {found[1]}; is a separator inside a text?"
    if found := re.search(r"in row (\d+)", words):
        return f"row {int(found[1]) + 1} is not what the rows before it are"
    if isinstance(error, UnicodeDecodeError):
        return "its bytes are text of no encoding that is known here; save it as UTF-8"
    if isinstance(error, gzip.BadGzipFile | EOFError):
        return "it ends in .gz, and is not packed with gzip"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "it is damaged, or of another kind than its ending says"


# --- one file ------------------------------------------------------------------------------------


def _bytes(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix.lower() == ".gz" else data


def _text(path: Path) -> str:
    """Decoded by its mark, else as UTF-8, else as what Windows writes in western Europe."""
    data = _bytes(path)
    for mark, encoding in ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"),
                           (b"\xfe\xff", "utf-16")):  # fmt: skip
        if data.startswith(mark):
            return data.decode(encoding)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("cp1252")


def _read_csv(path: Path) -> pa.Table:
    text = _text(path)
    options = pyarrow.csv.ParseOptions(delimiter=separator(text), newlines_in_values=True)
    # no threads: one that is still at work when a command ends takes the whole process down
    size = max(1 << 20, _longest(text))
    reading = pyarrow.csv.ReadOptions(block_size=size, use_threads=False)
    return pyarrow.csv.read_csv(
        pa.BufferReader(text.encode()), read_options=reading, parse_options=options
    )


def _longest(text: str) -> int:
    """A row must fit into a block: with line breaks inside texts nobody knows where one ends."""
    return min(2 * len(text) + 1024, 1 << 30)


def separator(text: str) -> str:
    """What stands between the columns: what the names in the first line are parted by most."""
    first = text.lstrip("\r\n").partition("\n")[0]
    counts = {one: len(next(csv.reader([first], delimiter=one), [])) for one in SEPARATORS}
    return max(SEPARATORS, key=lambda one: counts[one])


def _read_json(path: Path) -> pa.Table:
    """A list of objects, or an object of columns."""
    content = json.loads(_text(path))
    if isinstance(content, list) and all(isinstance(row, dict) for row in content):
        return pa.Table.from_pylist(content)
    if isinstance(content, list) and all(isinstance(row, str) for row in content):
        return pa.table({TEXT: content})
    if isinstance(content, dict) and all(isinstance(rows, list) for rows in content.values()):
        return pa.table(content)
    raise ValueError("neither a list of objects nor an object of columns")


def _read_jsonl(path: Path) -> pa.Table:
    return pyarrow.json.read_json(
        pa.BufferReader(_text(path).encode()), pyarrow.json.ReadOptions(use_threads=False)
    )


def _read_lines(path: Path) -> pa.Table:
    """One text a line."""
    return pa.table({TEXT: pa.array(_text(path).splitlines(), pa.large_string())})


def _map_arrow(path: Path) -> pa.Table:
    """An Arrow file stays on disk: only what is read of it is in memory, so it may be larger than
    that.
    """
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


READERS: Mapping[str, Callable[[Path], Any]] = {
    ".parquet": pyarrow.parquet.read_table,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".json": _read_json,
    ".txt": _read_lines,
    ".arrow": _map_arrow,
}
_WHOLE = (".parquet", ".arrow")  # they pack themselves
ENDINGS = f"{', '.join(READERS)} (all but .parquet and .arrow also with .gz), or is a folder"


# --- a folder of files ---------------------------------------------------------------------------


def _read_folder(folder: Path) -> pa.Table:
    """Tables one after the other, with the file's name as their source; or texts, one a file, with
    the name of the folder they lie in as their label.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() and kind_of(path))
    tables = [path for path in files if kind_of(path) != ".txt"]
    if tables:
        return _one_after_the_other(tables, folder)
    if not files:
        raise DataError(f"{folder} holds no file that ends in {ENDINGS}")
    columns = {TEXT: [_text(path) for path in files]}
    parents = [str(path.parent.relative_to(folder)) for path in files]
    if any(parent != "." for parent in parents):
        columns |= {LABEL: parents, SOURCE: parents}
    return pa.table(columns)


def _one_after_the_other(files: list[Path], folder: Path) -> pa.Table:
    parts = []
    for path in files:
        table = read_file(path)
        if SOURCE not in table.column_names:
            name = str(path.relative_to(folder)).partition(".")[0]
            table = table.append_column(SOURCE, pa.array([name] * len(table), pa.string()))
        parts.append(table)
    try:
        return pa.concat_tables(parts, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(
            f"the files in {folder} do not have the same columns; read them one by one"
        ) from error
