"""The door: a Unix socket at which a relay hands in a letter and waits for the answer.

    frame   8 bytes length of the head, head, 8 bytes length of the body, body     both ways

Who knocks is asked of the kernel, not of the one who knocks: users that site.toml does not name are
sent away before a byte is read.
"""

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lexfed.core.errors import ConfigError
from lexfed.runtime.letters import LONGEST_HEAD

Answer = Callable[[bytes, bytes], tuple[bytes, bytes]]
LONGEST_BODY = 1 << 33
WAITING = 16  # that knock at the same time
PATIENCE = 60.0  # seconds without a byte, while a frame comes in


@contextmanager
def door(
    path: Path, users: frozenset[int], answer: Answer, say: Callable[[str], None]
) -> Iterator[None]:
    """Open while the context is. Each that knocks is served in a thread; `answer` takes one at a
    time.
    """
    listening = _bound(path)
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(
                target=_served, args=(connection, users, answer, say), daemon=True
            ).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield
    finally:
        stop.set()
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        path.unlink(missing_ok=True)


def _bound(path: Path) -> socket.socket:
    """A socket of a process that was killed is taken away; that of one that lives is not."""
    if len(os.fsencode(path)) > 107:
        raise ConfigError(f"{path} is too long for a socket: set door.socket to a shorter path")
    if path.exists():
        with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
            probe.connect(str(path))
            raise ConfigError(f"{path} is in use: another lexfed client runs here")
        path.unlink()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    path.chmod(0o666)  # the kernel says who knocks
    listening.listen(WAITING)
    return listening


def _served(
    connection: socket.socket, users: frozenset[int], answer: Answer, say: Callable[[str], None]
) -> None:
    with connection:
        _, user, _ = struct.unpack(
            "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
        if user not in users:
            say(f"sent away user {user}, who may not knock (door.user)")
            return
        connection.settimeout(PATIENCE)
        try:
            head, body = _frame(connection, LONGEST_HEAD), _frame(connection, LONGEST_BODY)
            connection.settimeout(None)
            for part in answer(head, body):
                connection.sendall(len(part).to_bytes(8, "big"))
                connection.sendall(part)
        except (OSError, EOFError) as error:
            say(f"a letter was cut off: {type(error).__name__}")


def _frame(connection: socket.socket, longest: int) -> bytes:
    length = int.from_bytes(_exactly(connection, 8), "big")
    if length > longest:
        raise EOFError("longer than any letter")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        piece = connection.recv(min(1 << 20, length - len(parts)))
        if not piece:
            raise EOFError("cut off")
        parts += piece
    return bytes(parts)
