"""Giving memory back: what a process has freed, its allocators keep, and beside large tables that
is what runs out.
"""

import ctypes
import sys
from functools import cache
from typing import Any

import pyarrow as pa


@cache
def _libc() -> Any:
    return ctypes.CDLL("libc.so.6") if sys.platform == "linux" else None


def give_back() -> None:
    """Return freed memory to the system. It changes no result; where it can't be done, nothing
    happens.
    """
    pa.default_memory_pool().release_unused()
    trim = getattr(_libc(), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def return_large_blocks(size: int = 4 << 20) -> None:
    """From now on, what is as large as this goes back to the system when it is freed, and threads
    share one heap.

    For methods whose threads handle large pieces of tables: kept for later, those would add up to
    as much again.
    """
    mallopt = getattr(_libc(), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, size)
        mallopt(_M_ARENA_MAX, 1)


def keep_blocks(size: int = 256 << 20) -> None:
    """From now on, up to so many bytes that are freed are kept for whoever comes next.

    Clients come one after the other and each needs the same few blocks of megabytes. Given back
    and asked for again, their pages cost a fifth of the time of a small language model's round.
    """
    mallopt = getattr(_libc(), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, size)
        mallopt(_M_TOP_PAD, _LARGEST_THRESHOLD)


# of glibc's malloc.h
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
_LARGEST_THRESHOLD = 32 << 20  # blocks above it always go back
