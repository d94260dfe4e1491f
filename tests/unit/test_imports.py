"""The shape of the house: imports go one way, rooms are small, names mean one thing."""

import ast
import re
import sys
from collections import Counter

import pytest

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import house

PACKAGE = ROOT / "lexfed"
MODULES = sorted(PACKAGE.rglob("*.py"))

# A room may import from the rooms above it and from itself.
ORDER = [
    ["core"],
    ["wire", "corpus", "models", "metrics"],
    ["vocabulary", "privacy"],
    ["federation"],
    ["learning", "secure"],
    ["agreement"],
    ["language", "word2vec", "layers"],
    ["methods"],
    ["experiment"],
    ["runtime"],
    ["audits", "records", "site"],
    ["report", "use"],
    ["runs"],
    ["deployment", "demo"],
    ["api", "cli"],
    ["__main__"],
]
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}


def test_imports_go_one_way() -> None:
    for room, others in house.imports().items():
        for other in others:
            assert RANK[other] < RANK[room], f"{room} may not import {other}"


def test_every_room_has_its_place_and_there_is_no_cycle() -> None:
    rooms = house.imports()
    assert set(rooms) == set(RANK)
    assert sum(map(len, house.floors(rooms))) == len(rooms)


def test_a_cycle_would_be_found() -> None:
    with pytest.raises(ValueError, match="import each other: a, b"):
        house.floors({"a": {"b"}, "b": {"a"}, "c": set()})


@pytest.mark.parametrize(
    ("package", "home"),
    [("flwr", "runtime"), ("dp_accounting", "privacy"), ("tokenizers", "vocabulary")],
)
def test_some_packages_are_known_in_one_room_only(package: str, home: str) -> None:
    """But for the file that Flower itself runs beside the SuperLink."""
    for path in MODULES:
        if path.name == "server_app.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] == package for name in names):
                assert path.relative_to(PACKAGE).parts[0] == home


def test_no_room_is_too_full() -> None:
    for folder in {path.parent for path in MODULES}:
        assert len(list(folder.glob("*.py"))) < 16, folder.name


def test_methods_hold_the_papers_and_nothing_else() -> None:
    files = [path for path in (PACKAGE / "methods").glob("*.py") if path.name != "__init__.py"]
    assert len(files) == 9
    for path in files:
        tree = ast.parse(path.read_text())
        ends = [node for node in tree.body if isinstance(node, ast.Assign)][-2:]
        names = {getattr(target, "id", "") for node in ends for target in node.targets}
        assert "METHOD" in names, f"{path.name} ends in its entry"


def test_no_name_stands_for_two_modules() -> None:
    """Nor for a module and a room: whoever reads a name knows where to look."""
    names = [path.stem for path in MODULES if not path.stem.startswith("__")]
    rooms = [str(path.parent.name) for path in MODULES if path.name == "__init__.py"]
    assert [name for name, n in Counter([*names, *rooms]).items() if n > 1] == []


def test_the_map_names_every_module() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    table = page.partition("| room | what lives there |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)/` \| (.*) \|$", table, re.M)
    told = {room: set(re.findall(r"`(\w+)/?`", says)) for room, says in rows}
    for path in MODULES:
        room, *inside = path.relative_to(PACKAGE).parts
        if inside and inside[-1] != "__init__.py":
            assert inside[0].removesuffix(".py") in told[room], path
    for room, names in told.items():
        there = {path.stem for path in (PACKAGE / room).iterdir()}
        assert {name for name in names if name.islower()} - there <= {"once"}, room


def test_nobody_asks_for_a_methods_or_models_name() -> None:
    from lexfed.experiment.known_methods import METHODS
    from lexfed.models.registry import MODELS

    for path in MODULES:
        if path.relative_to(PACKAGE).parts[0] == "methods":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                for leaf in ast.walk(node):
                    if isinstance(leaf, ast.Constant):
                        assert leaf.value not in {*METHODS, *MODELS}, f"{path}:{node.lineno}"


def test_no_function_is_longer_than_40_lines() -> None:
    for path in MODULES:
        for length, name in house._functions(path):
            assert length <= 40, f"{name} has {length} lines"
