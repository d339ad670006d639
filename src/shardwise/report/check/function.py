"""What the compiler says of somebody's own function, for people."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.check.user.function import CollectiveRow, FunctionReport
from shardwise.report.check.plan import COMPILERS, memory, show_flops
from shardwise.report.style import Block, quiet, strong, table

SCOPES = 8  # rows of FLOPs


def blocks(found: FunctionReport) -> Iterator[Block]:
    """The answer, its numbers, collectives, what fills the memory."""
    yield strong(_headline(found))
    if found.note:
        yield found.note
    if found.compiled is None:
        return
    yield table(["", ">"], _numbers(found))
    if found.collectives:
        heads = ["collectives over", "", ">n", ">bytes", ">async", "beside"]
        yield table(heads, map(_collective, found.collectives))
        yield quiet("bytes: what a device takes in in one run; async: beside other work")
    if found.largest:
        yield from memory(found.compiled, found.largest)
    yield quiet(
        "type  --trace step.json.gz draws the timeline for Perfetto  ·  --json has all of it"
    )


def _headline(found: FunctionReport) -> str:
    who = COMPILERS[found.compiler]
    what = f"{found.name} on {found.hardware}"
    if not found.passed:
        return f"Does not fit: {who} has no room for {what}."
    if found.fits is None:
        return f"{what} compiles by {who}; memory is not checked."
    return f"{what} compiles by {who}, and fits."


def _numbers(found: FunctionReport) -> Iterator[tuple[str, str]]:
    compiled = found.compiled
    if compiled is None:
        return
    yield ("mesh", " x ".join(f"{axis} {n}" for axis, n in found.mesh.items()))
    if compiled.peak_bytes is not None:
        limit = compiled.capacity_bytes
        of = f" of {units.show_gib(limit)}" if limit else ""
        yield ("memory at peak", units.show_gib(compiled.peak_bytes) + of)
    yield ("arguments", units.show_gib(compiled.arguments_bytes))
    yield ("FLOPs of a device", show_flops(compiled.flops))
    for scope, flops in list(found.flops_by_scope.items())[:SCOPES]:
        yield (f"  {scope or 'outside any scope'}", show_flops(flops))
    if compiled.step_s:
        yield ("run, rooflines", units.show_seconds(compiled.step_s.roofline))
        if compiled.step_s.cycles is not None:
            yield ("run, cycles", units.show_seconds(compiled.step_s.cycles))
    for what, seconds in compiled.exposed_s.items():
        yield (f"  waits for {what}", units.show_seconds(seconds))


def _collective(row: CollectiveRow) -> tuple[str, ...]:
    return (
        " x ".join(row.axes) or "part of the mesh",
        row.kind.replace("_", "-"),
        f"{row.n:,}",
        units.show_bytes(row.bytes),
        f"{row.asynchronous:.0%}",
        ", ".join(row.beside),
    )
