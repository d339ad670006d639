"""Traces of a few steps, recorded by jax.profiler, with the plan that ran beside them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from shardwise.errors import BadFile
from shardwise.plan.schema.json_io import AnyPlan
from shardwise.plan.schema.json_output import encode

PLAN_FILE = "plan.json"
STEPS_BEFORE = 2  # steps of a trainer that are not recorded


def start_recording(folder: str, plan: AnyPlan | None) -> None:
    """Begin a trace in a folder, without calls of Python functions, and keep the plan there.

    Raises:
        BadFile: the folder cannot be written.
    """
    import jax

    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if plan is not None:
            (path / PLAN_FILE).write_bytes(encode(plan) + b"\n")
    except OSError as error:
        raise BadFile(f"the trace cannot be written to {folder}: {error.strerror}.") from None
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    jax.profiler.start_trace(folder, profiler_options=options)


def stop_recording() -> None:
    """End the trace and write it."""
    import jax

    jax.profiler.stop_trace()


class Recorder:
    """Records some steps of a loop. Several threads may count their steps.

    Args:
        folder: of the trace; empty to record nothing.
        plan: what runs; None if it has no plan.
        first: steps that are not recorded, before those that are.
        steps: number of steps to record.
        on_done: called when they are recorded.
    """

    def __init__(
        self,
        folder: str = "",
        plan: AnyPlan | None = None,
        *,
        first: int = STEPS_BEFORE,
        steps: int = 5,
        on_done: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder = folder
        self._plan = plan
        self._start = first
        self._stop = first + steps
        self._on_done = on_done
        self._n_steps = 0
        self._is_recording = False
        self._lock = threading.Lock()

    @property
    def is_due(self) -> bool:
        """Whether `count` starts or ends the trace."""
        return bool(self.folder) and self._n_steps + 1 in (self._start, self._stop)

    def count(self) -> None:
        """Count a step that has been started; the trace starts or ends after it."""
        if not self.folder:
            return
        with self._lock:
            self._n_steps += 1
            if self._n_steps == self._start:
                start_recording(self.folder, self._plan)
                self._is_recording = True
            elif self._n_steps == self._stop:
                self._end()

    def close(self) -> None:
        """End a trace that has begun, with the steps that there are."""
        with self._lock:
            self._end()

    @property
    def has_recorded(self) -> bool:
        """Whether there is a trace with at least one step."""
        return self._start < self._n_steps and bool(self.folder) and not self._is_recording

    def _end(self) -> None:
        if self._is_recording:
            stop_recording()
            self._is_recording = False
            self._on_done()
