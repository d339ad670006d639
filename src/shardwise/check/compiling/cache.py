"""Compiled programs on disk, so that the same program is compiled once.

An entry's name is a hash over all that the compiler sees, the lowered program first: whatever
changes, another entry is meant. So an entry is never stale, it is only not asked for any more.
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

# Enough for some thousands of programs of the usual size (100 to 300 KiB compressed).
MAX_BYTES = 2**30

# Part of every key; another number whenever `Compiled` or what goes into a key changes.
_FORMAT = "1"


def cache_folder() -> Path:
    """`$SHARDWISE_CACHE`, else `shardwise` in the user's folder for caches."""
    given = os.environ.get("SHARDWISE_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shardwise"


def key_of(parts: Iterable[str]) -> str:
    """A name for all of `parts` together; each is hashed with its length, so none runs over."""
    digest = hashlib.sha256(_FORMAT.encode())
    for part in parts:
        data = part.encode()
        digest.update(f"{len(data)}:".encode())
        digest.update(data)
    return digest.hexdigest()


def read(folder: Path, key: str) -> Compiled | None:
    """The entry, or None where there is none that can be read."""
    path = _path(folder, key)
    try:
        value = decode(path.read_bytes())
        # What was used last is thrown away last.
        os.utime(path)
    except (OSError, BadFile):
        return None
    return replace(value, cached=True) if isinstance(value, Compiled) else None


def write(folder: Path, key: str, value: Compiled, max_bytes: int = MAX_BYTES) -> None:
    """Put an entry in whole or not at all; a folder that cannot be written is no error."""
    path = _path(folder, key)
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
    """Delete what was used longest ago until the rest is small enough."""
    entries = sorted(
        ((path, path.stat()) for path in folder.glob("*.json")),
        key=lambda entry: entry[1].st_mtime,
        reverse=True,
    )
    held = 0
    for path, stat in entries:
        held += stat.st_size
        if held > max_bytes:
            path.unlink(missing_ok=True)


def _path(folder: Path, key: str) -> Path:
    return folder / "compiled" / f"{key}.json"
