"""Progress of long work, on one line of a terminal's stderr that goes when the work is done."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

DELAY_S = 0.5  # shorter work shows nothing


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Show `text` on a terminal after half a second. Pipes and files get nothing."""
    line = TerminalLine(sys.stderr)
    timer = threading.Timer(DELAY_S, line.show, args=(f"{text} ...",))
    timer.daemon = True
    if line.stream.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()
        line.clear()


@contextmanager
def counting(unit: str) -> Iterator[Callable[[int, int], None]]:
    """Count on a terminal while the rows of a sweep are searched."""
    line = TerminalLine(sys.stderr)

    def count(done: int, total: int) -> None:
        if line.stream.isatty() and total > 1:
            line.show(f"{done:,} of {total:,} {unit} ...")

    try:
        yield count
    finally:
        line.clear()


class TerminalLine:
    """One line of a terminal, written over and over."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._width = 0

    def show(self, text: str) -> None:
        """Write `text` over the line."""
        start = "\r" if self._width else ""
        self.stream.write(start + text.ljust(self._width))
        self.stream.flush()
        self._width = max(self._width, len(text))

    def clear(self) -> None:
        """Remove the line."""
        if self._width:
            self.stream.write("\r" + " " * self._width + "\r")
            self.stream.flush()
            self._width = 0


class Stages:
    """The stage of long work: its seconds on a terminal, one line for each stage elsewhere."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, stage: str) -> None:
        """End the stage before and begin this one; an empty name begins none."""
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
        """End the stage and remove its line."""
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            self._thread = None


def _count(stage: str, ended: threading.Event) -> None:
    start = time.perf_counter()
    line = TerminalLine(sys.stderr)
    while True:
        seconds = time.perf_counter() - start
        line.show(f"{stage}, {seconds:.0f} s (minutes are normal for large models)")
        if ended.wait(1.0):
            break
    line.clear()
