"""Early check that a folder can be written."""

from __future__ import annotations

import tempfile
from pathlib import Path

from shardwise.errors import BadFile


def ensure_writable(folder: Path, content: str) -> None:
    """Create a folder if missing, and a temporary file in it, before hours of work rely on it.

    Args:
        folder: to check.
        content: a noun for the error message, such as "checkpoints".

    Raises:
        BadFile: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
    except OSError as error:
        raise BadFile(f"{content} cannot be written to {folder}: {error.strerror}.") from None
