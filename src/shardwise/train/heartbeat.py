"""Heartbeats between the processes of a run.

A process that waits in a collective notices the end of another one when the connection breaks. One
that waits for others to save or to compile does not; and JAX, which has heartbeats too, then ends
with a traceback that names no cause.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any, NoReturn

from shardwise.errors import CheckFailed

BEAT_S = 2.0
TIMEOUT_S = 30.0  # without a heartbeat, after which a process counts as gone
_KEY = "shardwise/alive"


def exit_after_peer(reason: object) -> NoReturn:
    """End this process because another one has ended: what it waits for never comes."""
    first_line = str(reason).strip().partition("\n")[0]
    sys.stderr.write(
        "shardwise: another process of this run has ended: this one ends too. "
        "Start all of them again with --resume; saved checkpoints are complete.\n"
        f"  {first_line[:300]}\n"
    )
    sys.stderr.flush()
    os._exit(CheckFailed.exit_code)  # Python's own shutdown would wait for the other process


def watch(client: Any, process: int, n_processes: int) -> None:
    """Send heartbeats in a thread, and end this process if those of another one stop.

    Args:
        client: of JAX's coordination service.
        process: index of this one.
        n_processes: in the run.
    """
    peers = [index for index in range(n_processes) if index != process]
    arguments = (client, process, peers)
    threading.Thread(target=_beat, args=arguments, name="heartbeat", daemon=True).start()


def _beat(client: Any, process: int, peers: list[int]) -> None:
    count = 0
    latest = dict.fromkeys(peers, "")
    changed_s = dict.fromkeys(peers, time.monotonic())
    while True:
        count += 1
        try:
            client.key_value_set(f"{_KEY}/{process}", str(count), allow_overwrite=True)
            entries = client.key_value_dir_get(_KEY)
        except Exception:  # the service runs in process 0: without it JAX ends this process
            return
        beats = {key.rsplit("/", 1)[-1]: value for key, value in entries}
        clock_s = time.monotonic()
        for peer in peers:
            beat = beats.get(str(peer), "")
            if beat != latest[peer]:
                latest[peer] = beat
                changed_s[peer] = clock_s
            elif beat and clock_s - changed_s[peer] > TIMEOUT_S:
                exit_after_peer(f"process {peer} has sent no heartbeat for {TIMEOUT_S:.0f} s")
        time.sleep(BEAT_S)
