"""The process that worker processes are forked from. It imports once, while the command line is
still reading its input.
"""

import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from types import ModuleType


def warm_up() -> ForkServerContext:
    """Start it, if it does not run yet. It has no threads of its own, so that a fork of it is safe;
    ours may.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lexfed.runtime.preloaded"])
    forkserver.ensure_running()
    return context


@contextmanager
def without_main() -> Iterator[None]:
    """A process that is started in here does not import the caller's script: it may be a notebook,
    or have no main guard.
    """
    ours = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = ours
