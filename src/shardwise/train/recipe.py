"""Hyperparameters of a training run: learning rate, clipping, weight decay, loss spikes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from shardwise.errors import BadInput, UnknownName, raise_all
from shardwise.runtime.program import COLLECTIVES

SCHEDULES = ("cosine", "constant", "wsd")
ON_BAD = ("stop", "skip")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Hyperparameters of a run that its plan does not contain.

    Args:
        steps: number of steps in the run; the learning rate schedule ends with the last one.
        rate: peak learning rate.
        schedule: the learning rate after the warmup. `cosine` decays from `rate` to `final * rate`;
            `constant` stays at `rate`; `wsd` (warmup, stable, decay) stays at `rate` and decays
            linearly to `final * rate` over the last fifth of the steps.
        warmup: number of first steps over which the learning rate rises linearly from 0.
        final: final learning rate of `cosine` and `wsd`, divided by the peak.
        clip: largest global gradient norm; larger gradients are scaled down to it. None for no
            clipping.
        decay: weight decay of AdamW and Muon, applied to matrices only.
        b1: decay rate of the first moment.
        b2: decay rate of the second moment.
        spike: a step is bad if its loss is this many nats above the running mean; None for no
            limit. A step with NaN or inf in the loss or the gradients is always bad.
        on_bad: what happens after a bad step, which changes no weights: the run continues (`skip`)
            or ends (`stop`).
        collectives: who chooses the collectives: the `plan`, or XLA's partitioner (`compiler`).
        capacity: capacity factor: the most tokens that an expert accepts, divided by the mean
            number of tokens per expert; further tokens are dropped. None drops no tokens.
    """

    steps: int
    rate: float = 3e-4
    schedule: str = "cosine"
    warmup: int = 0
    final: float = 0.1
    clip: float | None = 1.0
    decay: float = 0.1
    b1: float = 0.9
    b2: float = 0.95
    spike: float | None = None
    on_bad: str = "stop"
    collectives: str = "plan"
    capacity: float | None = None

    def __post_init__(self) -> None:
        problems: list[str] = []
        for what, word, words in (
            ("schedule", self.schedule, SCHEDULES),
            ("value of on_bad", self.on_bad, ON_BAD),
            ("chooser of collectives", self.collectives, COLLECTIVES),
        ):
            if word not in words:
                problems += UnknownName(what, word, words).problems
        if self.steps < 1:
            problems.append(f"steps {self.steps} is below 1.")
        elif not 0 <= self.warmup <= self.steps:
            problems.append(f"warmup {self.warmup} is not between 0 and the {self.steps} steps.")
        for name in ("rate", "clip", "spike", "capacity"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                problems.append(f"{name} {value:g} is not a finite number above 0.")
        if not 0 <= self.decay < math.inf:
            problems.append(f"decay {self.decay:g} is not a finite number from 0.")
        if not 0 <= self.final <= 1:
            problems.append(f"final {self.final:g} is not between 0 and 1.")
        for name in ("b1", "b2"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                problems.append(f"{name} {value:g} is not from 0 to below 1.")
        raise_all(BadInput, problems)

    def learning_rate_schedule(self) -> Any:
        """Return the optax schedule: step -> learning rate."""
        import optax

        warmup = optax.linear_schedule(0.0, self.rate, self.warmup)
        stable = optax.constant_schedule(self.rate)
        if self.schedule == "cosine":
            decay_steps = max(1, self.steps - self.warmup)
            cosine = optax.cosine_decay_schedule(self.rate, decay_steps, self.final)
            return optax.join_schedules([warmup, cosine], [self.warmup])
        if self.schedule == "constant":
            return optax.join_schedules([warmup, stable], [self.warmup])
        decay_steps = max(1, self.steps // 5)
        decay_start = max(self.warmup, self.steps - decay_steps)
        decay = optax.linear_schedule(self.rate, self.rate * self.final, decay_steps)
        return optax.join_schedules([warmup, stable, decay], [self.warmup, decay_start])
