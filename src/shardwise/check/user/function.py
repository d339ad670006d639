"""Compiler report on a user's own function: memory, FLOPs, collectives and seconds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.check.array_names import describe_unplanned, largest_arrays, user_scope
from shardwise.check.compiled_costs import (
    AnalyzedProgram,
    analyze_program,
    compiled_numbers,
    peak_arrays,
    write_timeline,
)
from shardwise.check.compiling.environment import choose_target
from shardwise.check.compiling.result import (
    Compiled,
    Failure,
    OtherFailure,
    OutOfMemory,
    ResultArray,
    ShardingError,
    VmemOverflow,
)
from shardwise.check.hlo.collectives import Collective
from shardwise.check.notes import (
    GPU_NOTE,
    STAGE_FAILURES,
    compile_error,
    located,
    memory_note,
    refuse_trace,
    vmem_note,
)
from shardwise.check.options import CompileOptions
from shardwise.check.source_line import SourceLine
from shardwise.check.user.api import compile_function, compile_named
from shardwise.check.user.diagnosis import find_faults
from shardwise.check.user.fault import Fault
from shardwise.check.verdict import CompiledNumbers, PeakArray
from shardwise.errors import BadInput, BadSharding, CheckFailed
from shardwise.hardware import parse_system

MAX_OVERLAPPED = 3  # the largest number of overlapping scopes that a row lists


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """Collectives of one kind over the same mesh axes from one line, in one run on one device.

    Args:
        axes: axes of the function's own mesh; () if the groups do not run along whole axes.
        kind: kind of collective, such as `all_gather`.
        n: number of collectives in one run.
        bytes: bytes that a device receives in one run.
        asynchronous: fraction of the bytes that asynchronous collectives move.
        beside: scopes of the operations that overlap with them, most frequent first.
        scope: the name scopes in which they are; "" if there are none.
        sources: their line in the user's files, and the line that called it.
    """

    axes: tuple[str, ...]
    kind: str
    n: int
    bytes: float
    asynchronous: float
    beside: tuple[str, ...]
    scope: str = ""
    sources: tuple[SourceLine, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionReport:
    """The compiler's report on a function.

    Args:
        hardware: the machine, such as `v5e:4x4`.
        compiler: platform of the compiler: `tpu`, `gpu` or `cpu`.
        fits: whether a device has enough memory; None if the compiler cannot tell.
        verdict: `compiles` or `does not fit`.
        mesh: axis -> size of the function's mesh.
        flops_by_scope: FLOPs of products on one device, by the name scopes of the function's code.
        largest: arrays that are live at the peak, largest first.
        results: arrays that the function returns, with the shardings that the compiler chose.
        faults: what takes memory or time for nothing; what may be the cause of others comes first.
        uncounted_kernels: scopes and names of kernels whose FLOPs are not known.
        compile_s: seconds of lowering and compiling.
    """

    name: str
    hardware: str
    compiler: str
    fits: bool | None
    verdict: str
    note: str
    mesh: Mapping[str, int]
    compiled: CompiledNumbers | None
    flops_by_scope: Mapping[str, float]
    collectives: tuple[CollectiveRow, ...]
    largest: tuple[PeakArray, ...]
    compile_s: float
    versions: Mapping[str, str]
    results: tuple[ResultArray, ...] = ()
    faults: tuple[Fault, ...] = ()
    uncounted_kernels: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether it compiles, and fits as far as the compiler can tell."""
        return self.verdict == "compiles"


def check_function(
    fn: Callable[..., Any], *args: Any, on: str, trace: str | Path | None = None
) -> FunctionReport:
    """Compile a function in this process and report on it.

    Raises:
        As `shardwise.check`.
    """
    refuse_trace(trace, choose_target(parse_system(on)))
    name = getattr(fn, "__name__", type(fn).__name__)
    return _report(name, on, compile_function(fn, *args, on=on), trace)


def check_named_function(
    name: str, args: str, on: str, options: CompileOptions, trace: str | Path | None = None
) -> FunctionReport:
    """Compile `module:function` in a separate process and report on it.

    The module is searched in the current folder first.

    Args:
        args: name of the function that returns its arguments; "" for the default.
        trace: a file for the timeline; None for none.

    Raises:
        As `shardwise.check`, and BadInput if the function does not exist.
    """
    refuse_trace(trace, choose_target(parse_system(on)))
    result = compile_named(
        name,
        args,
        on=on,
        import_folder=os.getcwd(),
        limits=options.limits,
        cache_path=options.cache_path,
        on_stage=options.on_stage,
    )
    return _report(name, on, result, trace)


