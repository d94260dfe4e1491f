"""Flower's processes, as lexfed starts them: their commands, their environment, and that none of
them is left behind.
"""

import ctypes
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from lexfed.core.errors import ConfigError, LexfedError
from lexfed.core.files import OWNER_ONLY, OWNERS_FOLDER, write_atomically
from lexfed.core.seeds import fresh

# nothing is told to anybody else, nothing is fetched
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONUNBUFFERED": "1",
}
ENVIRONMENT = ("HOME", "LANG", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV", "PYTHONPATH", "HF_HOME")
PARENT_DIES = 1  # PR_SET_PDEATHSIG
LONG = 120.0  # seconds: a loaded machine starts slowly


class ProcessError(LexfedError):
    """A process of Flower's that did not do what it was started for."""


@dataclass(frozen=True)
class Command:
    """A command, and what it needs of the environment; as a person would type it."""

    words: tuple[str, ...]
    home: Path  # Flower's own folder: its configuration, installed apps
    more: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        settings = " ".join(f"{k}={shlex.quote(v)}" for k, v in self._settings.items())
        return f"{settings} {shlex.join((Path(self.words[0]).name, *self.words[1:]))}"

    @property
    def _settings(self) -> dict[str, str]:
        told = {k: v for k, v in QUIET.items() if k.startswith("FLWR")}
        return {**told, "FLWR_HOME": str(self.home), **self.more}

    def environment(self) -> dict[str, str]:
        """Nothing of what else this process was told by its environment (passwords, say): what is
        shipped here runs with it.
        """
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in ENVIRONMENT or name.startswith(("LC_", "LEXFED_"))
        }
        return {**kept, **QUIET, **self._settings, "PATH": _path()}


def _path() -> str:
    """Flower starts programs of its own by name: they lie beside this Python."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def program(name: str) -> str:
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise ConfigError("Flower is not installed: pip install 'lexfed[flower]'")
    return str(path)


@contextmanager
def running(command: Command, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The process, its words in a file, until the context ends. It dies with this one, too."""
    log.parent.mkdir(OWNERS_FOLDER, parents=True, exist_ok=True)
    command.home.mkdir(OWNERS_FOLDER, parents=True, exist_ok=True)
    with log.open("ab") as words:
        process = subprocess.Popen(
            command.words, env=command.environment(), stdout=words, stderr=words,
            stdin=subprocess.DEVNULL, preexec_fn=_die_with_us, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        _end(process)


def _die_with_us() -> None:
    ctypes.CDLL(None).prctl(PARENT_DIES, signal.SIGTERM)


def _end(process: subprocess.Popen[bytes]) -> None:
    """And all that it started: they are of one session."""
    group = process.pid
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    process.wait()


def run(command: Command, wanted: bool = True) -> str:
    """What a short command prints; its end, if it fails."""
    done = subprocess.run(
        command.words, env=command.environment(), capture_output=True, text=True, timeout=LONG
    )
    if wanted and done.returncode:
        raise ProcessError(
            f"{Path(command.words[0]).name} failed: {_last(done.stderr + done.stdout)}"
        )
    return done.stdout


def _last(text: str) -> str:
    lines = [line.strip(" │") for line in text.splitlines() if any(map(str.isalnum, line))]
    return lines[-1] if lines else "it said nothing"


def wait_for_port(host: str, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ProcessError(f"it ended at once: {_last(log.read_text(errors='replace'))}")
        with suppress(OSError), socket.create_connection((host, port), timeout=1):
            return
        time.sleep(0.1)
    raise ProcessError(f"nobody listens at {host}:{port} after {LONG:.0f} seconds; see {log}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


# --- the commands ---------------------------------------------------------------------------------


def superlink(
    keys: Path, host: str, port: int, home: Path, more: Mapping[str, str], insecure: bool = False
) -> Command:
    tls: Sequence[str] = (
        ("--insecure",)
        if insecure
        else (
            "--ssl-certfile", str(keys / "server.crt"), "--ssl-keyfile", str(keys / "server.key"),
            "--ssl-ca-certfile", str(keys / "ca.crt"), "--enable-supernode-auth",
        )
    )  # fmt: skip
    address = ("--host", host, "--port", str(port))
    words = (
        program("flower-superlink"),
        *tls,
        *address,
        "--disable-runtime-dependency-installation",
    )
    return Command(words, home, more)


@dataclass(frozen=True)
class Node:
    """A SuperNode, and what starts the relay for each message. The two share a secret, so that no
    other local user can take the relay's place at the SuperNode's loopback interface.
    """

    folder: Path  # its key, and the certificate that it takes
    address: str  # of the SuperLink
    socket: Path  # of the site process
    port: int
    insecure: bool = False

    @property
    def home(self) -> Path:
        return self.folder / "flower"

    @property
    def secret(self) -> Path:
        return self.home / "superexec.secret"

    def prepare(self) -> None:
        self.home.mkdir(OWNERS_FOLDER, parents=True, exist_ok=True)
        write_atomically(self.secret, fresh(), OWNER_ONLY)

    def commands(self) -> tuple[Command, Command]:
        tls: Sequence[str] = (
            ("--insecure",)
            if self.insecure
            else (
                "--root-certificates", str(self.folder / "ca.crt"),
                "--auth-supernode-private-key", str(self.folder / "node"),
            )
        )  # fmt: skip
        ours = ("--superexec-auth-secret-file", str(self.secret))
        node = (
            program("flower-supernode"), *tls, "--superlink", self.address, "--host", "127.0.0.1",
            "--port", str(self.port), "--isolation", "process", *ours,
            "--node-config", f'lexfed-socket="{self.socket}"',
        )  # fmt: skip
        starter = (
            program("flower-superexec"), "--insecure", *ours,
            "--runtime-api-address", f"127.0.0.1:{self.port}",
        )  # fmt: skip
        return Command(node, self.home), Command(starter, self.home)


def configure(home: Path, address: str, ca: Path | None) -> None:
    """Flower's configuration file: where the SuperLink is, and whose certificates are taken."""
    home.mkdir(OWNERS_FOLDER, parents=True, exist_ok=True)
    secure = f'root-certificates = "{ca}"' if ca is not None else "insecure = true"
    text = (
        f'[superlink]\ndefault = "lexfed"\n\n[superlink.lexfed]\naddress = "{address}"\n{secure}\n'
    )
    (home / "config.toml").write_text(text)


def flwr(home: Path, *words: str) -> Command:
    return Command((program("flwr"), *words), home)
