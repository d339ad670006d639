"""Check that a folder can be written, before a long run relies on it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from shardwise.errors import BadFile


def ensure_writable(folder: Path, content: str) -> None:
    """Check that a folder can be written: create it if missing, and a temporary file in it.

    Args:
        content: what will be written to it, for the error message, such as "checkpoints".

    Raises:
        BadFile: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
    except OSError as error:
        raise BadFile(f"{content} cannot be written to {folder}: {error.strerror}.") from None
