"""Documentation that can't rot: its commands exist, its links lead somewhere, its output is the
program's.
"""

import re
import shlex
from pathlib import Path

import click
import pytest
import typer.main
from safetensors import safe_open

from lexfed import cli
from tests.conftest import ROOT, Lexfed

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "RESULTS.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def commands() -> list[str]:
    found = []
    for page in PAGES:
        text = page.read_text()
        found += re.findall(r"`(lexfed [^`]+)`", text) + re.findall(
            r"^\$ (?:\.venv/bin/)?(lexfed .+)$", text, re.M
        )
    return sorted(set(found))


@pytest.mark.parametrize("line", commands())
def test_every_command_in_the_documentation_exists(line: str) -> None:
    command: click.Command = typer.main.get_command(cli.app)
    words = shlex.split(line)[1:]
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        assert words[0] in command.commands, line
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    assert {word for word in words if word.startswith("--")} <= known, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_readmes_error_is_the_real_one(tiny: Path, lexfed: Lexfed) -> None:
    (line,) = re.findall(r"^lexfed: .+$", (ROOT / "README.md").read_text(), re.M)
    assert lexfed("run", tiny, "--set", "data.alhpa=1").stderr.strip() == line


@pytest.mark.slow
def test_the_readmes_table_is_what_the_demo_prints(lexfed: Lexfed, tmp_path: Path) -> None:
    """Figures may move a little between processors; the order and the story may not."""
    result = lexfed("demo", "--out", tmp_path / "demo")
    assert result.returncode == 0
    shown, printed = (table(text) for text in ((ROOT / "README.md").read_text(), result.stdout))
    assert shown.keys() == printed.keys() == {"local_only", "fedavg", "fedevocab"}
    for method, figures in shown.items():
        assert printed[method] == pytest.approx(figures, abs=4.0), method


def table(text: str) -> dict[str, list[float]]:
    """Method -> its accuracies."""
    rows = re.findall(
        r"^(local_only|fedavg|fedevocab) +([\d.]+) % +([\d.]+) % +([\d.]+) %", text, re.M
    )
    return {method: [float(value) for value in values] for method, *values in rows}


def everything(path: Path) -> tuple[dict[str, bytes], dict[str, str]]:
    """All numbers and notes of a file; in which order its header names the notes is left to
    chance by its library.
    """
    with safe_open(path, "np") as file:
        numbers = {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
        return numbers, dict(file.metadata() or {})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "private", "agreed", "learned"])
def test_the_quick_experiments_take_less_than_a_minute(
    name: str, lexfed: Lexfed, tmp_path: Path
) -> None:
    import time

    started = time.perf_counter()
    result = lexfed("run", ROOT / f"experiments/quick/{name}.toml", "--out", tmp_path / "a")
    assert result.returncode == 0
    assert time.perf_counter() - started < 60
    assert (
        lexfed("run", ROOT / f"experiments/quick/{name}.toml", "--out", tmp_path / "b").returncode
        == 0
    )
    one, two = (
        everything(next((tmp_path / run / "artifacts").glob("*.safetensors"))) for run in "ab"
    )
    assert one == two, "bit for bit"


@pytest.mark.slow
def test_the_quick_audit_takes_less_than_a_minute(lexfed: Lexfed, tmp_path: Path) -> None:
    import time

    started = time.perf_counter()
    assert (
        lexfed("audit", ROOT / "experiments/quick/audit.toml", "--out", tmp_path / "a").returncode
        == 0
    )
    assert time.perf_counter() - started < 60
