"""Heartbeats between the processes of a run, to detect that one of them has ended.

A process in a collective notices that another process has ended, since the connection breaks. A
process that waits for others to save or compile does not. JAX has heartbeats, too, but ends the
process with a traceback that does not say why.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from typing import Any, NoReturn

from shardwise.errors import CheckFailed

BEAT_S = 2.0  # between two heartbeats of a process
TIMEOUT_S = 30.0  # a process without a heartbeat for this long counts as ended
_KEY = "shardwise/alive"
# Starts of errors that XLA's runtime raises when a connection to another process breaks.
CONNECTION_ERRORS = (
    "ABORTED",
    "CANCELLED",
    "DEADLINE_EXCEEDED",
    "INTERNAL",
    "UNAVAILABLE",
    "UNKNOWN",
)


def is_lost_connection(error: Exception) -> bool:
    """Return whether JAX has raised an error because the connection to another process broke."""
    return str(error).startswith(CONNECTION_ERRORS)


def exit_after_peer(reason: object, advice: str) -> NoReturn:
    """End this process, because another process of the run has ended and it would wait forever.

    Args:
        advice: what to do.
    """
    first_line = str(reason).strip().partition("\n")[0]
    sys.stderr.write(
        f"shardwise: another process of this run has ended: this one ends too. {advice}\n"
        f"  {first_line[:300]}\n"
    )
    sys.stderr.flush()
    os._exit(CheckFailed.exit_code)  # Python's own shutdown would wait for the other process


def watch(client: Any, process: int, n_processes: int, advice: str) -> None:
    """Send heartbeats in a thread; end this process if those of another process stop.

    Args:
        client: client of JAX's coordination service, a key-value store of the run.
        process: index of this process.
        n_processes: number of processes in the run.
        advice: what to do when another process has ended.
    """
    peers = [index for index in range(n_processes) if index != process]
    ended = threading.Event()
    arguments = (client, process, peers, ended, advice)
    thread = threading.Thread(
        target=_exchange_heartbeats, args=arguments, name="heartbeat", daemon=True
    )

    def stop() -> None:
        ended.set()
        thread.join(TIMEOUT_S)

    # Python aborts a process whose thread comes back from C++ after the interpreter has gone.
    atexit.register(stop)
    thread.start()


def _exchange_heartbeats(
    client: Any, process: int, peers: list[int], ended: threading.Event, advice: str
) -> None:
    """Count up a number in the key-value store, and check that the peers do so, too."""
    count = 0
    latest = dict.fromkeys(peers, "")
    changed_s = dict.fromkeys(peers, time.monotonic())
    while not ended.is_set():
        count += 1
        try:
            client.key_value_set(f"{_KEY}/{process}", str(count), allow_overwrite=True)
            entries = client.key_value_dir_get(_KEY)
        except Exception:  # the service has ended, with process 0: JAX then ends this process
            return
        beats = {key.rsplit("/", 1)[-1]: value for key, value in entries}
        clock_s = time.monotonic()
        for peer in peers:
            beat = beats.get(str(peer), "")
            if beat != latest[peer]:
                latest[peer] = beat
                changed_s[peer] = clock_s
            elif beat and clock_s - changed_s[peer] > TIMEOUT_S:
                exit_after_peer(
                    f"process {peer} has sent no heartbeat for {TIMEOUT_S:.0f} s", advice
                )
        ended.wait(BEAT_S)
