"""Cache of compiled programs on disk.

The key of an entry is a hash of everything that determines the compiled program, such as the
lowered program and the compiler's version. So an entry is never stale.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from shardwise.check.compiling.result import Compiled, decode, encode
from shardwise.errors import BadFile

# Enough for several thousand programs of typical size (100 to 300 KiB compressed).
MAX_BYTES = 2**30

# Part of every key; incremented whenever `Compiled` or the contents of a key change.
_FORMAT = "1"


def cache_folder() -> Path:
    """`$SHARDWISE_CACHE`, else `shardwise` in the user's cache folder."""
    path = os.environ.get("SHARDWISE_CACHE")
    if path:
        return Path(path)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shardwise"


def key_of(parts: Iterable[str]) -> str:
    """A hash of all `parts` and their lengths, so that ("ab", "c") and ("a", "bc") differ."""
    digest = hashlib.sha256(_FORMAT.encode())
    for part in parts:
        data = part.encode()
        digest.update(f"{len(data)}:".encode())
        digest.update(data)
    return digest.hexdigest()


def read(folder: Path, key: str) -> Compiled | None:
    """Read an entry; None if it does not exist or cannot be read."""
    path = _entry_path(folder, key)
    try:
        value = decode(path.read_bytes())
        # Entries are deleted in the order of their last use.
        os.utime(path)
    except (OSError, BadFile):
        return None
    return replace(value, cached=True) if isinstance(value, Compiled) else None


def write(folder: Path, key: str, value: Compiled, max_bytes: int = MAX_BYTES) -> None:
    """Write an entry atomically; do nothing if the folder cannot be written."""
    path = _entry_path(folder, key)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(encode(value))
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
        _shrink(path.parent, max_bytes)


def _shrink(folder: Path, max_bytes: int) -> None:
    """Delete the least recently used entries until at most `max_bytes` remain."""
    entries = sorted(
        ((path, path.stat()) for path in folder.glob("*.json")),
        key=lambda entry: entry[1].st_mtime,
        reverse=True,
    )
    total_bytes = 0
    for path, stat in entries:
        total_bytes += stat.st_size
        if total_bytes > max_bytes:
            path.unlink(missing_ok=True)


def _entry_path(folder: Path, key: str) -> Path:
    return folder / "compiled" / f"{key}.json"
