"""Things of the user's own by name: `package.module:ATTRIBUTE`, in a configuration.

Workers and nodes import them in the same way; what can't be imported there is an error, never
something else instead. A run remembers the folders they came from (`modules.json`): a resumed one
looks there again.
"""

import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lexfed.core.errors import ConfigError, LexfedError
from lexfed.core.files import write_atomically

MODULES = "modules.json"  # in a run directory: the folders of its modules
SCRIPT = "__main__"  # what is defined there, no other process can import

_looked: dict[str, None] = {}  # the folders that errors speak of, in the order of looking


def is_own(name: str) -> bool:
    """Whether a name is `package.module:ATTRIBUTE`. A path on another system's drive (`c:...`) is
    not.
    """
    module, colon, attribute = name.partition(":")
    return (
        bool(colon)
        and attribute.isidentifier()
        and all(part.isidentifier() for part in module.split("."))
    )


def look_in(folder: Path) -> None:
    """Modules in this folder, where we are, and where a run that lies there had its own from can be
    named from now on. Behind all others: they hide nothing.
    """
    for place in (str(folder.resolve()), os.getcwd(), *_remembered(folder)):
        _looked[place] = None
        if place not in sys.path:
            sys.path.append(place)


def looked_in() -> tuple[str, ...]:
    """The folders so far, for a process that is to look there too."""
    return tuple(_looked)


def remember(folder: Path, names: Iterable[str]) -> None:
    """Write down where the modules of these names were found, if any of them is the user's own."""
    homes = sorted({home for name in names if is_own(name) if (home := _home(name))})
    if homes:
        write_atomically(folder / MODULES, (json.dumps(homes, indent=1) + "\n").encode())


def _remembered(folder: Path) -> list[str]:
    try:
        found = json.loads((folder / MODULES).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / MODULES} can't be read: {error}") from error
    if not isinstance(found, list) or not all(isinstance(home, str) for home in found):
        raise ConfigError(f"{folder / MODULES} is no list of folders")
    return found


def _home(name: str) -> str | None:
    """The folder in which a module that was imported is looked for; None: it has no file."""
    module = name.partition(":")[0]
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or module == SCRIPT:
        return None
    path = Path(file).resolve()
    return str(path.parents[module.count(".") + (path.stem == "__init__")])


def own(name: str, key: str) -> Any:
    """What the name stands for; `key` of the configuration holds it."""
    module, _, attribute = name.partition(":")
    if hint := written(name):
        raise ConfigError(f"{key} = '{name}': {hint}")
    try:
        found = importlib.import_module(module)
    except LexfedError as error:
        raise ConfigError(f"{key} = '{name}': {error}") from error
    except Exception as error:  # whatever a module does when it is imported
        raise ConfigError(f"{key} = '{name}': {_why(module, error)}") from error
    if not hasattr(found, attribute):
        where = "the script that runs now" if module == SCRIPT else module
        raise ConfigError(f"{key} = '{name}': {where} has no '{attribute}'")
    return getattr(found, attribute)


def written(name: str) -> str:
    """How the path of a Python file must be written; "" if it is none: "write 'topk:METHOD'"."""
    file, _, attribute = name.partition(":")
    path = Path(file)
    if path.suffix != ".py":
        return ""
    folder = "" if path.parent == Path() else f", with {path.parent} on PYTHONPATH"
    return f"write '{path.stem}:{attribute or 'NAME'}'{folder}"


def _why(module: str, error: Exception) -> str:
    missing = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
    if not missing:  # it is there, and something in it is wrong
        return f"importing {module} failed{place_of(error)}: {type(error).__name__}: {error}"
    places = [place + ("" if Path(place).is_dir() else " (which is gone)") for place in _looked]
    looked = f", neither in {', '.join(places)} nor on Python's path" if places else ""
    return f"{error}{looked}; is its folder on PYTHONPATH?"


def place_of(error: BaseException) -> str:
    """Where in the user's own code it was raised: " (topk.py, line 7)"; "" if in none of it."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if is_users(file):
            found = f" ({os.path.basename(file)}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return found


_OURS = str(Path(__file__).parents[1])  # lexfed itself


def is_users(file: str) -> bool:
    """Neither lexfed's, nor Python's, nor an installed package's."""
    library = (os.path.dirname(os.__file__), _OURS)
    return not file.startswith(("<", *library)) and "site-packages" not in file


def takes(function: Callable[..., Any], *arguments: Any, **named: Any) -> bool:
    """Whether a function of the user's own can be called like this."""
    try:
        inspect.signature(function).bind(*arguments, **named)
    except TypeError:
        return False
    except ValueError:  # something without a signature: calling it will tell
        return True
    return True
