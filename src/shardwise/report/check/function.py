"""The compiler's report on a user's own JAX function."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from shardwise import units
from shardwise.check.notes import CYCLES_NOTE
from shardwise.check.user.function import CollectiveRow, FunctionReport
from shardwise.hardware import parse_system
from shardwise.report.check.faults import place, remedy, sentence
from shardwise.report.check.plan import COMPILERS, memory, show_flops
from shardwise.report.style import Block, label_first, labelled, quiet, strong, table

MAX_SCOPES = 8  # rows of FLOPs by named scope
MAX_COLLECTIVES = 16  # rows of collectives, the largest of them
MAX_KERNELS = 4  # named kernels whose FLOPs are not counted
MAX_FAULTS = 3  # faults in the headline


def blocks(report: FunctionReport) -> Iterator[Block]:
    """The verdict, the compiler's numbers, the collectives, and the largest arrays in memory."""
    yield strong(" ".join((*_faults(report), _headline(report))))
    if report.note:
        yield report.note
    if report.faults:
        yield labelled(label_first("try", map(remedy, report.faults)))
    if report.compiled is None:
        return
    yield table(["", ">"], _numbers(report))
    if report.uncounted_kernels:
        yield quiet(_uncounted(report.uncounted_kernels))
    if report.compiled.step_s and report.compiled.step_s.cycles is not None:
        yield quiet(CYCLES_NOTE)
    if report.collectives:
        headers = ["collectives over", "", ">n", ">bytes", ">async", "from"]
        yield table(headers, map(_collective, report.collectives[:MAX_COLLECTIVES]))
        hidden = report.collectives[MAX_COLLECTIVES:]
        if hidden:
            n_bytes = units.show_bytes(sum(row.bytes for row in hidden))
            yield quiet(f"and {n_bytes} from {len(hidden)} more lines: --json")
        yield quiet("bytes: received by a device in one run; async: share that overlaps")
    if report.largest:
        yield from memory(report.compiled, report.largest)
    yield quiet("type  --trace step.json.gz for a Perfetto timeline  ·  --json for all numbers")


def _faults(report: FunctionReport) -> Iterator[str]:
    """Sentences about the first faults."""
    n_devices = math.prod(report.mesh.values())
    device = "device" if (parse_system(report.hardware).chip.n_devices or 1) > 1 else "chip"
    for fault in report.faults[:MAX_FAULTS]:
        yield sentence(fault, n_devices, device)


def _headline(report: FunctionReport) -> str:
    compiler = COMPILERS[report.compiler]
    function = f"{report.name} on {report.hardware}"
    if not report.passed:
        return f"Does not fit: {compiler} runs out of memory on {function}."
    if report.fits is None:
        return f"{function} compiles with {compiler}; memory is not checked."
    return f"{function} compiles with {compiler}, and fits."


def _numbers(report: FunctionReport) -> Iterator[tuple[str, str]]:
    compiled = report.compiled
    if compiled is None:
        return
    yield "mesh", " x ".join(f"{axis} {size}" for axis, size in report.mesh.items())
    if compiled.peak_bytes is not None:
        peak = units.show_gib(compiled.peak_bytes)
        if compiled.capacity_bytes:
            peak += f" of {units.show_gib(compiled.capacity_bytes)}"
        yield "memory at peak", peak
    yield "arguments", units.show_gib(compiled.arguments_bytes)
    yield "FLOPs per device", show_flops(compiled.flops)
    for scope, flops in list(report.flops_by_scope.items())[:MAX_SCOPES]:
        yield f"  {scope or 'outside any scope'}", show_flops(flops)
    if compiled.step_s:
        yield "run, rooflines", units.show_seconds(compiled.step_s.roofline)
        if compiled.step_s.cycles is not None:
            yield "run, cycles", units.show_seconds(compiled.step_s.cycles)
    for traffic, seconds in compiled.exposed_s.items():
        yield f"  waits for {traffic}", units.show_seconds(seconds)


def _uncounted(kernels: Sequence[str]) -> str:
    names = ", ".join(kernels[:MAX_KERNELS])
    if len(kernels) > MAX_KERNELS:
        names += f" and {len(kernels) - MAX_KERNELS} more"
    return f"FLOPs of kernels that give no cost_estimate are not counted: {names}"


def _collective(row: CollectiveRow) -> tuple[str, ...]:
    return (
        " x ".join(row.axes) or "part of the mesh",
        row.kind.replace("_", "-"),
        f"{row.n:,}",
        units.show_bytes(row.bytes),
        f"{row.asynchronous:.0%}",
        place(row.scope, row.sources[:1]),
    )
