"""The site's log: what was sent, when, to whom, in plain words. It never holds text of anybody.

One line per answer or refusal, in files that are turned over when they are full, readable by their
owner alone.
"""

import logging
import os
from collections.abc import Iterable
from logging.handlers import RotatingFileHandler
from pathlib import Path

from lexfed.core.files import make_private

FULL = 5_000_000  # bytes of a file
FILES = 10


class _OwnersFile(RotatingFileHandler):
    def _open(self):  # type: ignore[no-untyped-def]
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return os.fdopen(descriptor, "a", encoding="utf-8")


def opened(path: Path) -> logging.Logger:
    make_private(path.parent)
    log = logging.Logger(f"lexfed.site {path}", logging.INFO)
    handler = _OwnersFile(path, maxBytes=FULL, backupCount=FILES, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    log.addHandler(handler)
    return log


def plain(text: str) -> str:
    """A sentence from elsewhere: nothing in it moves a terminal or starts a line of its own."""
    return "".join(c if c.isprintable() else "?" for c in text)[:400]


def sizes(count: int) -> str:
    for unit, size in (("MB", 1_000_000), ("kB", 1_000)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def names(arrays: Iterable[str]) -> str:
    """What an answer holds: the first parts of its names, and how many there are of each."""
    counts: dict[str, int] = {}
    for name in arrays:
        first = name.partition("/")[0]
        counts[first] = counts.get(first, 0) + 1
    told = [f"{name} ({n} arrays)" if n > 1 else name for name, n in sorted(counts.items())]
    return ", ".join(told) or "no numbers"
