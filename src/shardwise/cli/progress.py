"""A word on stderr about work that takes long, gone when it is done."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 0.5


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Show `text` on a terminal after half a second. Pipes and files get nothing."""
    stream = sys.stderr
    if not stream.isatty():
        yield
        return
    line = f"{text} ..."
    shown = threading.Event()

    def show() -> None:
        shown.set()
        stream.write(line)
        stream.flush()

    timer = threading.Timer(PATIENCE_S, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if shown.is_set():
            stream.write("\r" + " " * len(line) + "\r")
            stream.flush()
