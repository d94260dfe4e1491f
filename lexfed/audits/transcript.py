"""Reading a recorded wire: the messages again, as they were sent."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lexfed.core import formats
from lexfed.core.errors import DataError
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
    cohort: tuple[ClientId, ...] = ()  # of a sum: whose it is


def check_origin(folder: Path, configuration: str) -> None:
    """Refuse the truth of another run: what it scores would look safer than it is."""
    path = folder / "about.json"
    if not path.is_file():  # lexfed 0.1 wrote none
        return
    try:
        about = json.loads(path.read_text())
        same, what = (
            about["configuration"] == configuration,
            f"{about['method']} on {about['data']}",
        )
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} can't be read: restore it from a copy") from error
    if not same:
        raise DataError(
            f"{folder} was recorded with another configuration ({what}): give the very one with "
            "--truth, or the run's directory"
        )


def transcript(folder: Path, verbs: Iterable[Verb]) -> Iterator[Recorded]:
    """All messages in the order of the server's clock; one at a time, so that a long run fits in
    memory.

    `verbs` are those of the method that it was recorded with.
    """
    if not folder.is_dir():
        raise DataError(f"there is no recorded wire at {folder}")
    formats.check_folder(folder, formats.WIRE)
    known = {verb.name: verb for verb in verbs}
    for path in sorted(
        path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    ):
        about = json.loads((path / "meta.json").read_text())
        blobs = {
            name: (path / "blobs" / name.replace("/", "_")).read_bytes() for name in about["blobs"]
        }
        message = Message(read(path / "arrays.safetensors").arrays, about["meta"], blobs)
        if about["verb"] not in known:
            raise DataError(
                f"{folder} was not recorded with this configuration: its method knows no "
                f"'{about['verb']}'"
            )
        clock = {key: about[key] for key in ("round", "step", "ask", "client", "direction")}
        cohort = tuple(about.get("cohort", ()))
        yield Recorded(**clock, verb=known[about["verb"]], message=message, cohort=cohort)
