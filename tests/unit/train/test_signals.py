"""Signals that ask a run to end, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from shardwise.train.signals import DUPLICATE_S
from tests.conftest import ROOT

PATIENCE_S = 60

# Locked twice, a mutex of C is waited for as XLA waits for a device: no handler of Python runs.
STUCK = """
import ctypes
from shardwise.train.signals import catch_signals
mutex, lock = ctypes.create_string_buffer(256), ctypes.CDLL(None).pthread_mutex_lock
with catch_signals():
    print("listens", flush=True)
    lock(mutex)
    lock(mutex)
"""
STEPS = """
import os, signal, threading, time
from shardwise.train.signals import catch_signals
before = signal.getsignal(signal.SIGTERM)
with catch_signals() as stop_request:
    print("listens", flush=True)
    while not stop_request.signal:
        time.sleep(0.01)
    time.sleep(0.2)
    print(stop_request.signal, flush=True)
assert signal.getsignal(signal.SIGTERM) == before
assert signal.set_wakeup_fd(-1) == -1
for thread in threading.enumerate():
    if thread.name == "signals":
        thread.join(10)
        assert not thread.is_alive()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""


def listening(script: str) -> subprocess.Popen[str]:
    """A process that has begun to listen."""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "listens\n", process.stderr and process.stderr.read()
    return process


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_the_second_ends_a_process_that_hangs(
    first: signal.Signals, second: signal.Signals
) -> None:
    process = listening(STUCK)
    try:
        process.send_signal(first)
        time.sleep(2 * DUPLICATE_S)
        assert process.poll() is None, "the first one waits for the step"
        process.send_signal(second)
        _, said = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 128 + second
    assert said == (
        f"\nshardwise: {first.name}: ends after this step; a second signal ends it at once.\n"
        f"\nshardwise: ended at once by a second signal, {second.name}; saved "
        "checkpoints are complete.\n"
    )


def test_one_that_is_sent_twice_counts_once() -> None:
    """As coreutils' `timeout` does; and handlers are as before when nothing listens any more."""
    process = listening(STEPS)
    try:
        process.send_signal(signal.SIGTERM)
        time.sleep(DUPLICATE_S / 20)
        process.send_signal(signal.SIGTERM)
        told, said = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert told == "SIGTERM\n"
    assert process.returncode == -signal.SIGTERM, said
