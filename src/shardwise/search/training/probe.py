"""A case and its rivals with one number of the machine or the job multiplied by a factor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from shardwise.errors import BadInput
from shardwise.estimate.calibration import PEAK
from shardwise.estimate.training.framework_profiles import profile_of
from shardwise.estimate.training.layout_step import LayoutStep
from shardwise.estimate.training.run_variant import IDEAL
from shardwise.estimate.training.step import StepTime, step_time
from shardwise.hardware.scale import scaled
from shardwise.search.training.problem import Case
from shardwise.search.training.rank import memory_of
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.schedules import find

# What a number may affect.
COMPUTE = frozenset({"compute"})
TRAFFIC = frozenset({"traffic"})
MEMORY = frozenset({"memory"})
TOLERANCE = 1e-3  # faster by a smaller share counts as equally fast

# Returns the case with one number multiplied by a factor; None if the layout is not legal then.
Change = Callable[[Case, float], Case | None]


def scaling(name: str) -> Change:
    """The change that multiplies a number of the machine, as `hardware.scale.scaled` takes it."""
    return lambda case, factor: case.with_system(scaled(case.system, {name: factor}))


def with_batch(case: Case, factor: float) -> Case | None:
    """The case with `factor` times the microbatches, or times their size; None if not legal."""
    layout = case.layout
    batch = factor * case.job.batch
    n_microbatches = factor * layout.n_microbatches
    micro_batch = factor * layout.micro_batch
    if n_microbatches >= 1 and n_microbatches == int(n_microbatches):
        layout = replace(layout, n_microbatches=int(n_microbatches))
    elif micro_batch >= 1 and micro_batch == int(micro_batch):
        layout = replace(layout, micro_batch=int(micro_batch))
    else:
        return None
    if layout.is_pipelined:
        schedule = find(layout.schedule)
        chunks = schedule.chunks or layout.virtual
        if not schedule.legal(layout.mesh.pipe, layout.n_microbatches, chunks):
            return None
    return resized(replace(case, layout=layout), "batch", int(batch))


def with_seq(case: Case, factor: float) -> Case | None:
    """The case with `factor` times the sequence length; None if its layout is not legal then."""
    seq = factor * case.job.seq
    mesh = case.layout.mesh
    if seq % (mesh.context * mesh.tensor):
        return None
    return resized(case, "seq", int(seq))


def resized(case: Case, name: str, size: int) -> Case | None:
    """The case with another batch or sequence length; None if the size is out of range."""
    sizes = {"batch": case.job.batch, "seq": case.job.seq, name: size}
    try:
        job = replace(case.job, batch=sizes["batch"], seq=sizes["seq"])
    except BadInput:
        return None
    return replace(case, job=job)


@dataclass
class Probe:
    """Evaluates a case and its rivals with one number multiplied by a factor.

    Only what is asked for, and what the number affects, is evaluated, and each but once.

    Args:
        change: multiplies the number.
        affected: what the number affects.
        cache: results by kind, case and factor.
    """

    case: Case
    rivals: tuple[Case, ...]
    change: Change
    affected: frozenset[str] = COMPUTE | TRAFFIC | MEMORY
    cache: dict[tuple[object, ...], Any] = field(default_factory=dict)

    def _step(self, case: Case, factor: float) -> LayoutStep | None:
        """The step of the case at a factor; None if its layout is not legal there."""
        key = ("step", case.layout, factor)
        if key not in self.cache:
            changed = self.change(case, factor)
            self.cache[key] = changed.step() if changed else None
        return self.cache[key]  # type: ignore[no-any-return]

    def _time(self, case: Case, factor: float, *, peak: bool = False) -> StepTime | None:
        """Step time of the case, expected or at peak rates; None if it is not legal."""
        if self.affected == MEMORY:
            factor = 1.0
        step = self._step(case, factor)
        if step is None:
            return None
        key = ("time", case.layout, factor, peak)
        if key not in self.cache:
            rates = (PEAK, IDEAL) if peak else (case.cal, profile_of(case.job, case.system.chip))
            same_compute = None
            if self.affected == TRAFFIC:
                same_compute = self.cache.get(("microbatch", case.layout, peak))
            microbatch = step.microbatch(*rates, same_compute)
            self.cache["microbatch", case.layout, peak] = microbatch
            self.cache[key] = step_time(step.priced(*rates), microbatch)
        return self.cache[key]  # type: ignore[no-any-return]

    def _memory_suffices(self, case: Case, factor: float) -> bool:
        """Whether the case, which is legal at the factor, fits in memory."""
        if "memory" not in self.affected:
            factor = 1.0
        key = ("memory", case.layout, factor)
        if key not in self.cache:
            step = self._step(case, factor)
            self.cache[key] = step is not None and bool(memory_of(step).fits)
        return self.cache[key]  # type: ignore[no-any-return]

    def step_s(self, factor: float) -> float | None:
        """Expected step time of the case; None if it is not legal at this factor."""
        time = self._time(self.case, factor)
        return None if time is None else float(time.step_s)

    def binds(self, factor: float) -> str | None:
        """What binds the lower bound of the step time: "communication" or "chip"."""
        roofline = self._time(self.case, factor, peak=True)
        if roofline is None:
            return None
        if roofline.lower_s > roofline.on_chip_s:
            return "communication"
        return "chip"

    def fits(self, factor: float) -> str | None:
        """Whether the memory suffices: "fits" or "does not fit"."""
        if self._step(self.case, factor) is None:
            return None
        if self._memory_suffices(self.case, factor):
            return "fits"
        return "does not fit"

    def fastest(self, factor: float) -> Mesh | None:
        """Mesh of the fastest strategy among the case and the rivals that fit in memory."""
        time = self._time(self.case, factor)
        if time is None:
            return None
        best = self.case
        best_s = time.step_s
        for rival in self.rivals:
            time = self._time(rival, factor)
            if time is None or not time.step_s < best_s * (1 - TOLERANCE):
                continue
            if self._memory_suffices(rival, factor):
                best = rival
                best_s = time.step_s
        return best.layout.mesh
