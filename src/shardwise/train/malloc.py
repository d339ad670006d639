"""Memory of a process that computes on its CPU: freed arrays are reused by the next step."""

from __future__ import annotations

import ctypes
import sys

# Parameters of glibc's `mallopt` (malloc.h).
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8
_NEVER = -1


def keep_freed_memory() -> bool:
    """Let the C library keep freed memory; return whether it can (glibc only).

    By default it returns large arrays to the system at once, and each step would request its
    temporary arrays again, page by page, which takes longer than the element-wise work on them. The
    setting holds for the whole process and should be made before it has threads.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _NEVER), (_M_ARENA_MAX, 1))
    return all(mallopt(parameter, value) for parameter, value in settings)
