"""The page of a run while it goes on: on loopback, for who knows the address."""

import io
import socket
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path

import pytest

from lexfed.records.rundir import RunDir
from lexfed.report.live import live
from tests.conftest import Lexfed


def get(address: str, host: str = "") -> tuple[str, Message]:
    request = urllib.request.Request(address, headers={"Host": host} if host else {})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.read().decode(), answer.headers


def test_whoever_has_the_address_sees_the_page(tiny: Path, lexfed: Lexfed) -> None:
    assert lexfed("run", tiny, "--out", "a").returncode == 0
    run = RunDir(Path("a"))
    with live(run) as address:
        assert address.startswith("http://127.0.0.1:")
        text, headers = get(address)
        assert "<figure data-chart" in text
        assert headers["Refresh"] == "3"
        assert headers["Cache-Control"] == "no-store"
    with pytest.raises(urllib.error.URLError):
        get(address)


@pytest.mark.parametrize("wrong", ["path", "host", "other file"])
def test_nobody_else_does(wrong: str, tiny: Path, lexfed: Lexfed) -> None:
    assert lexfed("run", tiny, "--out", "a").returncode == 0
    with live(RunDir(Path("a"))) as address:
        base, _, word = address.rpartition("/")
        asked = {"path": f"{base}/", "host": address, "other file": f"{address}/../config.toml"}
        with pytest.raises(urllib.error.HTTPError) as refused:
            get(asked[wrong], host="elsewhere.example" if wrong == "host" else "")
        assert refused.value.code == 404
        assert word not in refused.value.read().decode()


@pytest.mark.slow
def test_before_the_first_round_it_says_so(tiny: Path, lexfed: Lexfed) -> None:
    assert lexfed("run", tiny, "--out", "a").returncode == 0
    (Path("a") / "rounds.jsonl").unlink()
    with live(RunDir(Path("a"))) as address:
        assert "No round has ended yet" in get(address)[0]


def test_who_looks_on_sees_the_end_and_no_longer_asks(tiny: Path, lexfed: Lexfed) -> None:
    assert lexfed("run", tiny, "--out", "a").returncode == 0
    last: list[Message] = []
    with live(RunDir(Path("a"))) as address:
        get(address)

        def look() -> None:
            while not last or "Refresh" in last[-1]:
                last.append(get(address)[1])

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
    looking.join(timeout=20)
    assert "Refresh" not in last[-1]


def test_a_run_shows_itself_while_it_goes_on(tiny: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lexfed.cli", "run", str(tiny), "--out", "a", "--live"]
    with subprocess.Popen(
        [*command, "--set", "rounds=8"], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as run:
        assert run.stdout is not None
        address = next(
            line.split()[-1] for line in run.stdout if line.startswith("live: open http://")
        )
        seen = []
        while not seen or "Refresh" in seen[-1][1]:
            seen.append(get(address))
        run.communicate()
    assert run.returncode == 0
    assert seen[-1][0].count("<figure data-chart") > 0
    assert "unfinished" not in seen[-1][0]


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_word_on_the_terminal(
    tiny: Path, lexfed: Lexfed, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lexfed("run", tiny, "--out", "a").returncode == 0
    said_there = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said_there)
    with live(RunDir(Path("a"))) as address:
        host, _, port = address.removeprefix("http://").partition("/")[0].partition(":")
        word = address.rpartition("/")[2]
        for said in (b"", f"GET /{word} HTTP/1.0\r\nHost: {host}:{port}\r\n\r\n".encode()):
            with socket.create_connection((host, int(port))) as reader:
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                reader.sendall(said)
        assert "<figure" in get(address)[0], "it still answers others"
    assert said_there.getvalue() == ""
