"""A compiled program, read: what it costs, sends, holds, and how long it takes on its machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shardwise.check.array_names import grouped
from shardwise.check.compiling.result import Compiled
from shardwise.check.hlo.collectives import Collective, collectives
from shardwise.check.hlo.costs import ScheduledOp, program_costs
from shardwise.check.hlo.loops import count_runs
from shardwise.check.hlo.memory import Peak, memory_peak
from shardwise.check.hlo.text import Module, parse
from shardwise.check.timeline.build import TimedProgram, time_program
from shardwise.check.timeline.kernels import attention_cost
from shardwise.check.timeline.places import compiler_places
from shardwise.check.timeline.trace import write_trace
from shardwise.check.verdict import Buffer, CompiledNumbers, CompiledSeconds
from shardwise.errors import CheckFailed
from shardwise.hardware import System


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A compiled program, read and timed.

    Args:
        timed: its timelines by how operations were timed; none on the CPU's compiler.
        peak: None where that compiler says nothing of the memory that is asked about.
    """

    compiled: Compiled
    module: Module
    timed: dict[str, TimedProgram]
    ops: list[ScheduledOp]
    collectives: list[Collective]
    peak: Peak | None

    @property
    def flops(self) -> float:
        """Of all products of a step on one device."""
        return float(sum(op.flops for op in self.ops))

    @property
    def attention_flops(self) -> float:
        """Of attention kernels."""
        kernels = [op for op in self.ops if attention_cost(op.instruction) is not None]
        return float(sum(op.flops for op in kernels))

    @property
    def again_flops(self) -> float:
        """Of products that XLA itself decided to compute again, which it names so."""
        return float(sum(op.flops for op in self.ops if ".remat" in op.instruction.name))


def read_program(
    compiled: Compiled,
    system: System,
    argument: Callable[[str], str] | None = None,
    sides: Mapping[str, tuple[int, ...]] | None = None,
) -> Read:
    """Read what a compiler made.

    Args:
        system: the machine that it was made for.
        argument: the category of an argument, from its name.
        sides: how often the program takes each side of its choices, see `hlo.loops.runs`.
    """
    module = parse(compiled.hlo)
    target, timed = compiled.target, {}
    counted = count_runs(module, sides)
    if target.platform != "cpu":
        places = compiled.places
        devices = compiler_places(
            system,
            [p.coords for p in places],
            [p.core for p in places],
            [p.slice_index for p in places],
        )
        for mode in ("cycles", "roofline") if target.clock_hz else ("roofline",):
            timed[mode] = time_program(
                module, system, devices, compiled.mesh, mode=mode, clock_hz=target.clock_hz
            )
    of = (lambda one: argument(one.op_name)) if argument else None
    return Read(
        compiled=compiled,
        module=module,
        timed=timed,
        ops=program_costs(module, attention_cost, counted),
        collectives=collectives(module, compiled.mesh, counted),
        peak=memory_peak(module, of, counted) if target.proves_memory else None,
    )


def numbers(read: Read, buffers: tuple[Buffer, ...]) -> CompiledNumbers:
    """The compiler's side of a verdict, of all devices of a chip; `buffers` are all that one of
    them holds at the peak."""
    compiled, timed = read.compiled, read.timed
    proves, n = compiled.target.proves_memory, compiled.target.devices_per_chip
    capacity = compiled.target.memory_bytes
    seconds = None
    if timed:
        cycles = timed["cycles"].timeline.step_s if "cycles" in timed else None
        seconds = CompiledSeconds(cycles=cycles, roofline=timed["roofline"].timeline.step_s)
    best = timed.get("cycles") or timed.get("roofline")
    held: dict[str, int] = {}
    for one in buffers:
        held[one.category] = held.get(one.category, 0) + n * one.n * one.bytes
    return CompiledNumbers(
        peak_bytes=n * compiled.memory.needed if proves else None,
        arguments_bytes=n * compiled.memory.arguments,
        temporaries_bytes=n * compiled.memory.temporaries if proves else None,
        host_bytes=n * compiled.memory.on_host if proves else None,
        capacity_bytes=capacity and n * capacity,
        flops=n * read.flops,
        step_s=seconds,
        exposed_s=best.timeline.exposed_s if best else {},
        by_category=dict(sorted(held.items(), key=lambda pair: -pair[1])),
    )


def held_at_peak(read: Read, words: Callable[..., Buffer]) -> tuple[Buffer, ...]:
    """Everything that is held at the peak in somebody's words, the largest first."""
    return grouped(map(words, read.peak.arrays)) if read.peak else ()


def draw(read: Read, path: str | Path, title: str) -> None:
    """Write the timeline for Perfetto.

    Raises:
        CheckFailed: there is none.
    """
    timed = read.timed.get("cycles") or read.timed.get("roofline")
    if timed is None:
        raise CheckFailed("the CPU's compiler gives no timeline of another chip: no trace.")
    write_trace(Path(path), timed.timeline, title)
