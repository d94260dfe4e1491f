"""Writing files so that a kill leaves the old one or the new one, never half of one."""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident

from lexfed.core.errors import ConfigError

OPEN = 0o644
OWNER_ONLY = 0o600
OWNERS_FOLDER = 0o700


def write_atomically(
    path: Path,
    data: bytes | Iterable[bytes | memoryview],
    mode: int = OPEN,
    durable: bool = True,
) -> None:
    """Write beside the target, then rename over it. The rename is the one moment at which the file
    changes, and it is on disk when this returns (unless a crash of the machine may forget it). What
    can't be written (a full disk) leaves nothing behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{get_ident()}")
    with naming(path):
        temporary.unlink(missing_ok=True)  # of a process that was killed, or somebody else's link
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        descriptor = os.open(temporary, flags, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for chunk in (data,) if isinstance(data, bytes) else data:
                    file.write(chunk)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if durable:
            keep_names(path.parent)


def make_private(folder: Path) -> None:
    """A folder that its owner alone can enter, and so every folder that is made on the way."""
    for place in (*reversed(folder.parents), folder):
        if not place.is_dir():
            place.mkdir(OWNERS_FOLDER, exist_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """What the system refuses here is said of this path: a full disk names no file, and a temporary
    one tells nobody anything.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:  # it is not the system's
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


def require_folder(path: Path, option: str = "--out") -> None:
    """For a file that the user asks for: refuse before the work, not after it."""
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent} for {option} {path}")


@contextmanager
def only_one(path: Path, otherwise: str) -> Iterator[None]:
    """One process at a time holds this file; `otherwise` is what another one hears."""
    with path.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(otherwise) from error
        yield


def keep_names(folder: Path) -> None:
    """Names are kept in their folder: without this a crash of the machine may forget a rename."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
