"""Progress of long work on stderr: a line of the terminal that vanishes when the work is done."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

DELAY_S = 0.5  # work that takes less time shows nothing
LINE_EVERY_S = 10.0  # in a pipe or file


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Show `text` on a terminal while the `with` block runs, unless it ends within DELAY_S.

    Pipes and files get nothing.
    """
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
    """A function that shows how many of all rows of a sweep are done.

    A pipe or file gets a line every LINE_EVERY_S seconds, a short sweep none.

    Args:
        unit: what a row is, in the plural: `plans`.
    """
    line = TerminalLine(sys.stderr)
    told_s = time.monotonic()

    def count(done: int, total: int) -> None:
        nonlocal told_s
        if line.stream.isatty():
            if total > 1:
                line.show(f"{done:,} of {total:,} {unit} ...")
        elif time.monotonic() - told_s > LINE_EVERY_S:
            told_s = time.monotonic()
            line.stream.write(f"{done:,} of {total:,} {unit} ...\n")
            line.stream.flush()

    try:
        yield count
    finally:
        line.clear()


class TerminalLine:
    """A line of a terminal, in which each text replaces the one before."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._width = 0

    def show(self, text: str) -> None:
        """Replace the text of the line."""
        start = "\r" if self._width else ""
        self.stream.write(start + text.ljust(self._width))
        self.stream.flush()
        self._width = max(self._width, len(text))

    def clear(self) -> None:
        """Remove the text of the line."""
        if self._width:
            self.stream.write("\r" + " " * self._width + "\r")
            self.stream.flush()
            self._width = 0


class Stages:
    """The current stage of long work.

    A terminal shows its name and the seconds since it began; a pipe or file gets a line per stage.
    """

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, stage: str) -> None:
        """End the current stage and begin a new one; an empty name begins none."""
        self.done()
        if not stage:
            return
        if not sys.stderr.isatty():
            sys.stderr.write(f"{stage} ...\n")
            sys.stderr.flush()
            return
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=_show_seconds, args=(stage, self._ended), daemon=True
        )
        self._thread.start()

    def done(self) -> None:
        """End the current stage and remove its line from the terminal."""
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            self._thread = None


def _show_seconds(stage: str, ended: threading.Event) -> None:
    """Show the seconds since the start of a stage on stderr, until `ended` is set."""
    start = time.perf_counter()
    line = TerminalLine(sys.stderr)
    while True:
        seconds = time.perf_counter() - start
        line.show(f"{stage}, {seconds:.0f} s (minutes are normal for large models)")
        if ended.wait(1.0):
            break
    line.clear()
