"""Answers that a site has given: the same request again gets the very same bytes.

A server that lost an answer asks again with the same letter. What it is sent then must not be
another draw of noise, and must not be paid for again.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from lexfed.core.errors import CheckpointError
from lexfed.core.files import OWNER_ONLY, make_private, write_atomically
from lexfed.runtime import letters
from lexfed.runtime.letters import LetterError


@dataclass(frozen=True)
class Answers:
    folder: Path
    key: bytes  # the site's own public one: what it has signed, it knows again

    def find(self, digest: str) -> tuple[bytes, bytes] | None:
        """Head and body of the answer to this request."""
        try:
            data = self._path(digest).read_bytes()
        except FileNotFoundError:
            return None
        length = int.from_bytes(data[:4], "big")
        head, body = data[4 : 4 + length], data[4 + length :]
        try:
            letters.opened(head, body, lambda letter: self.key)
        except LetterError as error:
            raise CheckpointError(f"{self._path(digest)} is damaged: it is not sent") from error
        return head, body

    def keep(self, digest: str, step: int, head: bytes, body: bytes) -> None:
        """As long as a server may ask for it: an older step is refused in any case."""
        make_private(self.folder)
        data = len(head).to_bytes(4, "big") + head + body
        write_atomically(self.folder / f"{step:012d}-{digest}", data, OWNER_ONLY)
        for path in self.folder.glob("[0-9]*-*"):
            if int(path.name.partition("-")[0]) < step:
                path.unlink(missing_ok=True)

    def _path(self, digest: str) -> Path:
        found = list(self.folder.glob(f"[0-9]*-{digest}"))
        return found[0] if found else self.folder / digest


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
        make_private(self.path.parent)
        write_atomically(self.path, f"{step}\n".encode(), OWNER_ONLY)
