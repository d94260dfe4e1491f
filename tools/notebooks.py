"""Execute the notebooks of docs/notebooks, in a folder of their own; the sources stay as they are.

python tools/notebooks.py            write each with what it printed to .notebooks/, from where
                                     the site takes it; one that is newer than its source stays
python tools/notebooks.py private    this one, in any case
"""

import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "docs" / "notebooks"
EXECUTED = ROOT / ".notebooks"


def execute(source: Path) -> None:
    """An error in a cell is an error here, with the cell and its traceback."""
    notebook = nbformat.read(source, as_version=4)
    with tempfile.TemporaryDirectory(prefix="lexfed-notebook-") as folder:
        client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}})
        kernel = client.create_kernel_manager()
        kernel.transport, kernel.ip = "ipc", f"{folder}/.kernel"  # sockets of this user alone
        client.execute()
    EXECUTED.mkdir(exist_ok=True)
    nbformat.write(notebook, EXECUTED / source.name)


def main() -> None:
    named = sys.argv[1:]
    for source in sorted(SOURCES.glob("*.ipynb")):
        target = EXECUTED / source.name
        fresh = target.exists() and target.stat().st_mtime > source.stat().st_mtime
        if source.stem in named or (not named and not fresh):
            started = time.perf_counter()
            execute(source)
            print(f"{source.stem}: {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
