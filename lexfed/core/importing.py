"""Things of the user's own by name: `package.module:ATTRIBUTE`, in a configuration.

Workers and nodes import them in the same way; what can't be imported there is an error, never
something else instead.
"""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from lexfed.core.errors import ConfigError


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
    """Modules in this folder, and where we are, can be named from now on. Behind all others: they
    hide nothing.
    """
    for place in (str(folder.resolve()), os.getcwd()):
        if place not in sys.path:
            sys.path.append(place)


def own(name: str, key: str) -> Any:
    """What the name stands for; `key` of the configuration holds it."""
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{key} = '{name}': {error}; is its folder on PYTHONPATH?") from error
    except Exception as error:  # whatever a module does when it is imported
        raise ConfigError(
            f"{key} = '{name}': importing {module} failed: {type(error).__name__}: {error}"
        ) from error
    if not hasattr(found, attribute):
        raise ConfigError(f"{key} = '{name}': {module} has no '{attribute}'")
    return getattr(found, attribute)
