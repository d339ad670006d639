"""How a run learns: rate and its schedule, clipping, decay, and what counts as a spike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardwise.errors import BadInput, UnknownName, raise_all
from shardwise.runtime.program import COLLECTIVES

SCHEDULES = ("cosine", "constant", "wsd")
ON_BAD = ("stop", "skip")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is chosen of a run beside its plan.

    Args:
        steps: of the whole run, which the schedule is stretched over.
        rate: the highest learning rate.
        schedule: after the warmup `cosine` falls to `final` of the rate, `constant` stays, `wsd`
            stays and falls in a line over the last fifth.
        warmup: steps in which the rate rises from 0.
        clip: the largest global norm of gradients; longer ones are shortened. None for no limit.
        decay: of matrices, where the optimizer is adamw.
        spike: a loss is bad that is this far (in nats) above its running mean; None for no limit. A
            loss or a gradient that is no number always is.
        on_bad: a bad step changes no weights; `skip` then goes on, `stop` stops.
        collectives: who chooses those of a step: `plan`, or XLA's partitioner (`compiler`).
        capacity: room of an expert for tokens, over what experts receive that are used alike: what
            goes beyond it is dropped. None drops nothing.
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
        if self.schedule not in SCHEDULES:
            raise UnknownName("schedule", self.schedule, SCHEDULES)
        if self.on_bad not in ON_BAD:
            raise UnknownName("way with bad steps", self.on_bad, ON_BAD)
        if self.collectives not in COLLECTIVES:
            raise UnknownName("chooser of collectives", self.collectives, COLLECTIVES)
        problems = []
        if self.steps < 1:
            problems.append(f"{self.steps} steps are no run: 1 or more.")
        if not 0 <= self.warmup <= self.steps:
            problems.append(f"warmup {self.warmup} is not between 0 and the {self.steps} steps.")
        for name in ("rate", "clip", "spike", "capacity"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                problems.append(f"{name} {value:g} is not above 0.")
        raise_all(BadInput, problems)

    def rates(self) -> Any:
        """The schedule of optax: step -> learning rate."""
        import optax

        low, after = self.rate * self.final, max(1, self.steps - self.warmup)
        rising = optax.linear_schedule(0.0, self.rate, self.warmup)
        flat = optax.constant_schedule(self.rate)
        if self.schedule == "cosine":
            return optax.join_schedules(
                [rising, optax.cosine_decay_schedule(self.rate, after, self.final)], [self.warmup]
            )
        if self.schedule == "constant":
            return optax.join_schedules([rising, flat], [self.warmup])
        falling = max(1, self.steps // 5)
        last = max(self.warmup, self.steps - falling)
        return optax.join_schedules(
            [rising, flat, optax.linear_schedule(self.rate, low, falling)], [self.warmup, last]
        )
