"""Heartbeats end before the interpreter does: a thread that returns later aborts the process."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, time
from shardwise.runtime.processes import heartbeat

class Client:
    def key_value_set(self, key, value, allow_overwrite):
        os.write(1, b"begin ")
        time.sleep(0.5)
        os.write(1, b"end ")

    def key_value_dir_get(self, key):
        return []

heartbeat.watch(Client(), 0, 2, "Start again.")
time.sleep(0.1)
"""


def test_the_last_heartbeat_comes_back_before_the_process_ends() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stdout.split() == ["begin", "end"]
