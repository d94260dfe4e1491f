"""What leaves an organisation, and what is shipped to it: letters and a small app, and nothing of
its own in either.
"""

import os
import runpy
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from lexfed.core.seeds import derive, public_identity, root
from lexfed.deployment import processes, server_app_file
from lexfed.deployment.driving import drive, prepared
from lexfed.experiment.assembly import assemble
from lexfed.runs.launch import Manner
from lexfed.runtime import letters
from lexfed.runtime.correspondence import Arrived
from lexfed.runtime.flower import bundle
from lexfed.runtime.letters import Letter
from lexfed.runtime.store import Store
from lexfed.secure.identity import Roster, write_identity, write_roster
from lexfed.site.desk import Desk
from lexfed.site.policy import Policy
from tests.organisations import (
    QUICK,
    SERVER,
    Local,
    close,
    desk,
    identities_of,
    loaded,
    server_keys,
    simulated,
    site,
)
from tests.unit.test_by_letter import CLASSIFIER
from tests.unit.test_by_letter import QUICK as FILES

RELAY = Path(bundle.RELAY)


def test_the_bundle_holds_two_files_and_nothing_else(tmp_path: Path) -> None:
    """As Flower itself builds it; keys, texts and configuration lie right beside the app."""
    app = bundle.write(tmp_path / "home/app", server_app_file.PATH)
    for name in ("identity.pem", "texts.csv", "config.toml", "site.toml"):
        (tmp_path / "home" / name).write_text("a secret")
    build = processes.flwr(tmp_path / "home", "build", "--app", str(app))
    subprocess.run(
        build.words, env=build.environment(), cwd=tmp_path, check=True, capture_output=True
    )
    (fab,) = tmp_path.glob("*.fab")
    with zipfile.ZipFile(fab) as files:
        shipped = {Path(name) for name in files.namelist()}
        content = b"".join(files.read(str(name)) for name in shipped)
    ours = {Path("lexfed_relay") / name for name in ("__init__.py", "relay.py", "server_app.py")}
    assert {path for path in shipped if path.parts[0] == "lexfed_relay"} == ours
    assert {p for p in shipped if p.parts[0] not in ("lexfed_relay", ".info")} == {
        Path("pyproject.toml")
    }
    assert b"a secret" not in content


def test_the_relay_imports_neither_torch_nor_lexfed() -> None:
    program = (
        "import sys, runpy; runpy.run_path(sys.argv[1]);"
        "print([n for n in sys.modules if n.split('.')[0] in ('torch', 'lexfed', 'transformers')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(RELAY)],
        capture_output=True,
        text=True,
        cwd="/",
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_no_letter_holds_text_secrets_or_a_private_table(tmp_path: Path) -> None:
    config = loaded(FILES / "private.toml", *CLASSIFIER)
    people = assemble(config).population
    identities = identities_of(people)
    carried: list[bytes] = []

    def overheard(node: int, head: bytes, body: bytes, at: Desk) -> Arrived:
        answer = at.answer(head, body)
        carried.extend((head, body, *answer))
        return Arrived("", *answer)

    policy = Policy(methods=("fedevocab",), clients=1)
    mine = [site(tmp_path / f"site{k}", k, identities, policy) for k in range(3)]
    desks = {k: desk(mine[k], simulated(config)) for k in range(3)}
    prepared(config, server_keys(tmp_path / "keys", identities), tmp_path / "run", QUICK)
    drive(Local(desks, overheard), tmp_path / "run", Manner(quiet=True))
    close(desks.values())
    everything = b"\0".join(carried)
    assert b"delta/" in everything  # it is the letters that were overheard
    for secret in _secrets(tmp_path, identities):
        assert secret not in everything
    for text in people.train:
        assert text.encode() not in everything
    for row in _private_rows(tmp_path, people_count=3):
        assert row not in everything


def _secrets(folder: Path, identities: list[bytes]) -> Iterator[bytes]:
    yield from identities
    yield SERVER
    yield root(0)
    for number in range(3):
        yield derive(root(number), "site")


def _private_rows(folder: Path, people_count: int) -> Iterator[bytes]:
    """Rows of the tables that the sites keep: 16 numbers each, as bytes."""
    found = 0
    for client in range(people_count):
        for place in (folder / f"site{client}").glob("federations/*/store"):
            state = Store(place).load(client, (10**6, 0))
            for value in state.params.values():
                if value.ndim == 2:
                    for row in value[:200].to(torch.float32):
                        found += 1
                        yield row.numpy().tobytes()
    assert found


# --- another user -------------------------------------------------------------------------------

RELAY_USER = 23402  # nobody else's


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be two users")
def test_a_relay_of_another_user_reads_nothing_and_carries_letters() -> None:
    """The site process is ours; the relay's very code runs as another user."""
    with tempfile.TemporaryDirectory(prefix="lexfed-") as place:
        outside, folder = Path(place), Path(place) / "site"
        folder.mkdir()
        outside.chmod(0o711)
        _site_folder(folder, outside)
        words = [sys.executable, "-m", "lexfed", "client", str(folder), "--no-node"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=folder) as process:
            try:
                assert any("listens" in line for line in iter(process.stdout.readline, ""))  # type: ignore[union-attr]
                _attacked(folder, outside / "door.sock")
            finally:
                process.terminate()
        log = (folder / "site.log").read_text()
        assert "refused 'hello'" in log
        assert "sent away user 23403" in log


def _attacked(folder: Path, door: Path) -> None:
    private = [path for path in folder.rglob("*") if path.is_file()]
    assert {"texts.csv", "identity.pem", "secret", "site.log"} <= {path.name for path in private}
    assert _as_user(RELAY_USER, lambda: _readable(private)) == ""
    relay = runpy.run_path(str(RELAY))
    hello = Letter("hello", "0" * 32, letters.ANYBODY, "1" * 32, "9.9", body=b"x")
    packet = list(letters.sealed(hello, SERVER))
    said = _as_user(RELAY_USER, lambda: relay["once"](str(door), packet)[0][64:].decode())
    assert '"kind": "refusal"' in said
    assert "they must be the same" in said  # another version, of which it logs
    # nobody else may even knock
    assert "Error: " in _as_user(RELAY_USER + 1, lambda: relay["once"](str(door), packet))


def _readable(files: list[Path]) -> str:
    return " ".join(path.name for path in files if os.access(path, os.R_OK))


def _as_user(user: int, act: Callable[[], str]) -> str:
    """What it returns, or its error, in a process of this user: Python is loaded already, as the
    user may not be able to read that either.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            said = act()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


def _site_folder(folder: Path, outside: Path) -> None:
    identities = [derive(root(n), "identity") for n in range(2)]
    write_identity(folder / "identity.pem", identities[0])
    clients = dict(enumerate(map(public_identity, identities)))
    write_roster(folder / "peers.json", Roster(clients, public_identity(SERVER)))
    (folder / "texts.csv").write_text("text,label\nthe patient has a rare disease,0\nfine,1\n")
    (folder / "site.toml").write_text(
        f'[data]\nname = "texts.csv"\n[policy]\nmethods = ["fedavg"]\n'
        f'[door]\nuser = "{RELAY_USER}"\nsocket = "{outside / "door.sock"}"\n'
    )
    folder.chmod(0o700)
