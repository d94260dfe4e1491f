"""What the process that workers are forked from imports, once for all of them (see `forking`).

It holds our output open, so whoever reads that waits for it: it ends without taking itself apart,
which would be most of a second.
"""

import atexit
import os

import lexfed.models.loops
import lexfed.runtime.workers  # noqa: F401

atexit.register(os._exit, 0)
