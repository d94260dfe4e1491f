"""Answers that a site has given: the same request again gets the very same bytes.

A server that lost an answer asks again with the same letter. What it is sent then must not be
another draw of noise, and must not be paid for again.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from lexfed.core.errors import CheckpointError
from lexfed.core.files import OWNER_ONLY, OWNERS_FOLDER, write_atomically

KEPT = 24  # answers of a federation: those of the last rounds


@dataclass(frozen=True)
class Answers:
    folder: Path

    def find(self, digest: str) -> tuple[bytes, bytes] | None:
        """Head and body of the answer to this request."""
        try:
            data = self._path(digest).read_bytes()
        except FileNotFoundError:
            return None
        length = int.from_bytes(data[:4], "big")
        return data[4 : 4 + length], data[4 + length :]

    def keep(self, digest: str, head: bytes, body: bytes) -> None:
        self.folder.mkdir(OWNERS_FOLDER, parents=True, exist_ok=True)
        data = len(head).to_bytes(4, "big") + head + body
        write_atomically(self._path(digest), data, OWNER_ONLY)
        files = sorted(self.folder.glob("[0-9a-f]*"), key=lambda path: path.stat().st_mtime_ns)
        for path in files[:-KEPT]:
            path.unlink(missing_ok=True)

    def _path(self, digest: str) -> Path:
        return self.folder / digest


@dataclass(frozen=True)
class Newest:
    """The newest step that was answered: a server's clock does not go back."""

    path: Path

    def read(self) -> int:
        try:
            return int(json.loads(self.path.read_text()))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(f"{self.path} is damaged: restore it from a copy") from error

    def write(self, step: int) -> None:
        os.makedirs(self.path.parent, OWNERS_FOLDER, exist_ok=True)
        write_atomically(self.path, f"{step}\n".encode(), OWNER_ONLY)
