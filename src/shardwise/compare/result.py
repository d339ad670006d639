"""Comparisons as values. Field names are keys of the JSON output."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.check.user.fault import Fault
from shardwise.serve.load.measurement import Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a step takes longer, or needs more, than it has to.

    Args:
        kind: one of `causes.KINDS`, or the kind of a fault of `check`.
        seconds: of a step that it costs; 0 if it costs memory only, or if that is not known.
        group: the row that it explains; empty if it concerns the whole step.
        name: the operation, array or dim that is concerned; empty if there is none.
        planned, measured: the two numbers that differ, in the unit of the kind.
    """

    kind: str
    seconds: float
    group: str = ""
    name: str = ""
    planned: float | None = None
    measured: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A group of operations of a step; the last row is the step.

    Args:
        planned_s: expected seconds of a step; None if the plan does not know them.
        compiled_s: of the compiled schedule; None without a verdict of `check`.
        measured_s: of the mean step; None without a trace.
        ratio: planned over measured seconds; None if either is missing.
        cause: why it takes longer than planned; None if it does not, or if that is noise.
    """

    group: str
    planned_s: float | None = None
    compiled_s: float | None = None
    measured_s: float | None = None
    ratio: float | None = None
    cause: Cause | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A quantity other than the time of a group, in SI units, by what states it."""

    quantity: str
    planned: float | None = None
    compiled: float | None = None
    measured: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSteps:
    """Seconds of the steps of a run or of a trace.

    Args:
        n: number of steps.
        typical_s: median of a run, mean of a trace.
        low_s, high_s: a tenth of a run's steps are shorter, a tenth longer; of a trace the mean
            and the longest.
    """

    n: int
    typical_s: float
    low_s: float
    high_s: float

    @property
    def noise(self) -> float:
        """How far a step is from the typical one, as a fraction of it."""
        return (self.high_s - self.low_s) / self.typical_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StepComparison:
    """A planned step beside what the compiler and the machine made of it.

    Args:
        name: of the model or function.
        step_s: measured seconds, else compiled ones.
        faults: those that `check` has found in a function, of which causes are made.
        n_devices: of the mesh of that function.
        other_devices: kind of the devices of a function's trace, if it was compiled for another.
        steps: of the trace, else of the run; None without either.
        run: the steps of a run beside the trace; None without one.
        hidden: planned and measured seconds of communication that does not lengthen the step.
        accounted_fraction: of the measured step, in operations; None without a trace.
        doubt: that the trace computes other products than the plan; None if it does not.
        load: requests that a server was sent; None without them.
        rates_measured: whether `hw measure` has measured the rates of the plan's work.
        causes: all causes, that which costs most first.
    """

    name: str
    hardware: str
    rows: tuple[Row, ...]
    figures: tuple[Figure, ...]
    causes: tuple[Cause, ...]
    step_s: float | None
    faults: tuple[Fault, ...] = ()
    n_devices: int = 1
    other_devices: str = ""
    steps: MeasuredSteps | None = None
    run: MeasuredSteps | None = None
    hidden: Figure | None = None
    accounted_fraction: float | None = None
    doubt: Cause | None = None
    load: Measurement | None = None
    rates_measured: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRow:
    """A quantity of two plans, runs or traces: seconds, bytes, or what the table says."""

    group: str
    first: float
    second: float

    @property
    def change(self) -> float:
        """The second less the first."""
        return self.second - self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A choice in which two plans or runs differ."""

    name: str
    first: str
    second: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairComparison:
    """Two plans, two runs or two traces.

    Args:
        kind: `plans`, `runs` or `traces`.
        settings: in which they differ.
        rows: seconds of a step by group, what differs most first; the step is the last.
        figures: other quantities: memory, tokens/s, loss.
        noise: fraction by which steps vary; smaller differences of time say nothing.
        causes: why one is slower, the largest first.
    """

    kind: str
    first: str
    second: str
    settings: tuple[Setting, ...]
    rows: tuple[PairRow, ...]
    figures: tuple[PairRow, ...]
    noise: float = 0.0
    causes: tuple[Cause, ...] = ()
