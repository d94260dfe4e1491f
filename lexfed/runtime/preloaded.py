"""What the process that workers are forked from imports, once for all of them (see `forking`).

It holds our output open, so whoever reads that waits for it: it ends without taking itself apart,
which would be most of a second.
"""

import atexit
import multiprocessing.forkserver
import os
import sys

import lexfed.models.loops
import lexfed.runtime.workers  # noqa: F401


def is_fork_server() -> bool:
    """Whoever else imports this module ends as always."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is multiprocessing.forkserver.main.__code__:
            return True
    return False


if is_fork_server():
    atexit.register(os._exit, 0)
