"""The training loop: runs and reports steps, saves checkpoints, stops at a signal or bad step."""

from __future__ import annotations

import statistics
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import jax

from shardwise.errors import CheckFailed
from shardwise.plan.schema.training import Plan
from shardwise.runtime.processes.consensus import all_agree
from shardwise.runtime.recording import Recorder
from shardwise.runtime.training.step import TrainStep
from shardwise.runtime.weights.descriptions import Tree
from shardwise.train.checkpoint import Checkpoints, array_types
from shardwise.train.data_order import DataOrder
from shardwise.train.metrics import Hooks, MetricsFile, StepRecord
from shardwise.train.portable import PortableState
from shardwise.train.recipe import Recipe
from shardwise.train.signals import StopRequest
from shardwise.train.state import load_batch

ETA_WINDOW = 20  # last steps, whose median time gives the remaining time
MAX_BAD_IN_A_ROW = 10  # consecutive bad steps that end a run even under on_bad = skip
N_ORIGINS = 8  # most sequences that the message of a bad step lists


@dataclass(slots=True, kw_only=True)
class Loop:
    """The state of a run while its steps are executed.

    Args:
        plan: the plan, for the expected times and the model's name.
        train_step: the training step, not compiled.
        recipe: number of steps, learning rate, and what happens after a bad step.
        order: the training sequences in their order.
        compiled: the compiled step, `(state, batch) -> (state, scalars)`, from `run.compile_step`.
        state: weights and optimizer state; replaced by every step.
        step: number of completed steps.
        hooks: callbacks that receive the records and notes.
        metrics: the log file.
        checkpoints: the folder of checkpoints; None to save nothing.
        save_every: steps between checkpoints; 0 to save at the end only.
        stop_request: whether a signal has asked the run to stop.
        recorder: records a trace of some steps.
        losses: loss of every step so far, nats per token.
        seconds: duration of every step so far.
    """

    plan: Plan
    train_step: TrainStep
    recipe: Recipe
    order: DataOrder
    compiled: Any
    state: Tree
    step: int
    hooks: Hooks
    metrics: MetricsFile
    checkpoints: Checkpoints | None
    save_every: int
    stop_request: StopRequest
    recorder: Recorder = field(default_factory=Recorder)
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    _n_bad: int = 0
    _bad_in_a_row: int = 0
    _problems: list[str] = field(default_factory=list)  # one per bad step that ends the run
    _advice: str = ""
    _started_s: float = 0.0

    def run(self) -> str:
        """Run the remaining steps; return `done`, or the name of the signal that stopped the run.

        A step is reported after the next one has been dispatched, so that devices do not wait for
        the host.

        Raises:
            CheckFailed: a step was bad, and the recipe says to stop. The step dispatched after it
                is reported and saved, too.
        """
        _, shapes = self.train_step.shapes()
        learning_rate = self.recipe.learning_rate_schedule()
        self._n_bad = int(self.state["moments"].bad)
        self._started_s = time.perf_counter()
        pending: tuple[int, Tree] | None = None
        ending = "done"
        while self.step < self.recipe.steps:
            with jax.profiler.TraceAnnotation("load_batch"):  # which `profile` tells from dispatch
                batch = load_batch(self.order, self.step, shapes, self.train_step.token_order)
            self.state, scalars = self.compiled(self.state, batch)
            self.step += 1
            if pending is not None:
                self._report(*pending, learning_rate)
            pending = (self.step, scalars)
            if self._problems:
                break
            ending = self._stop_signal() or "done"
            if ending != "done":
                break
            saves = (
                self.save_every
                and self.step % self.save_every == 0
                and self.step < self.recipe.steps
            )
            if saves or self.recorder.is_due:
                self._report(*pending, learning_rate)
                pending = None
                if self._problems:
                    break
            self.recorder.count()
            if saves:
                self.save()
            if pending is None:
                self._started_s = time.perf_counter()
        if pending is not None:
            self._report(*pending, learning_rate)
        self.save()
        if self._problems:
            *earlier, last = self._problems
            raise CheckFailed(*earlier, f"{last} {self._advice}")
        return ending

    def _stop_signal(self) -> str:
        """Return the signal that stops the run, "" if no process has received one."""
        if all_agree(not self.stop_request.signal):
            return ""
        return self.stop_request.signal or "a signal to another process"

    def save(self) -> None:
        """Start writing a checkpoint of the current state, if the run has a checkpoint folder."""
        if self.checkpoints is None or self.step in self.checkpoints.steps:
            return
        saved = PortableState(step=self.train_step).to_portable(self.state)
        about = {
            "step": self.step,
            "order": self.order.identity,
            "model": self.plan.model.name,
            "hardware": self.plan.hardware.name,
            "arrays": array_types(saved),
        }
        self.checkpoints.save(self.step, saved, about)

    def _report(self, step: int, results: Tree, learning_rate: Any) -> None:
        """Wait for the results of a step, and pass its record to the hooks and the log."""
        scalars = {name: float(value) for name, value in results.items()}
        clock_s = time.perf_counter()
        step_s = clock_s - self._started_s
        self._started_s = clock_s
        self.losses.append(scalars["loss"])
        self.seconds.append(step_s)
        is_bad = scalars["bad"] > self._n_bad
        self._n_bad = int(scalars["bad"])
        estimate = self.plan.estimate
        remaining = max(0, self.recipe.steps - step)
        record = StepRecord(
            step=step,
            steps=self.recipe.steps,
            loss=scalars["loss"],
            grad_norm=scalars["norm"],
            learning_rate=float(learning_rate(max(0, int(scalars["good"]) - (not is_bad)))),
            bad=is_bad,
            step_s=step_s,
            lower=estimate.step_s.lower,
            upper=estimate.step_s.upper,
            tokens_per_s=self.train_step.job.tokens_per_step / step_s,
            mfu=estimate.mfu * estimate.step_s.expected / step_s,
            memory_bytes=_peak_memory(),
            eta_s=remaining * statistics.median(deque(self.seconds, maxlen=ETA_WINDOW)),
        )
        self.hooks.on_step(record)
        self.metrics.step(record)
        if is_bad:
            self._bad_in_a_row += 1
            self._on_bad(step, scalars)
        else:
            self._bad_in_a_row = 0

    def _on_bad(self, step: int, scalars: dict[str, float]) -> None:
        """Log which sequences a bad step had; record a problem if the run has to stop."""
        origins = self.order.origins(step - 1)
        loss = scalars["loss"]
        norm = scalars["norm"]
        self.metrics.write(
            {"event": "bad step", "step": step, "loss": loss, "norm": norm, "sequences": origins}
        )
        problem = (
            f"step {step} is bad: loss {loss:.4g} (usually {scalars['usual']:.4g}), gradient norm "
            f"{norm:.4g}. It changed no weights."
        )
        if self.recipe.on_bad == "skip" and self._bad_in_a_row < MAX_BAD_IN_A_ROW:
            self.hooks.on_note(problem)
            return
        rows = ", ".join(f"{set_index}:{index}" for set_index, index in origins[:N_ORIGINS])
        if len(origins) > N_ORIGINS:
            rows += f" and {len(origins) - N_ORIGINS} more"
        self._advice = "--resume continues after it; with --on-bad skip a run continues by itself."
        if self._bad_in_a_row >= MAX_BAD_IN_A_ROW:
            self._advice = (
                f"{MAX_BAD_IN_A_ROW} steps in a row were bad: use a lower --rate or a longer "
                "--warmup."
            )
        self._problems.append(f"{problem} Its sequences (token set:number): {rows}.")


def _peak_memory() -> float | None:
    """Return the peak bytes on the fullest device of this process; None if not reported."""
    peaks = []
    for device in jax.local_devices():
        stats = device.memory_stats() or {}
        if "peak_bytes_in_use" in stats:
            peaks.append(stats["peak_bytes_in_use"])
    if not peaks:
        return None
    return float(max(peaks))
