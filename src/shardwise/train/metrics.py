"""What a run tells: a line for every step, as a value, as JSON, and what it came to."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from shardwise.errors import BadFile


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step that was run.

    Args:
        step: steps that are done with it; `steps` of the whole run.
        loss: mean over the tokens, nats; `grad_norm` over all chips, before clipping.
        bad: the step changed no weights.
        step_s: from the end of the step before; `lower` and `upper` are the plan's bounds.
        mfu: with the FLOPs and peaks of the plan.
        memory_bytes: the fullest device at its peak; None where devices do not tell.
        eta_s: at the median of the last steps.
    """

    step: int
    steps: int
    loss: float
    grad_norm: float
    learning_rate: float
    bad: bool
    step_s: float
    lower: float
    upper: float
    tokens_per_s: float
    mfu: float
    memory_bytes: float | None
    eta_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run came to.

    Args:
        first: step that it began with: 0, or where it went on.
        done: steps that are done now.
        ended: `done`, the name of a signal, or `bad step`.
        compile_s: of the step, before the first.
        step_s: median of its steps; `planned` what the plan expected.
        checkpoint: the last one that is whole, None where none was asked for.
        sample: text that the trained weights wrote, where it was asked for.
    """

    name: str
    hardware: str
    first: int
    done: int
    ended: str
    compile_s: float
    step_s: float | None
    planned: float
    losses: tuple[float, ...]
    checkpoint: int | None
    sample: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Who is told what a run does, as it does it."""

    on_stage: Callable[[str], None] = lambda stage: None
    on_step: Callable[[StepRecord], None] = lambda record: None
    on_note: Callable[[str], None] = lambda note: None


class Metrics:
    """`metrics.jsonl`: one object a step, and one for each event. A run that goes on adds to it.

    Args:
        path: empty for none.

    Raises:
        BadFile: it cannot be written.
    """

    def __init__(self, path: str, say: Callable[[str], None]) -> None:
        self.path, self.say = path, say
        self._file: TextIO | None = None
        if path:
            try:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (open for the run)
            except OSError as error:
                raise BadFile(f"{path}: {error.strerror}.") from None

    def write(self, document: dict[str, Any]) -> None:
        """One line; when the disk is full it is said once, and the run goes on."""
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(_finite(document)) + "\n")
            self._file.flush()
        except OSError as error:
            self.say(f"{self.path}: {error.strerror}; no further steps are written there.")
            self.close()

    def step(self, record: StepRecord) -> None:
        """A step."""
        self.write(asdict(record))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.close()
            except OSError:
                return  # told when it was written


def _finite(document: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: numbers that are none become words."""
    return {
        k: str(v) if isinstance(v, float) and not math.isfinite(v) else v
        for k, v in document.items()
    }
