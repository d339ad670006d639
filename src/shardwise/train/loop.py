"""Step after step: dispatch one, tell about the one before, save, and end when asked."""

from __future__ import annotations

import statistics
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import jax

from shardwise.errors import CheckFailed
from shardwise.plan.schema.training import Plan
from shardwise.runtime.training.step import TrainStep
from shardwise.runtime.weights.descriptions import Tree
from shardwise.train.checkpoint import Checkpoints, described
from shardwise.train.consensus import agreed
from shardwise.train.data_order import Order
from shardwise.train.metrics import Hooks, Metrics, StepRecord
from shardwise.train.portable import Portable
from shardwise.train.recipe import Recipe
from shardwise.train.signals import Ending
from shardwise.train.state import batch

WINDOW = 20  # steps whose median says how long the rest takes
MOST_BAD = 10  # bad steps in a row after which skipping does not help


@dataclass(slots=True, kw_only=True)
class Loop:
    """A run between its first and its last step.

    Args:
        compiled: `(state, batch) -> (state, what is told)`.
        state: it is replaced with every step.
        step: steps that are done.
        every: steps between checkpoints; 0 for one at the end alone.
    """

    plan: Plan
    made: TrainStep
    recipe: Recipe
    order: Order
    compiled: Any
    state: Tree
    step: int
    hooks: Hooks
    metrics: Metrics
    checkpoints: Checkpoints | None
    every: int
    ending: Ending
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    _in_a_row: int = 0
    _bad: int = 0
    _stopped: list[str] = field(default_factory=list)  # what is said of bad steps that end the run
    _again: str = ""
    _mark: float = 0.0

    def run(self) -> str:
        """All steps that are left; `done`, or the name of the signal that ended it.

        Raises:
            CheckFailed: a step was bad, and the recipe says stop. The step that was under way by
                then is told and saved too.
        """
        _, shapes = self.made.shapes()
        rates = self.recipe.rates()
        self._bad = int(self.state["moments"].bad)
        self._mark, ahead, ended = time.perf_counter(), None, "done"
        while self.step < self.recipe.steps:
            given = batch(self.order, self.step, shapes, self.made.places)
            self.state, told = self.compiled(self.state, given)
            self.step += 1
            if ahead is not None:
                self._tell(*ahead, rates)
            ahead = (self.step, told)
            if self._stopped:
                break
            ended = self._asked() or "done"
            if ended != "done":
                break
            if self.every and self.step % self.every == 0 and self.step < self.recipe.steps:
                self._tell(*ahead, rates)
                ahead = None
                if self._stopped:
                    break
                self.save()
                self._mark = time.perf_counter()
        if ahead is not None:
            self._tell(*ahead, rates)
        self.save()
        if self._stopped:
            *first, last = self._stopped
            raise CheckFailed(*first, f"{last} {self._again}")
        return ended

    def _asked(self) -> str:
        """The signal that ends the run, once any of its processes has it."""
        asked = not agreed(not self.ending.by)
        return (self.ending.by or "a signal to another process") if asked else ""

    def save(self) -> None:
        """Begin a checkpoint of the steps that are done, where there is a folder for it."""
        if self.checkpoints is None or self.step in self.checkpoints.steps:
            return
        saved = Portable(step=self.made).of(self.state)
        about = {
            "step": self.step,
            "order": self.order.identity,
            "model": self.plan.model.name,
            "hardware": self.plan.hardware.name,
            "arrays": described(saved),
        }
        self.checkpoints.save(self.step, saved, about)

    def _tell(self, step: int, told: Tree, rates: Any) -> None:
        """Wait for a step, and say what it did."""
        numbers = {name: float(value) for name, value in told.items()}
        now = time.perf_counter()
        took, self._mark = now - self._mark, now
        self.losses.append(numbers["loss"])
        self.seconds.append(took)
        bad, self._bad = numbers["bad"] > self._bad, int(numbers["bad"])
        estimate = self.plan.estimate
        left = max(0, self.recipe.steps - step)
        record = StepRecord(
            step=step,
            steps=self.recipe.steps,
            loss=numbers["loss"],
            grad_norm=numbers["norm"],
            learning_rate=float(rates(max(0, int(numbers["good"]) - (not bad)))),
            bad=bad,
            step_s=took,
            lower=estimate.step_s.lower,
            upper=estimate.step_s.upper,
            tokens_per_s=self.made.job.tokens_per_step / took,
            mfu=estimate.mfu * estimate.step_s.expected / took,
            memory_bytes=_memory(),
            eta_s=left * statistics.median(deque(self.seconds, maxlen=WINDOW)),
        )
        self.hooks.on_step(record)
        self.metrics.step(record)
        self._in_a_row = self._in_a_row + 1 if bad else 0
        if bad:
            self._on_bad(step, numbers)

    def _on_bad(self, step: int, numbers: dict[str, float]) -> None:
        """Record the batch of a bad step; ask for the end where the recipe says so."""
        origins = self.order.origins(step - 1)
        loss, norm = numbers["loss"], numbers["norm"]
        self.metrics.write(
            {"event": "bad step", "step": step, "loss": loss, "norm": norm, "sequences": origins}
        )
        said = (
            f"step {step} is bad: loss {loss:.4g} (usually {numbers['usual']:.4g}), gradient norm "
            f"{norm:.4g}. It changed no weights."
        )
        if self.recipe.on_bad == "skip" and self._in_a_row < MOST_BAD:
            self.hooks.on_note(said)
            return
        rows = ", ".join(f"{which}:{index}" for which, index in origins[:8])
        more = f" and {len(origins) - 8} more" if len(origins) > 8 else ""
        self._again = "--resume goes on behind it; --on-bad skip goes on by itself."
        if self._in_a_row >= MOST_BAD:
            self._again = f"{MOST_BAD} steps in a row were: a lower --rate, or a longer --warmup."
        self._stopped.append(f"{said} Its sequences (token set:number): {rows}{more}.")


def _memory() -> float | None:
    """Bytes at the peak on the fullest device of this process."""
    told = [device.memory_stats() for device in jax.local_devices()]
    peaks = [stats["peak_bytes_in_use"] for stats in told if stats and "peak_bytes_in_use" in stats]
    return float(max(peaks)) if peaks else None
