"""Memory allocation on CPUs: keeps freed arrays in the process for the next training step."""

from __future__ import annotations

import ctypes
import sys

# Parameters of glibc's `mallopt` (malloc.h).
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8
_NEVER = -1


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory in the process; return whether that is possible.

    By default glibc returns the memory of large arrays to the system when they are freed. Each
    training step then has to request its temporary arrays again, page by page, which takes longer
    than the element-wise operations on them. The setting applies to the whole process; call this
    before the process has threads. Other C libraries do not have it.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _NEVER), (_M_ARENA_MAX, 1))
    return all(mallopt(parameter, value) for parameter, value in settings)
