"""A compiled program and the machine it was compiled for -> its timeline, by cycles or roofline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.check.hlo.collectives import Collective, collectives
from shardwise.check.hlo.costs import Cost, Hook, Op, costs
from shardwise.check.hlo.loops import runs
from shardwise.check.hlo.scopes import scope
from shardwise.check.hlo.text import Computation, Instruction, Module
from shardwise.check.timeline.durations import Speed, Work
from shardwise.check.timeline.kernels import attention_cost, head_width
from shardwise.check.timeline.line import Timeline
from shardwise.check.timeline.lower import Lowering
from shardwise.check.timeline.network import Network
from shardwise.check.timeline.places import Devices
from shardwise.check.timeline.schedule import SPANS, simulate
from shardwise.hardware import System


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A timeline, and what it rests on.

    Args:
        mode: how operations were timed: `cycles` or `roofline`.
        kernel_share: of the peak that kernels written by hand were given.
        unknown: kernels of which nobody says what they compute: their bytes alone were counted.
        unresolved: loops whose trips could not be found: they count once.
        inexact: collectives whose groups are no runs along the axes of the torus.
    """

    timeline: Timeline
    mode: str
    kernel_share: float
    unknown: tuple[str, ...]
    unresolved: tuple[str, ...]
    inexact: tuple[str, ...]


def time_program(
    module: Module,
    system: System,
    devices: Devices,
    mesh: Mapping[str, int],
    *,
    mode: str,
    clock_hz: float | None,
    hook: Hook | None = None,
    cap: int = SPANS,
) -> Timed:
    """How long one run of a compiled program takes on a machine.

    Args:
        devices: where the program's devices are, in its order.
        mesh: axis -> size, in the order in which devices are numbered.
        mode: of `durations.MODES`.
        clock_hz: cycles a second of the compiler's estimates; None where it makes none, and the
            mode is `roofline`.
        hook: cost of kernels written by hand other than splash attention.
        cap: bars above which equal trips of a loop are no longer drawn one by one.

    Raises:
        BadInput: another mode, or a device that the machine does not have.
        UnknownFigure: a rate of the chip that no public source gives.
    """
    counted = runs(module)
    ops = costs(module, lambda one: _cost(one, hook), counted)
    found: dict[tuple[str, str], list[Collective]] = defaultdict(list)
    for each in collectives(module, mesh, counted):
        found[each.computation, each.instruction].append(each)
    mode = mode if clock_hz else "roofline"
    speed = Speed.of(system.chip, mode, clock_hz, devices.per_chip)
    inexact: set[str] = set()
    lowering = Lowering(
        module=module,
        network=Network(system, devices),
        speed=speed,
        found=found,
        work=_Works({(op.computation, op.instruction.name): op for op in ops}).of,
        group=scope,
        inexact=inexact,
    )
    return Timed(
        timeline=simulate(lowering.steps(module.entry), cap=cap),
        mode=mode,
        kernel_share=speed.by_hand,
        unknown=tuple(op.instruction.name for op in ops if op.unknown),
        unresolved=counted.unresolved,
        inexact=tuple(sorted(inexact)),
    )


def _cost(one: Instruction, hook: Hook | None) -> Cost | None:
    told = hook(one) if hook else None
    return attention_cost(one) if told is None else told


@dataclass(frozen=True, slots=True)
class _Works:
    ops: Mapping[tuple[str, str], Op]

    def of(self, block: Computation, one: Instruction) -> Work:
        """What an instruction asks of the chip; nothing where its parts are counted elsewhere."""
        op = self.ops.get((block.name, one.name))
        if op is None:
            return Work()
        return Work(
            flops=float(op.cost.flops),
            dtype=op.cost.dtype or "bf16",
            hbm_bytes=float(op.cost.hbm_bytes),
            by_hand=one.opcode == "custom-call",
            width=head_width(one),
        )
