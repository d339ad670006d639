"""Options of the HTTP server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shardwise.errors import BadFile

KEYS_VARIABLE = "SHARDWISE_API_KEYS"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How the server listens, and what it takes.

    Args:
        host: address to listen on; the usual one is reached from this machine alone.
        port: port to listen on; 0 for any that is free.
        api_keys: keys of which clients send one; empty to ask for none.
        max_body: bytes of the longest body of a request.
        most_waiting: outputs that may wait for their first token, before more are refused.
        drain_seconds: time to finish what runs when the server is told to end.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: frozenset[str] = frozenset()
    max_body: int = 10_000_000
    most_waiting: int = 256
    drain_seconds: float = 30.0


def read_api_keys(path: Path | None, environment: Mapping[str, str]) -> frozenset[str]:
    """The API keys of a file, one a line, and of the variable SHARDWISE_API_KEYS, by commas.

    Raises:
        BadFile: the file cannot be read, or has no key.
    """
    keys = set()
    for key in environment.get(KEYS_VARIABLE, "").split(","):
        keys.add(key.strip())
    if path is not None:
        keys |= _file_keys(path)
    return frozenset(keys - {""})


def _file_keys(path: Path) -> set[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"the API keys of {path} cannot be read: {error}.") from None
    keys = {line.strip() for line in lines if not line.startswith("#")}
    if not keys - {""}:
        raise BadFile(f"{path} has no API key: write one on each line.")
    return keys
