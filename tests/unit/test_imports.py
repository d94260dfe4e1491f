"""Imports go one way."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "lexfed"

# A room may import from the rooms above it and from itself.
ORDER = [
    ["errors", "files", "seeds", "kernels", "memory"],
    ["params"],
    ["wire"],
    ["corpus"],
    ["models"],
    ["vocabulary", "privacy"],
    ["metrics", "optim"],
    ["federation"],
    ["methods"],
    ["config"],
    ["assembly", "checkpoint", "rundir"],
    ["runtime"],
    ["audit"],  # acts out a configuration to attack it
    ["report"],
    ["session"],
    ["launch", "agreeing", "auditing"],
    ["cli"],
]
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}


def imported(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" if node.module == "lexfed" else str(node.module) for alias in node.names]
    return names


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if room == "__init__":
        return
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "lexfed" and parts[1] not in (room, "__version__"):
            assert RANK[parts[1]] < RANK[room], f"{room} may not import {parts[1]}"


def test_every_room_has_its_place() -> None:
    rooms = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")} - {"__init__"}
    assert rooms == set(RANK)


@pytest.mark.parametrize(
    ("package", "home"), [("flwr", "runtime"), ("dp_accounting", "privacy"), ("tokenizers", "vocabulary")]
)
def test_some_packages_are_known_in_one_room_only(package: str, home: str) -> None:
    users = [path for path in PACKAGE.rglob("*.py") for name in imported(path) if name.split(".")[0] == package]
    assert all(path.relative_to(PACKAGE).parts[0] == home for path in users)
