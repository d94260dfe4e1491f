"""Reading a recorded wire: the messages again, as they were sent."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lexfed.errors import DataError
from lexfed.wire import ClientId, Direction, Message, Verb, read


@dataclass(frozen=True)
class Recorded:
    round: int
    step: int
    ask: int
    client: ClientId
    direction: Direction
    verb: Verb
    message: Message


def transcript(folder: Path) -> Iterator[Recorded]:
    """All messages in the order of the server's clock; one at a time, so that a long run fits in memory."""
    if not folder.is_dir():
        raise DataError(f"there is no recorded wire at {folder}")
    for path in sorted(path for path in folder.iterdir() if not path.name.startswith(".")):
        about = json.loads((path / "meta.json").read_text())
        blobs = {name: (path / "blobs" / name.replace("/", "_")).read_bytes() for name in about["blobs"]}
        message = Message(read(path / "arrays.safetensors").arrays, about["meta"], blobs)
        yield Recorded(
            **{key: about[key] for key in ("round", "step", "ask", "client", "direction", "verb")}, message=message
        )
