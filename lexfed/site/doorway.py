"""The door: a Unix socket at which a relay hands in a letter and waits for the answer.

    frame   8 bytes length of the head, head, 8 bytes length of the body, body     both ways

Who knocks is asked of the kernel, not of the one who knocks: users that site.toml does not name are
sent away before a byte is read.
"""

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from lexfed.core.errors import ConfigError
from lexfed.runtime.letters import LONGEST_HEAD

Answer = Callable[[bytes, bytes], tuple[bytes, bytes]]
Admit = Callable[[bytes], bool]  # by its head
Say = Callable[[str], None]
LONGEST_BODY = 1 << 30
AT_ONCE = 2  # letters that come in, or wait for their answer
WAITING = 16  # that knock at the same time
PATIENCE = 60.0  # seconds without a byte, while a frame comes in
PATHS = 107  # bytes of a socket's path


@contextmanager
def door(
    path: Path, users: frozenset[int], answer: Answer, say: Say, admit: Admit = lambda head: True
) -> Iterator[None]:
    """Open while the context is. Each that knocks is served in a thread; `answer` takes one at a
    time.
    """
    listening = _bound(path)
    stop = threading.Event()
    keeper = Doorkeeper(users, answer, say, admit)

    def serve() -> None:
        while not stop.is_set():
            try:
                connection, _ = listening.accept()
                keeper.meet(connection)
            except OSError:  # one that hung up, or no file is left to open for a while
                stop.wait(0.1)

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
    """A socket of a process that was killed is taken away; that of one that lives is not, nor
    anything that is no socket.
    """
    if len(os.fsencode(path)) > PATHS:
        raise ConfigError(f"{path} is too long for a socket: set door.socket to a shorter path")
    if path.exists():
        if not path.is_socket():
            raise ConfigError(f"{path} is no socket: set door.socket to another path")
        if _lives(path):
            raise ConfigError(f"{path} is in use: another lexfed client runs here")
        path.unlink()
    listening = socket.socket(socket.AF_UNIX)
    try:
        before = os.umask(0o111)  # anybody may knock; the kernel says who it is
        try:
            listening.bind(str(path))
        finally:
            os.umask(before)
        listening.listen(WAITING)
    except OSError as error:
        listening.close()
        raise ConfigError(f"no socket can be made at {path}: {error.strerror}") from error
    return listening


def _lives(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:  # it is busy
            return True
    return True


@dataclass
class Doorkeeper:
    """Who may come in, and how many at once: a relay that is hostile can keep others of its kind
    out, and no more.
    """

    users: frozenset[int]
    answer: Answer
    say: Say
    admit: Admit = lambda head: True
    room: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(AT_ONCE)
    )
    told: dict[str, float] = field(default_factory=dict)

    def meet(self, connection: socket.socket) -> None:
        _, user, _ = struct.unpack(
            "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
        if user not in self.users:
            connection.close()
            self._tell(f"sent away user {user}, who may not knock (door.user)")
        elif not self.room.acquire(blocking=False):
            connection.close()
            self._tell(f"sent away a relay: {AT_ONCE} are here already")
        else:
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _tell(self, sentence: str) -> None:
        """Now and then: who knocks all day must not push everything else out of the log."""
        now = time.monotonic()
        if now - self.told.get(sentence, float("-inf")) >= PATIENCE:
            self.told[sentence] = now
            self.say(sentence)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(PATIENCE)
                head = _frame(connection, LONGEST_HEAD)
                known = self.admit(head)  # no body is read of a letter that nobody signed
                answer = (
                    self.answer(head, _frame(connection, LONGEST_BODY)) if known else (b"", b"")
                )
                for part in answer:
                    connection.sendall(len(part).to_bytes(8, "big"))
                    connection.sendall(part)
        except (OSError, EOFError) as error:
            self._tell(f"a letter was cut off: {type(error).__name__}")
        finally:
            self.room.release()


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
