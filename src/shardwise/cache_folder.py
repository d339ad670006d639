"""The folder in which compiled programs stay from one run to the next."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MAX_BYTES = 2**30  # of each kind of entry: several thousand programs of typical size


def cache_folder() -> Path:
    """`$SHARDWISE_CACHE`, else `shardwise` in the user's cache folder."""
    path = os.environ.get("SHARDWISE_CACHE")
    if path:
        return Path(path)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shardwise"


def shrink(folder: Path, pattern: str, max_bytes: int = MAX_BYTES) -> None:
    """Delete the least recently used entries of a folder until at most `max_bytes` remain.

    Args:
        pattern: of the names of entries.
    """
    entries = []
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):  # another process has deleted it
            entries.append((path, path.stat()))
    entries.sort(key=lambda entry: max(entry[1].st_atime, entry[1].st_mtime), reverse=True)
    total_bytes = 0
    for path, stat in entries:
        total_bytes += stat.st_size
        if total_bytes > max_bytes:
            with contextlib.suppress(OSError):
                path.unlink()
