"""The numbers of our formats. What was written before they had numbers is of format 1.

A format gets a new number when what is written can no longer be read as before. An older one is
read, or refused in a sentence that says what to do; a newer one is refused.
"""

import json
from pathlib import Path

from lexfed.core.errors import CheckpointError
from lexfed.core.files import write_atomically

CONFIGURATION = 1  # `format` in a configuration that lexfed wrote
RUN = 1  # a run directory
WIRE = 1  # a recorded wire
MESSAGE = 1  # one message: the key of its metadata in the safetensors header
CLIENT_STORE = 1
CHECKPOINT = 1
# 1: entries do not say what they are of, nor what the deployment paid; 2: no sums of noise
LEDGER = 3

FILE = "format.json"  # in a run directory, a client store, a recorded wire


def check(found: object, known: int, where: str) -> None:
    """`found` is None where it was written before formats had numbers."""
    if found is None or (type(found) is int and 1 <= found <= known):
        return
    raise CheckpointError(
        f"{where} is of format {found}, and this lexfed reads up to {known}: it was written by a "
        "newer one, use that"
    )


def mark(folder: Path, what: str, number: int, mode: int = 0o644) -> None:
    about = {"what": f"lexfed {what}", "format": number}
    write_atomically(folder / FILE, (json.dumps(about) + "\n").encode(), mode)


def check_folder(folder: Path, known: int) -> None:
    path = folder / FILE
    if not path.is_file():
        return
    try:
        found = json.loads(path.read_text())["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} can't be read: restore it from a copy, or delete it if it is of format 1"
        ) from error
    check(found, known, str(folder))
