"""A run that is asked to end finishes its step first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ASKED = (signal.SIGTERM, signal.SIGINT)


class Ending:
    """Whether somebody asked the run to end.

    Attributes:
        by: name of the signal, empty until then.
    """

    by: str = ""


@contextmanager
def listen() -> Iterator[Ending]:
    """Take note of SIGTERM and Ctrl-C; a second Ctrl-C interrupts at once."""
    ending = Ending()
    if threading.current_thread() is not threading.main_thread():
        yield ending  # Python gives signals to the main thread alone
        return

    def note(number: int, frame: Any) -> None:
        if ending.by and number == signal.SIGINT:
            raise KeyboardInterrupt
        ending.by = signal.Signals(number).name

    before = {number: signal.signal(number, note) for number in ASKED}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
