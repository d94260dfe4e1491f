"""The recorded wire: every message in a folder of its own, for an auditor to read with any tool.

000003-00-train-00000017-up/
    meta.json            round, step, ask, client, direction, verb, meta, blobs (their names), bytes
    arrays.safetensors   a broadcast's is one file, linked from every folder
    blobs/NAME

It holds what nobody else should read (words, updates), so its owner alone may.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lexfed.core import formats
from lexfed.core.files import OWNER_ONLY, OWNERS_FOLDER, naming, write_atomically
from lexfed.federation import Federation, Requests, Sum, tapped
from lexfed.wire import ClientId, Direction, Message, Verb, encode, pack, size

ARRAYS = "arrays.safetensors"
HALF = re.compile(r"\.\d{6}-\d{2}-.+-\d{8}-(up|down)\.\d+")  # a folder that is being filled
ABOUT = "about.json"  # method, data, and the fingerprint of the configuration


@dataclass(frozen=True)
class Recorder:
    folder: Path

    def begin(self, about: Mapping[str, str]) -> None:
        """Make the folder, and say of which format it is, and what it was recorded with. Messages
        that a killed process had begun to write are taken away.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(OWNERS_FOLDER)
        for half in self.folder.iterdir():
            if HALF.fullmatch(half.name) and half.is_dir() and not half.is_symlink():
                shutil.rmtree(half)
        formats.mark(self.folder, "recorded wire", formats.WIRE, OWNER_ONLY)
        text = json.dumps(dict(about), indent=2) + "\n"
        write_atomically(self.folder / ABOUT, text.encode(), OWNER_ONLY)

    def up(self, verb: Verb, client: ClientId, request: Message, reply: Message) -> None:
        self._write(verb, client, "up", request, reply, None)

    def down(self, verb: Verb, requests: Requests) -> None:
        """What the server sends; the arrays of one message to many are stored once."""
        stored: dict[int, Path] = {}
        for client, message in requests.items():
            folder = self._write(verb, client, "down", message, message, stored.get(id(message)))
            stored.setdefault(id(message), folder / ARRAYS)

    def sum(self, verb: Verb, requests: Requests, total: Sum) -> None:
        """What the server made of masked replies: it was not sent, and it is all that it knows."""
        if not total.members:
            return
        cohort, request = total.members, next(iter(requests.values()))
        for direction, message in (("down", request), ("up", Message(pack(total.update)))):
            way: Direction = direction  # type: ignore[assignment]
            self._write(verb, cohort[0], way, request, message, None, cohort)

    def _write(
        self,
        verb: Verb,
        client: ClientId,
        direction: Direction,
        request: Message,
        message: Message,
        arrays: Path | None,
        cohort: tuple[ClientId, ...] = (),
    ) -> Path:
        clock = request.meta
        step, ask = int(clock["step"]), int(clock["ask"])
        about = {
            **{key: clock[key] for key in ("round", "step", "ask")},
            **{"client": client, "direction": direction, "verb": verb.name},
            **{"meta": dict(message.meta), "blobs": sorted(message.blobs), "bytes": size(message)},
            **({"cohort": cohort} if cohort else {}),
        }
        target = self.folder / f"{step:06d}-{ask:02d}-{verb.name}-{client:08d}-{direction}"
        folder = self.folder / f".{target.name}.{os.getpid()}"
        shutil.rmtree(folder, ignore_errors=True)  # of a killed process with the same number
        try:
            with naming(target):
                _fill(folder, message, about, arrays)
            # a resumed round sends again what its first attempt sent
            shutil.rmtree(target, ignore_errors=True)
            folder.rename(target)
        except BaseException:  # a full disk
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return target


def _fill(folder: Path, message: Message, about: Mapping[str, object], arrays: Path | None) -> None:
    for part in (folder, folder / "blobs"):
        part.mkdir(OWNERS_FOLDER)
    if arrays is None:
        write_atomically(folder / ARRAYS, encode(Message(message.arrays)), OWNER_ONLY)
    else:
        os.link(arrays, folder / ARRAYS)
    for name, blob in message.blobs.items():
        write_atomically(folder / "blobs" / name.replace("/", "_"), blob, OWNER_ONLY)
    write_atomically(folder / "meta.json", json.dumps(about, indent=2).encode(), OWNER_ONLY)


def recorded(federation: Federation, recorder: Recorder) -> Federation:
    """A layer that writes down what the server sends; replies are recorded where they are made."""
    return tapped(federation, down=recorder.down)


def recorded_sums(federation: Federation, recorder: Recorder) -> Federation:
    """A layer that writes down what secure sums told the server."""

    def total(verb: Verb, requests: Requests) -> Sum:
        result = federation.total(verb, requests)
        if requests:
            recorder.sum(verb, requests, result)
        return result

    return replace(federation, total=total)
