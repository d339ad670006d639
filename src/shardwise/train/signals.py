"""A run that is asked to end finishes its step first; asked again, it ends at once."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ASKED = (signal.SIGTERM, signal.SIGINT)
ONCE_S = 0.5  # `timeout` and other launchers send a process what they send its group: twice
STDERR = 2


class Ending:
    """Whether somebody asked the run to end.

    Attributes:
        by: name of the signal, empty until then.
    """

    by: str = ""


@contextmanager
def listen() -> Iterator[Ending]:
    """Take note of SIGTERM and Ctrl-C; a second one of either ends the process at once."""
    ending = Ending()
    if threading.current_thread() is not threading.main_thread():
        yield ending  # Python gives signals to the main thread alone
        return

    def note(number: int, frame: Any) -> None:
        ending.by = ending.by or signal.Signals(number).name

    # A main thread that waits in XLA runs no handler, so another one reads what arrives.
    seen, arrived = os.pipe()
    os.set_blocking(arrived, False)
    threading.Thread(target=_watch, args=(seen,), name="signals", daemon=True).start()
    others = signal.set_wakeup_fd(arrived, warn_on_full_buffer=False)
    before = {number: signal.signal(number, note) for number in ASKED}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(others)
        os.close(arrived)  # which ends the thread


def _watch(seen: int) -> None:
    """End this process at the second signal; a byte arrives for each, which is its number."""
    first = None
    while numbers := os.read(seen, 64):
        for number in numbers:
            now = time.monotonic()
            if number not in ASKED:
                continue
            if first is not None and now - first > ONCE_S:
                _end(number)
            if first is None:
                first = now
                _write(f"{signal.Signals(number).name}: it ends after this step; again: at once.")
    os.close(seen)


def _end(number: int) -> None:
    """As the signal itself would: nothing waits for a thread that may hang."""
    name = signal.Signals(number).name
    _write(f"ended at once by a second signal, {name}; what was saved is whole.")
    os._exit(128 + number)  # the code that a shell gives to what a signal ended


def _write(said: str) -> None:
    with contextlib.suppress(OSError):
        if select.select([], [STDERR], [], 0)[1]:  # nobody may be reading any more
            os.write(STDERR, f"\nshardwise: {said}\n".encode())
