"""Signs of life between the processes of a run.

A process that waits for another in a collective learns of its end as the connection breaks. One
that waits to save with it, or to compile, does not; and JAX, which has such signs too, then ends
with a trace instead of a word.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any, NoReturn

from shardwise.errors import CheckFailed

BEAT_S = 2.0
SILENT_S = 30.0  # after which a process that gives no sign of life is given up
_KEY = "shardwise/alive"


def gone(reason: object) -> NoReturn:
    """End this process, because another of its run is gone: nothing it waits for will come."""
    first = (str(reason).strip().splitlines() or [""])[0]
    sys.stderr.write(
        "shardwise: another process of this run has ended: this one ends too. "
        "Start all of them again with --resume: what was saved is whole.\n"
        f"  {first[:300]}\n"
    )
    sys.stderr.flush()
    os._exit(CheckFailed.exit_code)  # what Python does at its end would wait for the other


def watch(client: Any, process: int, processes: int) -> None:
    """Give signs of life, and end this process where those of another stop.

    Args:
        client: of JAX's coordination service.
        process: number of this one.
        processes: of the whole run.
    """
    given = (client, process, [i for i in range(processes) if i != process])
    threading.Thread(target=_beat, args=given, name="alive", daemon=True).start()


def _beat(client: Any, process: int, others: list[int]) -> None:
    count, seen = 0, {other: ("", time.monotonic()) for other in others}
    while True:
        count += 1
        try:
            client.key_value_set(f"{_KEY}/{process}", str(count), allow_overwrite=True)
            every = client.key_value_dir_get(_KEY)
        except Exception:  # of the service that process 0 holds: JAX itself ends this process
            return
        told, now = {key.rsplit("/", 1)[-1]: value for key, value in every}, time.monotonic()
        for other, (last, since) in seen.items():
            sign = told.get(str(other), "")
            if sign != last:
                seen[other] = (sign, now)
            elif last and now - since > SILENT_S:
                gone(f"process {other} has given no sign of life for {SILENT_S:.0f} s")
        time.sleep(BEAT_S)
