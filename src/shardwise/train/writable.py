"""Folders that a run writes into."""

from __future__ import annotations

import tempfile
from pathlib import Path

from shardwise.errors import BadFile


def writable(folder: Path, what: str) -> None:
    """Make a folder where it is missing, and a file in it, before hours of work rely on that.

    Args:
        what: shall be written there, for the message.

    Raises:
        BadFile: it is not possible.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
    except OSError as error:
        raise BadFile(f"{what} cannot be written to {folder}: {error.strerror}.") from None
