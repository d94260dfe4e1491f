"""A corpus in a few lines."""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from lexfed.corpus.loading import Columns
from lexfed.corpus.text import Column, Corpus


def describe(corpus: Corpus, columns: Columns) -> dict[str, str]:
    """What `lexfed data show` prints: counts, never a text."""
    lengths = np.array([len(text.split()) for text in corpus])
    called = {"text": columns.text}
    called |= {"label": columns.label} if corpus.label_column is not None else {}
    called |= {"user": columns.user} if corpus.users is not None else {}
    called |= {"source": columns.source} if corpus.sources is not None else {}
    lines = {
        "columns": ", ".join(k if k == name else f"{k} = {name}" for k, name in called.items()),
        "texts": f"{len(corpus):,}",
        "words": (
            f"{lengths.sum():,} (median {np.median(lengths):.0f} a text, longest {lengths.max():,})"
        ),
    }
    if corpus.splits is not None:
        lines["splits"] = _counts(_values(corpus, corpus.splits))
    if corpus.label_column is not None:
        names = corpus.label_names
        labels, counts = np.unique(corpus.labels, return_counts=True)
        lines["classes"] = ", ".join(
            f"{names[i] if names else i}: {n:,}" for i, n in zip(labels, counts, strict=True)
        )
    for name, column in (("users", corpus.users), ("sources", corpus.sources)):
        if column is not None:
            values = _values(corpus, column)
            lines[name] = f"{len(set(values)):,}" if len(set(values)) > 20 else _counts(values)
    return lines


def _values(corpus: Corpus, column: Column) -> list[str]:
    return [value for value in column.take(corpus.rows).to_pylist() if value is not None]


def _counts(values: Iterable[str]) -> str:
    counts = Counter(values)
    return ", ".join(
        f"{value}: {count:,}"
        for value, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    )
