"""Verdicts of `check` as values: field names are the keys of the JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.plan.schema.common import Range, XlaFlag


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedNumbers:
    """The plan's figures of one chip: bytes at the peak, FLOPs and seconds of a step."""

    peak_bytes: float
    flops: float
    step_s: Range


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledSeconds:
    """Seconds of a step: by the compiler's cycles (None where it has none), and by rooflines."""

    cycles: float | None
    roofline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledNumbers:
    """The compiler's figures of one chip, all its devices together.

    Memory and seconds are None where the compiler is not the chip's own: it proves nothing there.

    Args:
        host_bytes: in host memory, not part of the peak.
        by_category: bytes that are live at the peak, from the schedule: weights, optimizer,
            activations, logits and so on, without fragmentation.
        exposed_s: seconds of a step that are spent waiting, by what is waited for.
    """

    peak_bytes: int | None
    arguments_bytes: int
    temporaries_bytes: int | None
    host_bytes: int | None
    capacity_bytes: float | None
    flops: float
    step_s: CompiledSeconds | None
    exposed_s: Mapping[str, float]
    by_category: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCollective:
    """All collectives of one kind for one role, in one step on one chip.

    Args:
        role: of the mesh axes that they run over; `other` for those that no plan lists (sums of
            the loss and of its softmax statistics).
        planned_bytes, compiled_bytes: received by the chip.
        asynchronous: share of the bytes in asynchronous collectives.
    """

    role: str
    kind: str
    planned_n: int
    planned_bytes: float
    compiled_n: int
    compiled_bytes: float
    asynchronous: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A difference between program and plan: text, bytes, and seconds where known."""

    text: str
    bytes: float
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakArray:
    """Arrays of one name and shape that are live at the peak, in the terms of the model.

    Args:
        n: number of arrays.
        bytes: of one array.
        name: `unembed logits`, `gate or up, saved by 32 layers`.
        letters: names of the dims, `[B,T,V]`; "" where the model has no array of that shape.
        category: `activations`, `logits`, `gathered weights`, ...
        scope: the operation that produces them.
    """

    n: int
    bytes: int
    shape: str
    name: str
    letters: str
    category: str
    scope: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """An alternative to a plan that failed its check, with its own verdict.

    Args:
        change: the options that differ.
        command: the command line that plans it.
        verdict: of its check.
    """

    change: str
    command: str
    planned_bytes: float
    compiled_bytes: int | None
    step_s: Range
    verdict: str

    @property
    def passed(self) -> bool:
        """Whether its check passed."""
        return self.verdict == "proved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The compiler's verdict on a plan.

    Args:
        name, hardware: of model and machine.
        compiler: the platform of the compiler: `tpu`, `gpu` or `cpu`.
        fits: whether a device has enough memory; None where that compiler cannot tell.
        verdict: `proved`, `does not fit`, or `collectives missing`.
        note: the reason, and what is not proved.
        largest: arrays at the peak, largest first.
        xla_flags: compiler options from the plan that were set.
        compile_s: seconds of lowering and compiling.
        proposals: alternatives from `--fix`.
    """

    name: str
    hardware: str
    compiler: str
    fits: bool | None
    verdict: str
    note: str
    planned: PlannedNumbers
    compiled: CompiledNumbers | None
    collectives: tuple[CheckedCollective, ...]
    differences: tuple[Difference, ...]
    largest: tuple[PeakArray, ...]
    xla_flags: tuple[XlaFlag, ...]
    compile_s: float
    versions: Mapping[str, str]
    proposals: tuple[Proposal, ...] = ()

    @property
    def compiled_peak_bytes(self) -> int | None:
        """Bytes at the peak by the compiler, None where it proves none."""
        return self.compiled.peak_bytes if self.compiled else None

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return self.verdict == "proved"
