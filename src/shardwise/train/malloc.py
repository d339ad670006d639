"""Memory of a process that computes on its CPU: what a step frees, the next one takes again."""

from __future__ import annotations

import ctypes
import sys

# glibc's names of what `mallopt` sets (malloc.h).
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_NEVER = -1


def keep_memory() -> bool:
    """Let the C library keep freed memory; whether it can be told so (glibc).

    It gives large arrays back to the system at once. Each step would then ask for its temporary
    arrays again, page by page, which takes longer than the element-wise work on them. What is set
    holds for the whole process and should come before it has threads.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _NEVER), (_M_ARENA_MAX, 1))
    return all(mallopt(which, value) for which, value in settings)
