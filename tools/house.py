"""The house seen from outside: which room imports which, how long functions are, the way of a
FedAvg run.

    python tools/house.py graph docs/rooms.svg  draw the rooms and their imports
    python tools/house.py figures [CHECKOUT]    files, lines, functions;
                                                the files a FedAvg run goes through
"""

import ast
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = "lexfed"


# --- rooms ---------------------------------------------------------------------------------------


def imports(root: Path = ROOT) -> dict[str, set[str]]:
    """Each room, and the rooms it imports from. A module at the top is a room of its own."""
    rooms: dict[str, set[str]] = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        room = path.relative_to(root / PACKAGE).parts[0].removesuffix(".py")
        if room != "__init__":
            rooms.setdefault(room, set()).update(set(_imported(path)) - {room})
    return {room: others & set(rooms) for room, others in rooms.items()}


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith(f"{PACKAGE}."):
                yield name.split(".")[1]


def floors(rooms: dict[str, set[str]]) -> list[list[str]]:
    """Rooms by floor: each stands on the floors below it. Raises if there is a cycle."""
    left, done, result = dict(rooms), set[str](), []
    while left:
        floor = sorted(room for room, others in left.items() if others <= done)
        if not floor:
            raise ValueError(f"rooms that import each other: {', '.join(sorted(left))}")
        result.append(floor)
        done |= set(floor)
        left = {room: others for room, others in left.items() if room not in done}
    return result


WIDTH, STEP, BOX = 900, 74, (104, 30)


def draw(rooms: dict[str, set[str]]) -> str:
    """Boxes by floor, the lowest at the bottom; a line goes from a room down to one it imports."""
    levels = floors(rooms)
    places: dict[str, tuple[float, float]] = {}
    for number, floor in enumerate(reversed(levels)):
        for place, room in enumerate(floor):
            places[room] = (WIDTH * (place + 0.5) / len(floor), 30 + STEP * number)
    lines = [
        f'<path d="M{x:.0f},{y + 15:.0f} C{x:.0f},{y + 45:.0f} '
        f'{u:.0f},{v - 45:.0f} {u:.0f},{v - 15:.0f}"/>'
        for room, others in sorted(rooms.items())
        for other in sorted(_direct(room, rooms))
        for (x, y), (u, v) in [(places[room], places[other])]
    ]
    boxes = [
        f'<rect x="{x - BOX[0] / 2:.0f}" y="{y - BOX[1] / 2:.0f}" '
        f'width="{BOX[0]}" height="{BOX[1]}" rx="6"/>'
        f'<text x="{x:.0f}" y="{y + 5:.0f}">{room}</text>'
        for room, (x, y) in sorted(places.items())
    ]
    style = "path{fill:none;stroke:#94a3b8}rect{fill:#eff6ff;stroke:#2563eb}"
    style += "text{font:14px sans-serif;text-anchor:middle;fill:#1f2937}"
    height = 30 + STEP * len(levels)
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>'
    return "\n".join([head, *lines, *boxes, "</svg>", ""])


def _direct(room: str, rooms: dict[str, set[str]]) -> set[str]:
    """What a room imports, less what it reaches through another room as well: so the picture can be
    read.
    """
    below = {other: _reached(other, rooms) for other in rooms[room]}
    return {other for other in below if not any(other in reached for reached in below.values())}


def _reached(room: str, rooms: dict[str, set[str]]) -> set[str]:
    return rooms[room] | {far for other in rooms[room] for far in _reached(other, rooms)}


# --- figures -------------------------------------------------------------------------------------


def figures(root: Path) -> dict[str, object]:
    paths = list((root / PACKAGE).rglob("*.py"))
    sizes = {path: list(_functions(path)) for path in paths}
    lengths = [length for functions in sizes.values() for length, _ in functions]
    rooms = imports(root)
    crowded = max(
        (len(list(folder.glob("*.py"))), folder.name) for folder in (root / PACKAGE).rglob("*/")
    )
    return {
        "files": len(paths),
        "lines": sum(path.read_text().count("\n") for path in paths),
        "rooms": len(rooms),
        "largest room": f"{crowded[1]} ({crowded[0]} files)",
        "functions": len(lengths),
        "median function": statistics.median(lengths),
        "90th percentile": sorted(lengths)[int(0.9 * len(lengths))],
        "largest function": max((length, name) for own in sizes.values() for length, name in own),
        "functions over 40 lines": sum(length > 40 for length in lengths),
        **way(root),
    }


def _functions(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, f"{path.name}:{node.name}"


WATCH = """
import json, os, sys
met, seen, last = set(), set(), None
home = os.path.join({root!r}, "lexfed") + os.sep
def watch(frame, event, argument):
    global last
    if event == "call" and frame.f_code.co_filename.startswith(home):
        file = frame.f_code.co_filename
        met.add(file)
        if file != last:
            seen.add((last, file))
        last = file
from lexfed.cli import main
for out, watched in (({out!r} + "-first", None), ({out!r}, watch)):  # the first one imports
    sys.argv = ["lexfed", "run", {config!r}, "--out", out]
    sys.setprofile(watched)
    try:
        main()
    except SystemExit:
        sys.setprofile(None)
open({found!r}, "w").write(json.dumps([len(met), len(seen)]))
"""


def way(root: Path) -> dict[str, int]:
    """Files that a FedAvg run calls something in, and pairs of files that a call goes between."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [{"text": f"text number {i} of few", "label": i % 2} for i in range(60)]
        (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = folder / "c.toml"
        config.write_text(
            f'rounds = 2\n[data]\nname = "{folder}/t.jsonl"\nclients = 4\n[cohort]\nsize = 2\n'
            "[model]\nembedding = 4\nhidden = 4\n"
        )
        words = {
            "root": str(root),
            "config": str(config),
            "out": f"{folder}/run",
            "found": f"{folder}/found",
        }
        environment = {**os.environ, "PYTHONPATH": str(root)}
        command = [sys.executable, "-c", WATCH.format(**words)]
        subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, check=True)
        files, hops = json.loads((folder / "found").read_text())
        return {"files of a FedAvg run": files, "hops of a FedAvg run": hops}


def main() -> None:
    if sys.argv[1:2] == ["graph"] and len(sys.argv) == 3:
        Path(sys.argv[2]).write_text(draw(imports()))
    elif sys.argv[1:2] == ["figures"]:
        root = Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else ROOT
        for key, value in figures(root).items():
            print(f"{key}: {value}")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
