"""Verdicts of `check` as values. Field names are keys of the JSON output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.plan.schema.common import Range, XlaFlag

PASSED = ("proved", "holds")  # verdicts on a plan that can be run as it is planned


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedNumbers:
    """The plan's numbers for one chip: bytes at the peak, FLOPs, HBM traffic, seconds of a step."""

    peak_bytes: float
    flops: float
    hbm_bytes: float
    step_s: Range


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledSeconds:
    """Estimated seconds of a step.

    Args:
        cycles: from the compiler's own estimates of cycles; None if it makes none.
        roofline: from rooflines of all operations.
    """

    cycles: float | None
    roofline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledNumbers:
    """The compiler's numbers for one chip, the totals of its devices.

    Peak, temporaries, host memory, HBM traffic and seconds are None if the compiler is not the
    chip's own, since another compiler says nothing about them.

    Args:
        peak_bytes: memory that a chip needs.
        output_bytes: all results, those in the memory of donated arguments included.
        alias_bytes: results in the memory of donated arguments.
        host_bytes: bytes in host memory, which are not part of the peak.
        capacity_bytes: memory that a program may use on a chip; None if unknown.
        flops: FLOPs of products in a step.
        hbm_bytes: bytes read and written in HBM in a step.
        exposed_s: label of transfers (mesh axes, `hbm`, `host`) -> seconds of a step that the chip
            waits for them.
        by_category: category (weights, optimizer, activations, logits, ...) -> bytes that are live
            at the peak, computed from the schedule, without fragmentation.
    """

    peak_bytes: int | None
    arguments_bytes: int
    output_bytes: int = 0
    alias_bytes: int = 0
    temporaries_bytes: int | None
    host_bytes: int | None
    capacity_bytes: float | None
    flops: float
    hbm_bytes: float | None
    step_s: CompiledSeconds | None
    exposed_s: Mapping[str, float]
    by_category: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCollective:
    """All collectives of one kind for one role, in one step on one chip.

    Args:
        role: role of the mesh axes that they run over; `other` for collectives that plans do not
            list, such as reductions of the loss and of its softmax statistics.
        planned_n, compiled_n: number of collectives.
        planned_bytes, compiled_bytes: bytes that the chip receives.
        asynchronous: fraction of the compiled bytes that asynchronous collectives move.
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
    """A difference between program and plan: text, bytes, and seconds if known."""

    text: str
    bytes: float
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """A figure of the program that is far from the plan's.

    Args:
        quantity: `time`, `memory`, `FLOPs`, `HBM traffic`, or that of a role: `fsdp traffic`.
        planned: seconds (the plan's upper bound), bytes or FLOPs of a chip in a step.
    """

    quantity: str
    planned: float
    compiled: float

    @property
    def is_worse(self) -> bool:
        """Whether the program needs more than planned."""
        return self.compiled > self.planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A part of the compiled step that takes longer than in the plan.

    Args:
        part: a planned operation (`mlp.down`), `waits for data`, or `work outside the plan`.
        detail: the instruction that takes most of it; "" if the part says all.
        planned_s, compiled_s: seconds of a step at peak rates.
    """

    part: str
    detail: str
    planned_s: float
    compiled_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakArray:
    """Arrays of one name and shape that are live at the peak, in the terms of the model.

    Args:
        n: number of arrays.
        bytes: bytes of one array.
        shape: dtype and dims, such as `bf16[8,128]`.
        name: for example `unembed logits`, or `gate or up, saved by 32 layers`.
        letters: names of the dims, such as `[B,T,V]`; "" if the plan has no such array.
        category: one of `hlo.memory.CATEGORIES`: `activations`, `logits`, ...
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
        change: the options that differ, with new and old values.
        command: the command line that makes the alternative plan.
        planned_bytes, compiled_bytes: bytes of a chip at the peak.
        verdict: the verdict of its own check; `refused` or `no answer` if there is none.
        note: why there is none.
    """

    change: str
    command: str
    planned_bytes: float
    compiled_bytes: float | None
    step_s: Range
    verdict: str
    note: str = ""

    @property
    def fits(self) -> bool:
        """Whether it fits and sends the planned collectives, as it is proposed to do."""
        return self.verdict in (*PASSED, "differs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The compiler's verdict on a plan.

    Args:
        name: name of the model.
        hardware: name of the machine.
        compiler: platform of the compiler: `tpu`, `gpu` or `cpu`.
        fits: whether a device has enough memory; None if the compiler cannot tell.
        sends_as_planned: whether it moves the planned bytes between chips; None if unknown.
        takes_planned_time: whether the compiled schedule, by rooflines, takes no longer than the
            plan without overlap; None if unknown.
        verdict: `proved`; `holds`, if a figure is far below the plan's; `differs`, if one is far
            above it; `collectives missing`; or `does not fit`.
        note: the reason for the verdict, and what is not proved.
        deviations: figures that are far from the plan's.
        causes: the parts of the step that make it slower than planned, if a figure is far above.
        collectives: totals of planned and compiled collectives, by role and kind.
        largest: arrays that are live at the peak, largest first.
        xla_flags: compiler options from the plan that were set.
        compile_s: seconds of lowering and compiling.
        versions: versions of jax, jaxlib and the compiler.
        required_bytes: memory that a chip needs, also where the program was not compiled because
            it does not fit; None if the compiler cannot tell.
        proposals: alternative plans from `--fix`.
    """

    name: str
    hardware: str
    compiler: str
    fits: bool | None
    sends_as_planned: bool | None = None
    takes_planned_time: bool | None = None
    verdict: str
    note: str
    planned: PlannedNumbers
    compiled: CompiledNumbers | None
    deviations: tuple[Deviation, ...] = ()
    causes: tuple[Cause, ...] = ()
    collectives: tuple[CheckedCollective, ...]
    differences: tuple[Difference, ...]
    largest: tuple[PeakArray, ...]
    xla_flags: tuple[XlaFlag, ...]
    compile_s: float
    versions: Mapping[str, str]
    required_bytes: float | None = None
    proposals: tuple[Proposal, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the plan passed its check."""
        return self.verdict in PASSED
