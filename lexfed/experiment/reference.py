"""docs/configuration.md, made from the dataclasses: every key, its type, its default, a sentence,
and who reads it.

The sentence of a key is the comment beside it, or above it, in the dataclass that defines it: there
is one copy.

    python -m lexfed.experiment.reference > docs/configuration.md
"""

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from lexfed.experiment import known_methods, reads
from lexfed.experiment.config import Config
from lexfed.federation.method import Entry

HEAD = """# The configuration

This page is made from the code (`make docs`); a test keeps it true.

A configuration is a TOML file. Every key has a default, and a key that does not exist is refused. \
`--set table.key=value`
changes one key. A key that is set and that no method of the chosen kind reads is refused too: it \
would do nothing.
Other methods' own tables may stay in a file, so that `--set method=` can compare methods on it.

TOML has no word for "none". A key whose type ends in "or none" is unset with the string "none": \
`--set data.limit=none`,
or `limit = "none"` in a file.

*Read by* says which methods read a key; "all" is every method. Methods of your own read what \
their kind reads.
"""


def page() -> str:
    return HEAD + "\n" + "\n".join([_section("", Config, GENERAL), *_sections()])


GENERAL = "What every run has."


def _sections() -> Iterator[str]:
    hints = get_type_hints(Config)
    for field in dataclasses.fields(Config):
        kind = hints[field.name]
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            yield _section(field.name, kind, _about(kind))


def _section(table: str, kind: type, about: str) -> str:
    hints = get_type_hints(kind)
    said = comments(kind)
    rows = [
        (
            f"`{field.name}`",
            _type(hints[field.name]),
            _default(field),
            said.get(field.name, ""),
            _readers(table, field.name),
        )
        for field in dataclasses.fields(kind)
        if not dataclasses.is_dataclass(hints[field.name]) and field.name != "own"
    ]
    heads = ("key", "type", "default", "what it is", "read by")
    lines = ["| " + " | ".join(row) + " |" for row in (heads, ("---",) * 5, *map(_escaped, rows))]
    title = f"## [{table}]" if table else "## The run"
    return "\n".join([title, "", *textwrap.wrap(about, 110), "", *lines, ""])


def _escaped(row: Sequence[str]) -> list[str]:
    return [cell.replace("|", "\\|") for cell in row]


def _about(kind: type) -> str:
    """The docstring, without the words that say which table it is."""
    doc = " ".join((inspect.getdoc(kind) or "").split())
    for start in ("The `[", "the `["):
        if doc.startswith(start):
            doc = doc.partition("]` table")[2].lstrip(":. ")
    return doc[:1].upper() + doc[1:]


def _type(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(f"`{value!r}`".replace("'", '"') for value in get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        return (
            " or ".join(_type(part) for part in get_args(hint) if part is not NoneType)
            + ", or none"
        )
    if get_origin(hint) is tuple:
        one = get_args(hint)[0]
        return f"list of {_type(one)}{'s' if one in (int, float, str) else ''}"
    return {int: "whole number", float: "number", str: "string", bool: "true or false"}[hint]


def _default(field: "Field[Any]") -> str:
    value = field.default if field.default is not MISSING else None
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(_word(entry) for entry in value)}]`"
    return f"`{_word(value)}`"


def _word(value: object) -> str:
    return (
        f'"{value}"'
        if isinstance(value, str)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


@cache
def _entries() -> Mapping[str, Entry]:
    return {name: known_methods.method(name) for name in known_methods.METHODS}


def _readers(table: str, key: str) -> str:
    if table in known_methods.METHODS:
        return table
    path = f"{table}.{key}" if table else key
    readers = [name for name, entry in _entries().items() if reads.by_method(entry, path)]
    others = [name for name in known_methods.METHODS if name not in readers]
    if not others:
        return "all"
    return ", ".join(readers) if len(readers) <= len(others) else f"all but {', '.join(others)}"


def comments(kind: type) -> dict[str, str]:
    """What the source says of each field: on its line, or in the lines above it."""
    lines = textwrap.dedent(inspect.getsource(kind)).splitlines()
    body = ast.parse("\n".join(lines)).body[0]
    fields = [
        n
        for n in getattr(body, "body", [])
        if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    ]
    found = {}
    for node in fields:
        beside = (
            lines[(node.end_lineno or node.lineno) - 1][node.end_col_offset or 0 :]
            .partition("#")[2]
            .strip()
        )
        found[node.target.id] = beside or _above(lines, node.lineno - 2)  # type: ignore[union-attr]
    return found


def _above(lines: Sequence[str], place: int) -> str:
    said: list[str] = []
    while place >= 0 and lines[place].strip().startswith("#"):
        said.insert(0, lines[place].strip().removeprefix("#").strip())
        place -= 1
    return " ".join(said)


if __name__ == "__main__":
    print(page(), end="")
