"""Corpora from whatever Python code has at hand: a name, a file, texts, a data frame, a Hugging
Face data set.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from lexfed.core.errors import DataError
from lexfed.core.files import naming
from lexfed.core.importing import is_own, own, takes, written
from lexfed.corpus import catalogue
from lexfed.corpus.loading import Columns, from_table
from lexfed.corpus.text import Corpus

Loader = Callable[[], Any]  # of the user's own: `data.name = "package.module:load"`


def load(source: Any, columns: Columns | None = None) -> Corpus:
    """A corpus of any of these:

    str, Path         a data set of `lexfed data list`, a file, or `package.module:FUNCTION` that
                      returns one of these
    list of str       texts without labels
    dict of lists     columns: text, and if you like label, user, source, split
    pandas.DataFrame  the same columns
    pyarrow.Table     the same columns
    datasets.Dataset  the same columns; of a DatasetDict, its splits become the column `split`
    """
    columns = columns or Columns()
    if isinstance(source, Corpus):
        return source
    if isinstance(source, Path) or (isinstance(source, str) and not is_own(source)):
        if hint := written(str(source)):
            raise DataError(f"data.name = '{source}': {hint}")
        return catalogue.load(str(source), columns)
    if isinstance(source, str):
        return load(_called(own(source, "data.name"), source), columns)
    return from_table(_table(source, columns), f"the {type(source).__name__} given", columns)


def _called(loader: Any, name: str) -> Any:
    if not callable(loader) or not takes(loader):
        raise DataError(f"data.name = '{name}' is not a function without arguments")
    try:
        return loader()
    except OSError as error:  # a file that is not there: whose, is not plain from its name
        raise DataError(f"{name}: {error}") from error


def _table(source: Any, columns: Columns) -> pa.Table:
    if isinstance(source, pa.Table):
        return source
    if hasattr(source, "with_format"):  # a data set of Hugging Face's
        return (
            _of_splits(source, columns)
            if isinstance(source, Mapping)
            else catalogue.arrow_of(source, columns)
        )
    if hasattr(source, "to_records"):  # a data frame of pandas
        return pa.Table.from_pandas(source, preserve_index=False)
    if isinstance(source, Mapping):
        return _of_columns({str(name): list(values) for name, values in source.items()})
    if isinstance(source, Sequence) and not isinstance(source, bytes):
        for place, text in enumerate(source):
            if not isinstance(text, str):
                raise DataError(
                    f"texts must be strings, and text {place + 1} is {type(text).__name__}"
                )
        return pa.table({columns.text: list(source)})
    if isinstance(source, Iterable):
        raise DataError("texts must be a list of strings: what can be read only once is no corpus")
    raise DataError(
        f"a corpus can't be made of {type(source).__name__}: give a name, a file, texts, or a "
        "data frame"
    )


def _of_columns(columns: Mapping[str, list[Any]]) -> pa.Table:
    if len({len(values) for values in columns.values()}) > 1:
        lengths = ", ".join(f"{name} {len(values)}" for name, values in columns.items())
        raise DataError(f"columns must be of one length, not {lengths}")
    return pa.table({name: _column(name, values) for name, values in columns.items()})


def _column(name: str, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError) as error:  # its own words would quote the texts
        raise DataError(f"column '{name}' holds values of different kinds") from error


def _of_splits(parts: Mapping[str, Any], columns: Columns) -> pa.Table:
    tables = []
    for split, part in parts.items():
        table = catalogue.arrow_of(part, columns)
        tables.append(
            table.append_column(columns.split, pa.array([_OURS.get(split, split)] * len(table)))
        )
    return pa.concat_tables(tables)


_OURS: Mapping[str, str] = {"validation": "valid", "dev": "valid"}


def _labels(corpus: Corpus) -> dict[str, Any]:
    """As columns that are read as the same classes."""
    labels, names = corpus.labels.tolist(), corpus.label_names
    if names is None:
        return {"label": labels}
    named = [names[i] for i in labels]
    # names alone are numbered in alphabetical order
    return {"label": named} if list(names) == sorted(names) else {"label": labels, NAMES: named}


NAMES = Columns().names


@dataclass(frozen=True)
class Saved:
    """A corpus in a file that only its owner can read: worker processes and a resumed run read it
    again.
    """

    path: Path

    def write(self, corpus: Corpus) -> None:
        columns: dict[str, Any] = {"text": corpus.texts.take(corpus.rows)}
        if corpus.label_column is not None:
            columns |= _labels(corpus)
        for name, column in (
            ("user", corpus.users),
            ("source", corpus.sources),
            ("split", corpus.splits),
        ):
            if column is not None:
                columns[name] = column.take(corpus.rows)
        columns |= {name: column.take(corpus.rows) for name, column in corpus.attributes.items()}
        table = pa.table(columns)
        self.path.touch(mode=0o600)
        try:
            with (
                naming(self.path),
                pa.OSFile(str(self.path), "wb") as file,
                pa.ipc.new_file(file, table.schema) as writer,
            ):
                writer.write_table(table)
        except OSError:  # a full disk: half of the texts are nobody's
            self.path.unlink()
            raise
