"""Progress of long work on stderr.

A terminal has one line, which vanishes when the work is done. A pipe or a file gets a line now and
then. A `quiet` command, whose answer is a JSON document, gets lines on a terminal only.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

DELAY_S = 0.5  # work that takes less time shows nothing on a terminal
REFRESH_S = 1.0  # between two updates of a line of a terminal
LINE_EVERY_S = 10.0  # in a pipe or file, the first one after this time, too


@contextlib.contextmanager
def progress(text: str, *, quiet: bool = False) -> Iterator[None]:
    """Show `text` and the seconds since its start while the `with` block runs."""
    line = ProgressLine(quiet=quiet)
    ended = threading.Event()
    thread = threading.Thread(target=_show_seconds, args=(line, text, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        line.clear()


@contextlib.contextmanager
def progress_of_parts(text: str, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A function that says which part of some work begins; its seconds are shown."""
    with contextlib.ExitStack() as part:

        def begin(name: str) -> None:
            part.close()
            part.enter_context(progress(f"{text}: {name}", quiet=quiet))

        yield begin


def _show_seconds(line: ProgressLine, text: str, ended: threading.Event) -> None:
    """Show a text and the seconds since the start, until `ended` is set."""
    start_s = time.monotonic()
    wait_s = DELAY_S
    while not ended.wait(wait_s):
        line.show(f"{text}, {time.monotonic() - start_s:.0f} s ...")
        wait_s = REFRESH_S


@contextlib.contextmanager
def counting(unit: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A function that shows how many of all rows of a sweep are done.

    Args:
        unit: what a row is, in the plural: `plans`.
    """
    line = ProgressLine(quiet=quiet)

    def count(done: int, total: int) -> None:
        if total > 1:
            line.show(f"{done:,} of {total:,} {unit} ...")

    try:
        yield count
    finally:
        line.clear()


class ProgressLine:
    """The latest state of long work on stderr.

    Args:
        stream: where it is written; None for stderr.
        quiet: whether a pipe or file gets nothing.
    """

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self.stream = stream or sys.stderr
        self.is_terminal = self.stream.isatty()
        self.quiet = quiet
        self._width = 0
        self._line_s = time.monotonic()  # of the latest line in a pipe or file

    def show(self, text: str) -> None:
        """Replace the line of a terminal; elsewhere, write a line if one is due."""
        if self.is_terminal:
            start = "\r" if self._width else ""
            self._write(start + text.ljust(self._width))
            self._width = max(self._width, len(text))
        elif not self.quiet and time.monotonic() - self._line_s > LINE_EVERY_S:
            self._line_s = time.monotonic()
            self._write(f"{text}\n")

    def clear(self) -> None:
        """Remove the line of a terminal."""
        if self._width:
            self._write("\r" + " " * self._width + "\r")
            self._width = 0

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


class Stages:
    """The current stage of long work, with the seconds since it began.

    A pipe or file gets a line when a stage begins, too.
    """

    def __init__(self) -> None:
        self._stage = contextlib.ExitStack()

    def begin(self, stage: str) -> None:
        """End the current stage and begin a new one; an empty name begins none."""
        self.done()
        if not stage:
            return
        if not sys.stderr.isatty():
            sys.stderr.write(f"{stage} ...\n")
            sys.stderr.flush()
        self._stage.enter_context(progress(f"{stage} (minutes are normal for large models)"))

    def done(self) -> None:
        """End the current stage and remove its line from the terminal."""
        self._stage.close()
