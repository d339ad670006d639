"""Write any result of Shardwise as JSON."""

from __future__ import annotations

import os
from typing import Any

from shardwise.errors import BadFile


def encode(value: Any) -> bytes:
    """Encode a result of Shardwise as indented JSON."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=1)


def write(value: Any, path: str | os.PathLike[str]) -> None:
    """Write a result of Shardwise as a JSON file.

    Raises:
        BadFile: the file cannot be written.
    """
    try:
        with open(path, "wb") as file:
            file.write(encode(value) + b"\n")
    except OSError as error:
        raise BadFile(f"{os.fspath(path)}: {error.strerror}. Nothing was saved.") from None
