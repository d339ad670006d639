"""Lifetime of the compiling process: it ends when the process that started it ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time

_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>
_POLL_S = 1.0  # seconds between two looks at the parent, where the kernel sends no signal


def end_with_parent(parent_pid: int) -> None:
    """Let this process be killed when its parent ends, even if the parent is killed itself.

    Linux sends the signal. Elsewhere a thread looks at the parent, which may take a little longer,
    while the compiler holds the interpreter.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch, args=(parent_pid,), daemon=True).start()


def _watch(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_POLL_S)
    os.kill(os.getpid(), signal.SIGKILL)
