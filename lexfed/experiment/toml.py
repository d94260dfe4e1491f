"""Strict TOML into frozen dataclasses: no unknown key, every value of its field's type."""

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from lexfed.core.errors import ConfigError, nearest


def apply(table: dict[str, Any], setting: str) -> None:
    """`data.alpha=0.1`: the value is TOML; what is not TOML is a string."""
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set wants key=value, not '{setting}'")
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        parsed = {}
    value = parsed["value"] if len(parsed) == 1 else text
    *path, last = key.strip().split(".")
    for name in path:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {setting}: '{name}' is not a table")
    table[last] = value


def set_if_absent(table: dict[str, Any], key: str, value: Any) -> None:
    """A key as `table.key`; what is no table is left to be refused where it is read."""
    name, _, last = key.partition(".")
    inner = table.setdefault(name, {})
    if isinstance(inner, dict):
        inner.setdefault(last, value)


NONE = "none"  # TOML has no word for it: how a key that may be none is unset
T = TypeVar("T")


def read(kind: type[T], table: Mapping[str, Any], where: str, hidden: tuple[str, ...] = ()) -> T:
    """A dataclass from a table: no unknown key, every value of its field's type. Hidden fields are
    no keys.
    """
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name not in hidden}
    for key in table:
        if key not in hints:
            raise ConfigError(f"unknown key '{where}{key}'; {nearest(key, hints)}")
    values = {key: _value(hints[key], value, f"{where}{key}") for key, value in table.items()}
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:  # a check of the user's own; ours raise ConfigError
        title = f"[{where.removesuffix('.')}]" if where else "the configuration"
        raise ConfigError(f"{title}: {error}") from error


TYPES = (
    "a key is int, float, str or bool, a Literal of words, a list of those (tuple[int, ...]), or "
    "one of them or None"
)


def check_types(kind: type, where: str) -> None:
    """Refuse a table of the user's own with a key that no file could hold."""
    try:
        hints = get_type_hints(kind)
    except NameError as error:
        raise ConfigError(f"[{where.removesuffix('.')}]: {error}") from error
    for key, hint in hints.items():
        if not _is_readable(hint):
            name = hint.__name__ if isinstance(hint, type) else str(hint)
            raise ConfigError(f"{where}{key} is of type {name}; {TYPES}")


def _is_readable(hint: Any) -> bool:
    arguments = [kind for kind in get_args(hint) if kind is not NoneType]
    if get_origin(hint) in (Union, UnionType):
        return len(arguments) == 1 and _is_readable(arguments[0])
    if get_origin(hint) is tuple:
        return len(arguments) == 2 and arguments[1] is Ellipsis and _is_readable(arguments[0])
    return get_origin(hint) is Literal or hint in (int, float, str, bool)


def _value(kind: Any, value: Any, key: str) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, Mapping):
            raise ConfigError(f"'{key}' is a table: write [{key}], not {key} = {value!r}")
        return read(kind, value, f"{key}.")
    if get_origin(kind) is Literal:
        if value not in get_args(kind) or isinstance(value, bool):
            raise ConfigError(
                f"{key} = {value!r} is not known; {nearest(str(value), map(str, get_args(kind)))}"
            )
        return value
    if get_origin(kind) in (Union, UnionType):
        if value is None or value == NONE:
            return None
        return _value(next(k for k in get_args(kind) if k is not NoneType), value, key)
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{key} must be a list, not {value!r}")
        return tuple(_value(get_args(kind)[0], entry, key) for entry in value)
    if kind is float and type(value) is int:
        return float(value)
    if kind is float and type(value) is float and not math.isfinite(value):
        raise ConfigError(f"{key} must be a finite number, not {value}")
    if type(value) is not kind:
        names = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
        raise ConfigError(f"{key} must be {names[kind]}, not {value!r}")
    return value


def word(value: Any, key: str) -> str:
    return str(_value(str, value, key))


def copied(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: copied(value) if isinstance(value, Mapping) else value for key, value in table.items()
    }


def flat(table: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """All keys of all tables, as `table.key`."""
    result: dict[str, Any] = {}
    for key, value in table.items():
        result |= (
            flat(value, f"{where}{key}.")
            if isinstance(value, Mapping)
            else {f"{where}{key}": value}
        )
    return result
