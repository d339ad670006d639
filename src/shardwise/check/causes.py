"""What makes a compiled step slower than planned: operations, waits, and work outside the plan.

Both sides are seconds at peak rates. The plan without overlap waits for every transfer, so a wait
is held against the whole time of the planned collectives of its role. Waits for HBM count as time
of the operation that waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shardwise.check.comparison import ATTENTION, ATTENTION_PARTS, ROUNDING_SHARE
from shardwise.check.compiled_costs import AnalyzedProgram
from shardwise.check.hlo.scopes import BLOCKS, scope
from shardwise.check.hlo.text import Instruction
from shardwise.check.verdict import Cause
from shardwise.plan.schema.common import Operation
from shardwise.strategy.mesh import INSIDE_OUT

MAX_CAUSES = 3
OUTSIDE = "work outside the plan"
_KERNELS = dict.fromkeys(ATTENTION_PARTS, ATTENTION)
_MEMORIES = ("hbm", "host")  # labels of transfers between memories


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedParts:
    """Seconds of a compiled step by part, and the instruction that takes most of some parts."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)


def slower_parts(
    operations: Iterable[Operation], parts: TimedParts, idle_share: float = 0.0
) -> tuple[Cause, ...]:
    """The parts of a step that exceed the plan's by the most seconds, the largest first.

    Args:
        operations: of the planned step.
        idle_share: fraction of the planned step in which a chip waits for other pipeline stages;
            the program, which is the same on all stages, computes in it.
    """
    planned: dict[str, float] = {}
    for op in operations:
        if op.collective:
            part = _wait(op.axes or (op.role or "",))
            seconds = op.time_s
        else:
            part = planned_part(op.name)
            seconds = op.time_s / (1 - idle_share)
        planned[part] = planned.get(part, 0.0) + seconds
    negligible = ROUNDING_SHARE * sum(parts.seconds.values())
    causes = [
        Cause(
            part=part,
            detail=parts.details.get(part, ""),
            planned_s=planned.get(part, 0.0),
            compiled_s=seconds,
        )
        for part, seconds in parts.seconds.items()
        if seconds - planned.get(part, 0.0) > negligible
    ]
    return tuple(sorted(causes, key=lambda cause: cause.planned_s - cause.compiled_s)[:MAX_CAUSES])


def timed_parts(program: AnalyzedProgram) -> TimedParts:
    """Seconds of a compiled step by part, at peak rates; nothing without a timeline."""
    timing = program.timings.get("roofline")
    if timing is None:
        return TimedParts()
    seconds: dict[str, float] = {}
    details: dict[str, str] = {}

    def add(part: str, part_s: float) -> None:
        seconds[part] = seconds.get(part, 0.0) + part_s

    for (operation, _), operation_s in timing.timeline.operation_s.items():
        names = operation.split("+")  # operations that the compiler has combined
        for name in names:
            add(_KERNELS.get(name, name) or OUTSIDE, operation_s / len(names))
    for transfer in timing.timeline.transfers:  # the largest waits first
        if transfer.label in _MEMORIES:
            name = transfer.operation[0].split("+")[0]
            add(_KERNELS.get(name, name) or OUTSIDE, transfer.exposed_s)
            continue
        part = _wait(transfer.label.split("+"))
        add(part, transfer.exposed_s)
        kind = transfer.kind.replace("_", "-")
        details.setdefault(part, " of ".join(filter(None, (kind, transfer.operation[0]))))
    details[OUTSIDE] = _largest_outside(program)
    return TimedParts(seconds=seconds, details=details)


def _wait(axes: Iterable[str]) -> str:
    """The part of a step that waits for transfers over these mesh axes, by the innermost role."""
    roles = [axis.split(".")[0] for axis in axes]
    role = next((role for role in INSIDE_OUT if role in roles), roles[0])
    return f"waits for {role}"


def planned_part(name: str) -> str:
    """The operation of the program that computes a planned one: `mlp.down` for `mlp.down.d_h`."""
    words = name.split(".")
    n_words = 2 if words[0] in BLOCKS else 1
    operation = ".".join(words[:n_words])
    return _KERNELS.get(operation, operation)


def _largest_outside(program: AnalyzedProgram) -> str:
    """The instruction outside planned operations that moves the most bytes: `copy bf16[4,512]`."""
    largest: Instruction | None = None
    most_bytes = n_runs = 0
    for op in program.ops:
        if op.hbm_bytes > most_bytes and not scope(op.instruction.op_name)[0]:
            largest = op.instruction
            most_bytes = op.hbm_bytes
            n_runs = op.n_runs
    if largest is None:
        return ""
    name = largest.op_name.rsplit("/", 1)[-1] or largest.opcode
    return f"{name} of {largest.shapes[0]}, {n_runs} times" if largest.shapes else name
