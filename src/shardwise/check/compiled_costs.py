"""Analysis of a compiled program: FLOPs and bytes, collectives, peak memory, and time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shardwise.check.array_names import merge_equal
from shardwise.check.compiling.result import Compiled
from shardwise.check.hlo.collectives import Collective, collectives
from shardwise.check.hlo.costs import ScheduledOp, program_costs
from shardwise.check.hlo.loops import count_runs
from shardwise.check.hlo.memory import LiveArray, Peak, memory_peak
from shardwise.check.hlo.text import Instruction, Module, parse
from shardwise.check.notes import CYCLES_NOTE
from shardwise.check.timeline.build import TimedProgram, time_program
from shardwise.check.timeline.durations import MODES
from shardwise.check.timeline.kernels import call_cost, is_attention
from shardwise.check.timeline.lower import Lockstep
from shardwise.check.timeline.places import DevicePlaces, compiler_places
from shardwise.check.timeline.result import Timeline
from shardwise.check.timeline.trace import write_trace
from shardwise.check.verdict import CompiledNumbers, CompiledSeconds, PeakArray
from shardwise.hardware import System

# What runs a program's operations, by platform of the compiler.
CORES = {"tpu": "TensorCore", "gpu": "SMs"}
TIMING_NOTES = {"cycles": CYCLES_NOTE, "roofline": "rooflines, at peak rates"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzedProgram:
    """A compiled program, parsed and timed.

    Args:
        timings: mode (`cycles`, `roofline`) -> timed program; empty for the CPU's compiler.
        ops: every scheduled instruction with its cost.
        peak: peak memory; None if the compiler is not the chip's own.
        flops_per_s: peak FLOP/s of a device in bf16; None if no public source gives it.
    """

    compiled: Compiled
    module: Module
    timings: dict[str, TimedProgram]
    ops: list[ScheduledOp]
    collectives: list[Collective]
    peak: Peak | None
    flops_per_s: float | None

    @property
    def flops(self) -> float:
        """FLOPs of all products of a step on one device."""
        return float(sum(op.flops for op in self.ops))

    @property
    def attention_flops(self) -> float:
        """FLOPs of attention kernels in a step on one device."""
        flops = 0
        for op in self.ops:
            if is_attention(op.instruction):
                flops += op.flops
        return float(flops)

    @property
    def recomputed_flops(self) -> float:
        """FLOPs of products that XLA itself decided to recompute, on one device.

        XLA adds `.remat` to the names of these instructions.
        """
        return float(sum(op.flops for op in self.ops if ".remat" in op.instruction.name))

    @property
    def hbm_bytes(self) -> float:
        """HBM bytes read and written by a step on one device."""
        return float(sum(op.hbm_bytes for op in self.ops))

    @property
    def timeline(self) -> Timeline | None:
        """The timeline in mode `cycles` if there is one, else in mode `roofline`."""
        return self.timings[self._mode].timeline if self.timings else None

    @property
    def timing_note(self) -> str:
        """How the seconds of the timeline compare with those of real runs."""
        return TIMING_NOTES[self._mode]

    @property
    def _mode(self) -> str:
        return next(mode for mode in MODES if mode in self.timings)


def analyze_program(
    compiled: Compiled,
    system: System,
    argument_category: Callable[[str], str] | None = None,
    branch_runs: Mapping[str, tuple[int, ...]] | None = None,
    lockstep: Lockstep = (),
) -> AnalyzedProgram:
    """Parse and time a compiled program.

    Args:
        system: the machine that it was compiled for.
        argument_category: returns the category of an argument, from its op name.
        branch_runs: run counts of the branches of conditionals, see `hlo.loops.count_runs`.
        lockstep: trips of a loop in which devices take different branches, see `timeline.lower`.
    """
    module = parse(compiled.hlo)
    target = compiled.target
    timings = {}
    if target.platform != "cpu":
        places = device_places(compiled, system)
        modes = MODES if target.clock_hz else ("roofline",)
        for mode in modes:
            timings[mode] = time_program(
                module,
                system,
                places,
                compiled.mesh,
                mode=mode,
                clock_hz=target.clock_hz,
                lockstep=lockstep,
            )

    def category(parameter: Instruction) -> str:
        return argument_category(parameter.op_name) if argument_category else "arguments"

    run_counts = count_runs(module, branch_runs)
    peak = None
    if target.proves_memory:
        peak = memory_peak(module, category, run_counts)
    chip_flops_per_s = system.chip.peak_flops_per_s.get("bf16")
    return AnalyzedProgram(
        compiled=compiled,
        module=module,
        timings=timings,
        ops=program_costs(module, call_cost, run_counts),
        collectives=collectives(module, compiled.mesh, run_counts),
        peak=peak,
        flops_per_s=chip_flops_per_s and chip_flops_per_s / target.devices_per_chip,
    )


def device_places(compiled: Compiled, system: System) -> DevicePlaces:
    """Places of a program's devices on the machine for which its own compiler has compiled it."""
    return compiler_places(
        system,
        [place.coords for place in compiled.places],
        [place.core for place in compiled.places],
        [place.slice_index for place in compiled.places],
    )


def compiled_numbers(program: AnalyzedProgram, arrays: tuple[PeakArray, ...]) -> CompiledNumbers:
    """The compiler's numbers in a verdict: totals of all devices of a chip.

    Args:
        arrays: all arrays that are live on one device at the peak.
    """
    target = program.compiled.target
    memory = program.compiled.memory
    devices_per_chip = target.devices_per_chip
    peak_bytes = temporaries_bytes = host_bytes = hbm_bytes = None
    if target.proves_memory:
        hbm_bytes = devices_per_chip * program.hbm_bytes
        peak_bytes = devices_per_chip * memory.device_bytes
        temporaries_bytes = devices_per_chip * memory.temporaries
        host_bytes = devices_per_chip * memory.host_bytes
    seconds = None
    if program.timings:
        cycles = program.timings.get("cycles")
        seconds = CompiledSeconds(
            cycles=cycles.timeline.step_s if cycles else None,
            roofline=program.timings["roofline"].timeline.step_s,
        )
    by_category: dict[str, int] = {}
    for array in arrays:
        n_bytes = devices_per_chip * array.n * array.bytes
        by_category[array.category] = by_category.get(array.category, 0) + n_bytes
    return CompiledNumbers(
        peak_bytes=peak_bytes,
        arguments_bytes=devices_per_chip * memory.arguments,
        output_bytes=devices_per_chip * memory.output,
        alias_bytes=devices_per_chip * memory.alias,
        temporaries_bytes=temporaries_bytes,
        host_bytes=host_bytes,
        capacity_bytes=target.memory_bytes and devices_per_chip * target.memory_bytes,
        flops=devices_per_chip * program.flops,
        hbm_bytes=hbm_bytes,
        step_s=seconds,
        exposed_s=program.timeline.exposed_s if program.timeline else {},
        by_category=dict(sorted(by_category.items(), key=lambda pair: -pair[1])),
    )


def peak_arrays(
    program: AnalyzedProgram, describe: Callable[[LiveArray], PeakArray]
) -> tuple[PeakArray, ...]:
    """All arrays that are live at the peak on one device, described, merged, largest first."""
    if program.peak is None:
        return ()
    return merge_equal(map(describe, program.peak.arrays))


def write_timeline(program: AnalyzedProgram, path: str | Path, title: str) -> None:
    """Write the timeline, which the CPU's program does not have, as a trace for Perfetto."""
    if program.timeline is not None:
        core = CORES[program.compiled.target.platform]
        write_trace(Path(path), program.timeline, f"{title}, {program.timing_note}", core)