def _report(
    name: str, machine: str, result: Compiled | Failure, trace: str | Path | None
) -> FunctionReport:
    system = parse_system(machine)
    if isinstance(result, OutOfMemory):
        if result.program:
            return _program_report(name, machine, analyze_program(result.program, system), result)
        return FunctionReport(
            name=name,
            hardware=machine,
            compiler=system.chip.kind,
            fits=False,
            verdict="does not fit",
            note=memory_note(result, None),
            mesh={},
            compiled=None,
            flops_by_scope={},
            collectives=(),
            largest=(),
            compile_s=0.0,
            versions={},
        )
    if not isinstance(result, Compiled):
        raise _function_error(name, machine, result)
    program = analyze_program(result, system)
    if trace is not None:
        write_timeline(program, trace, f"{name} on {machine}")
    return _program_report(name, machine, program, None)


def _function_error(name: str, machine: str, failure: Failure) -> Exception:
    """The error for a function that does not compile, with the message of JAX or the compiler."""
    if isinstance(failure, ShardingError):
        return BadSharding(located(f"{name} on {machine}", failure.source, failure.text))
    if isinstance(failure, OtherFailure) and failure.stage in STAGE_FAILURES:
        problem = f"{name} {STAGE_FAILURES[failure.stage]}"
        return BadInput(located(problem, failure.source, failure.text))
    if isinstance(failure, VmemOverflow):
        return CheckFailed(f"{name} on {machine} does not compile: {vmem_note(failure)}")
    return compile_error(failure)


def _program_report(
    name: str, machine: str, program: AnalyzedProgram, failure: OutOfMemory | None
) -> FunctionReport:
    compiled = program.compiled
    target = compiled.target
    arrays = peak_arrays(program, describe_unplanned)
    numbers = compiled_numbers(program, arrays)
    notes = [target.note]
    if target.platform == "gpu":
        notes.append(GPU_NOTE)
    if failure:
        notes.insert(0, memory_note(failure, numbers))
    return FunctionReport(
        name=name,
        hardware=machine,
        compiler=target.platform,
        fits=False if failure else compiled.fits,
        verdict="does not fit" if failure else "compiles",
        note=" ".join(filter(None, notes)),
        mesh=compiled.mesh,
        compiled=numbers,
        flops_by_scope=_flops_by_scope(program),
        collectives=() if failure else _collective_rows(program),
        largest=largest_arrays(arrays),
        compile_s=compiled.total_s,
        versions=compiled.versions,
        results=compiled.results,
        faults=find_faults(program),
        uncounted_kernels=tuple(_uncounted_kernels(program)),
    )


def _uncounted_kernels(program: AnalyzedProgram) -> dict[str, None]:
    """The kernels without a known cost, each once."""
    names: dict[str, None] = {}
    for op in program.ops:
        if op.has_unknown_kernel:
            names[user_scope(op.instruction.op_name) or op.instruction.name] = None
    return names


def _flops_by_scope(program: AnalyzedProgram) -> dict[str, float]:
    totals: dict[str, float] = {}
    for op in program.ops:
        for op_name, flops in op.cost.products:
            scope = user_scope(op_name)
            totals[scope] = totals.get(scope, 0.0) + float(flops * op.n_runs)
    return dict(sorted(totals.items(), key=lambda pair: -pair[1]))


def _collective_rows(program: AnalyzedProgram) -> tuple[CollectiveRow, ...]:
    groups: dict[object, list[Collective]] = {}
    for collective in program.collectives:
        place = (user_scope(collective.op_name), collective.sources[:1])
        key = (collective.axes, collective.kind, place)
        groups.setdefault(key, []).append(collective)
    rows = [_collective_row(collectives, program) for collectives in groups.values()]
    return tuple(sorted(rows, key=lambda row: -row.bytes))


def _collective_row(collectives: Sequence[Collective], program: AnalyzedProgram) -> CollectiveRow:
    """The row with the totals of collectives of one kind over the same axes, from one line."""
    n_runs = 0
    total_bytes = 0
    asynchronous_bytes = 0
    scope_counts: dict[str, int] = {}
    for collective in collectives:
        n_bytes = collective.received_bytes * collective.n_runs
        n_runs += collective.n_runs
        total_bytes += n_bytes
        if collective.form != "sync":
            asynchronous_bytes += n_bytes
        instructions = program.module.computations[collective.computation].instructions
        for name in collective.overlapped:
            scope = user_scope(instructions[name].op_name)
            if scope:
                scope_counts[scope] = scope_counts.get(scope, 0) + collective.n_runs
    scopes = sorted(scope_counts, key=lambda scope: -scope_counts[scope])
    return CollectiveRow(
        axes=collectives[0].axes,
        kind=collectives[0].kind,
        n=n_runs,
        bytes=float(total_bytes),
        asynchronous=asynchronous_bytes / total_bytes if total_bytes else 0.0,
        beside=tuple(scopes[:MAX_OVERLAPPED]),
        scope=user_scope(collectives[0].op_name),
        sources=collectives[0].sources,
    )
