"""Steps as scalars of TensorBoard: the numbers of `metrics.jsonl` in event files of a folder."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwise.errors import BadFile, MissingExtra
from shardwise.train.metrics import Hooks, StepRecord

# What is drawn of a step, by the names of its record.
SCALARS = ("loss", "grad_norm", "learning_rate", "step_s", "tokens_per_s", "mfu", "memory_bytes")


class Board:
    """The event file of one run; a run that goes on adds another to the folder.

    Args:
        folder: it is made where it is not there.

    Raises:
        MissingExtra: tensorboardX is not installed.
        BadFile: the folder cannot be written.
    """

    def __init__(self, folder: str, say: Callable[[str], None]) -> None:
        try:
            from tensorboardX.event_file_writer import EventsWriter
        except ImportError:
            raise MissingExtra(
                "event files of TensorBoard need tensorboardX, which is missing: "
                "pip install 'shardwise[tensorboard]'."
            ) from None
        self.folder, self.say, self._full = folder, say, False
        # Not SummaryWriter: it writes in a thread, which ends where the disk is full, and waits for
        # that thread for ever.
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._writer: Any = EventsWriter(f"{folder}/events", f".{os.getpid()}")
        except OSError as error:
            raise BadFile(f"{folder}: {error.strerror}.") from None

    def step(self, record: StepRecord) -> None:
        """A step; when the disk is full it is said once, and the run goes on."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        if self._full:
            return
        told = {name: getattr(record, name) for name in SCALARS}
        values = [Summary.Value(tag=k, simple_value=v) for k, v in told.items() if v is not None]
        event = Event(wall_time=time.time(), step=record.step, summary=Summary(value=values))
        try:
            self._writer.write_event(event)
            self._writer.flush()
        except OSError as error:
            self.say(f"{self.folder}: {error.strerror}; no further steps are drawn there.")
            self._full = True

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # told when it was written
            self._writer.close()


def drawn(board: Board, hooks: Hooks) -> Hooks:
    """Hooks that draw every step too."""

    def on_step(record: StepRecord) -> None:
        hooks.on_step(record)
        board.step(record)

    return replace(hooks, on_step=on_step)
