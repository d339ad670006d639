"""The server of the page in a process of its own, as users start it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def server(*words: str) -> Iterator[str]:
    """The address of a `shardwise ui` with these words, for the time of the block."""
    command = [sys.executable, "-m", "shardwise", "ui", *words, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            lines = iter(process.stdout or ())
            text = next(lines)
            while not text.rstrip().endswith("}"):
                text += next(lines)
            yield json.loads(text)["url"]
        finally:
            process.terminate()
