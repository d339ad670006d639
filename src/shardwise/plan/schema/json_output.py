"""Write any result of Shardwise as JSON."""

from __future__ import annotations

import os
from typing import Any

from shardwise.errors import file_error


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
        raise file_error(path, error, "Nothing was saved.") from None
