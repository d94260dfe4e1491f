"""The process that worker processes are forked from. It imports once, while the command line is still reading its input."""

import multiprocessing
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext


def warm_up() -> ForkServerContext:
    """Start it, if it does not run yet. It has no threads of its own, so that a fork of it is safe; ours may."""
    context = multiprocessing.get_context("forkserver")
    # torch's optimizers import torch._dynamo when first made: a second that each worker would spend
    context.set_forkserver_preload(["lexfed.runtime.workers", "torch._dynamo"])
    forkserver.ensure_running()
    return context
