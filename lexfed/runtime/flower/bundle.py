"""The app bundle: what Flower ships to every node. It holds two small files and no more.

Flower ships every file below the app's folder, so the folder is made for this alone: no corpus, no
key and no configuration can lie in it.
"""

from pathlib import Path

from lexfed import __version__
from lexfed.core.files import write_atomically

PACKAGE = "lexfed_relay"
RELAY = Path(__file__).with_name("relay.py")
PROJECT = f"""\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "lexfed-relay"
version = "{__version__}"
description = "Carries letters between a lexfed server and the site process of an organisation."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "lexfed"

[tool.flwr.app.components]
serverapp = "{PACKAGE}.server_app:app"
clientapp = "{PACKAGE}.relay:app"

[tool.flwr.app.config]
"""


def write(folder: Path, server_app: Path) -> Path:
    """`server_app`: the file that runs beside the SuperLink."""
    package = folder / PACKAGE
    package.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "pyproject.toml", PROJECT.encode())
    write_atomically(package / "__init__.py", b"")
    for source in (RELAY, server_app):
        write_atomically(package / source.name, source.read_bytes())
    return folder
