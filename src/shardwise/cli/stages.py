"""A stage of long work on stderr: counting seconds on a terminal, one line elsewhere."""

from __future__ import annotations

import sys
import threading
import time


class Stages:
    """What is being done, until the next stage begins or all is done."""

    def __init__(self) -> None:
        self._ended: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def begin(self, stage: str) -> None:
        """A stage begins; an empty one ends the one before."""
        self.done()
        if not stage:
            return
        if not sys.stderr.isatty():
            sys.stderr.write(f"{stage} ...\n")
            sys.stderr.flush()
            return
        self._ended = threading.Event()
        self._thread = threading.Thread(target=_count, args=(stage, self._ended), daemon=True)
        self._thread.start()

    def done(self) -> None:
        """Take the line away."""
        if self._ended is not None and self._thread is not None:
            self._ended.set()
            self._thread.join()
            self._ended = self._thread = None


def _count(stage: str, ended: threading.Event) -> None:
    start, shown = time.perf_counter(), 0
    while True:
        line = f"{stage}, {time.perf_counter() - start:.0f} s (minutes are normal for large models)"
        sys.stderr.write("\r" + line.ljust(shown))
        sys.stderr.flush()
        shown = len(line)
        if ended.wait(1.0):
            break
    sys.stderr.write("\r" + " " * shown + "\r")
    sys.stderr.flush()
