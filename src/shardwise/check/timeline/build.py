"""Timeline of a compiled program on the machine that it was compiled for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.check.hlo.collectives import Collective, collectives
from shardwise.check.hlo.costs import Cost, KernelCost, program_costs
from shardwise.check.hlo.loops import count_runs
from shardwise.check.hlo.scopes import scope
from shardwise.check.hlo.text import Computation, Instruction, Module
from shardwise.check.timeline.durations import DeviceRates, OpWork
from shardwise.check.timeline.kernels import call_cost, head_dim
from shardwise.check.timeline.lower import Lockstep, Lowering
from shardwise.check.timeline.network import Network
from shardwise.check.timeline.places import DevicePlaces
from shardwise.check.timeline.result import Timeline
from shardwise.check.timeline.schedule import MAX_BARS, simulate
from shardwise.hardware import System


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedProgram:
    """A timeline and its assumptions.

    Args:
        mode: how operations were timed: `cycles` or `roofline`.
        kernel_share: fraction of the peak FLOP/s that custom kernels were assumed to reach.
        unknown_kernels: kernels with unknown FLOPs, which are timed by their bytes alone.
        unresolved_loops: loops with an unknown trip count, which are assumed to run once.
        inexact_collectives: collectives whose groups are not evenly spaced along the torus axes,
            so that their times are approximate.
    """

    timeline: Timeline
    mode: str
    kernel_share: float
    unknown_kernels: tuple[str, ...]
    unresolved_loops: tuple[str, ...]
    inexact_collectives: tuple[str, ...]


def time_program(
    module: Module,
    system: System,
    places: DevicePlaces,
    mesh: Mapping[str, int],
    *,
    mode: str,
    clock_hz: float | None,
    kernel_cost: KernelCost | None = None,
    max_bars: int = MAX_BARS,
    lockstep: Lockstep = (),
) -> TimedProgram:
    """Time one run of a compiled program on a machine.

    Args:
        places: physical positions of the devices, in the order in which the program numbers them.
        mesh: axis -> size. Device ids number the mesh positions, the last axis fastest.
        mode: how to time operations, one of `durations.MODES`.
        clock_hz: cycles per second in the compiler's estimates. None if it makes no estimates; the
            mode is then `roofline`.
        kernel_cost: returns the cost of a custom kernel; by default only attention is known.
        max_bars: number of bars beyond which repeated trips of a loop become one bar.
        lockstep: trips of a loop in which devices take different branches.

    Raises:
        BadInput: an unknown mode, or a device that the machine does not have.
        UnknownFigure: no public source gives a rate of the chip that is needed.
    """

    def custom_call_cost(instruction: Instruction) -> Cost | None:
        cost = kernel_cost(instruction) if kernel_cost else None
        return call_cost(instruction) if cost is None else cost

    def work_of(computation: Computation, instruction: Instruction) -> OpWork:
        op = ops_by_name.get((computation.name, instruction.name))
        if op is None:  # a loop, conditional or call: the instructions in its callees are timed
            return OpWork()
        return OpWork(
            flops=float(op.cost.flops),
            dtype=op.cost.dtype or "bf16",
            hbm_bytes=float(op.cost.hbm_bytes),
            is_kernel=instruction.opcode == "custom-call",
            head_dim=head_dim(instruction),
        )

    # All branches of a conditional have costs, also those that only other pipeline stages take.
    run_counts = count_runs(module)
    ops = program_costs(module, custom_call_cost, run_counts)
    ops_by_name = {(op.computation, op.instruction.name): op for op in ops}
    collectives_by_name: dict[tuple[str, str], list[Collective]] = defaultdict(list)
    for collective in collectives(module, mesh, run_counts):
        collectives_by_name[collective.computation, collective.instruction].append(collective)
    mode = mode if clock_hz else "roofline"
    rates = DeviceRates.of_chip(system.chip, mode, clock_hz, places.devices_per_chip)
    lowering = Lowering(
        module=module,
        network=Network(system, places),
        rates=rates,
        collectives=collectives_by_name,
        work_of=work_of,
        operation_of=scope,
        lockstep=lockstep,
    )
    return TimedProgram(
        timeline=simulate(lowering.steps(module.entry), max_bars=max_bars),
        mode=mode,
        kernel_share=rates.kernel_share,
        unknown_kernels=tuple(op.instruction.name for op in ops if op.has_unknown_kernel),
        unresolved_loops=run_counts.unresolved_loops,
        inexact_collectives=tuple(sorted(lowering.inexact)),
    )
