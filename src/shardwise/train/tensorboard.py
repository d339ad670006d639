"""Event files of TensorBoard, with fields of each step's record as scalars."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwise.errors import MissingExtra, file_error
from shardwise.train.metrics import Hooks, StepRecord

# Fields of `StepRecord` that are written.
SCALARS = ("loss", "grad_norm", "learning_rate", "step_s", "tokens_per_s", "mfu", "memory_bytes")


class EventFile:
    """The event file of one run; a resumed run adds another one to the folder.

    Args:
        folder: the folder; created if missing.
        on_note: receives a message if the disk is full.

    Raises:
        MissingExtra: tensorboardX is not installed.
        BadFile: the folder cannot be written.
    """

    def __init__(self, folder: str, on_note: Callable[[str], None]) -> None:
        try:
            from tensorboardX.event_file_writer import EventsWriter
        except ImportError:
            raise MissingExtra(
                "event files of TensorBoard need tensorboardX, which is missing: "
                "pip install 'shardwise[tensorboard]'."
            ) from None
        self.folder = folder
        self.on_note = on_note
        self._disk_is_full = False
        # SummaryWriter is unsuitable: it writes in a thread, which ends if the disk is full; then
        # SummaryWriter waits for that thread forever.
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._writer: Any = EventsWriter(f"{folder}/events", f".{os.getpid()}")
        except OSError as error:
            raise file_error(folder, error) from None

    def step(self, record: StepRecord) -> None:
        """Append the record of a step; a full disk is reported once and does not stop the run."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        if self._disk_is_full:
            return
        values = []
        for name in SCALARS:
            number = getattr(record, name)
            if number is not None:
                values.append(Summary.Value(tag=name, simple_value=number))
        event = Event(wall_time=time.time(), step=record.step, summary=Summary(value=values))
        try:
            self._writer.write_event(event)
            self._writer.flush()
        except OSError as error:
            self.on_note(f"{self.folder}: {error.strerror}; no further steps are written there.")
            self._disk_is_full = True

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # `step` has reported it
            self._writer.close()


def with_events(events: EventFile, hooks: Hooks) -> Hooks:
    """Return hooks that also write every step to the event file."""

    def on_step(record: StepRecord) -> None:
        hooks.on_step(record)
        events.step(record)

    return replace(hooks, on_step=on_step)
