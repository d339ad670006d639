"""Signal handling: the first signal ends a run after its step, the second one ends it at once."""

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

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# `timeout` and other launchers signal a process and then its group: two signals within this time
# count as one.
DUPLICATE_S = 0.5
STDERR = 2


class StopRequest:
    """A request to stop the run.

    Attributes:
        signal: name of the signal that asks the run to stop; empty until one arrives.
    """

    signal: str = ""


@contextmanager
def catch_signals() -> Iterator[StopRequest]:
    """Context in which SIGTERM or Ctrl-C sets a stop request; a second signal ends the process."""
    stop_request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop_request  # Python delivers signals to the main thread only
        return

    def on_signal(number: int, frame: Any) -> None:
        stop_request.signal = stop_request.signal or signal.Signals(number).name

    # Python runs handlers in the main thread, which may be waiting in XLA. Another thread therefore
    # reads the signal numbers, which Python writes to this pipe.
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    threading.Thread(target=_watch_signals, args=(read_fd,), name="signals", daemon=True).start()
    previous_fd = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    previous_handlers = {number: signal.signal(number, on_signal) for number in STOP_SIGNALS}
    try:
        yield stop_request
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(previous_fd)
        os.close(write_fd)  # ends the thread


def _watch_signals(read_fd: int) -> None:
    """Read signal numbers from a pipe, one byte each; end this process at the second signal."""
    first_s = None  # time of the first signal
    while numbers := os.read(read_fd, 64):
        for number in numbers:
            clock_s = time.monotonic()
            if number not in STOP_SIGNALS:
                continue
            if first_s is not None and clock_s - first_s > DUPLICATE_S:
                _exit(number)
            if first_s is None:
                first_s = clock_s
                name = signal.Signals(number).name
                _write(f"{name}: ends after this step; a second signal ends it at once.")
    os.close(read_fd)


def _exit(number: int) -> None:
    """End this process with the signal's exit code, without waiting for threads that may hang."""
    name = signal.Signals(number).name
    _write(f"ended at once by a second signal, {name}; saved checkpoints are complete.")
    os._exit(128 + number)  # the exit code by which shells report a signal


def _write(message: str) -> None:
    with contextlib.suppress(OSError):
        _, writable, _ = select.select([], [STDERR], [], 0)  # a full pipe would block the write
        if writable:
            os.write(STDERR, f"\nshardwise: {message}\n".encode())
