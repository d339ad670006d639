"""What the compiler says of a plan, for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shardwise import units
from shardwise.check.proof import CheckedCollective, Verdict
from shardwise.report.style import Block, labelled, quiet, strong, table

COMPILERS = {"tpu": "XLA's TPU compiler", "gpu": "XLA's GPU compiler", "cpu": "XLA's CPU compiler"}


def blocks(verdict: Verdict) -> Iterator[Block]:
    """The answer, plan beside compiler, collectives, differences."""
    yield strong(_headline(verdict))
    if verdict.note:
        yield verdict.note
    if verdict.compiled:
        yield table(["", ">plan", ">XLA", ">difference"], _numbers(verdict))
    if verdict.collectives:
        heads = ["collectives", "", ">plan n", ">XLA n", ">plan", ">XLA", ">async"]
        yield table(heads, map(_collective, verdict.collectives))
        yield quiet("counts, then what a chip takes in in a step; async: beside other work")
    if verdict.differences:
        yield labelled(
            ("differs" if i == 0 else "", d.text) for i, d in enumerate(verdict.differences)
        )
    if verdict.largest:
        yield table(["largest at the peak", "", ">bytes"], _largest(verdict))
    yield quiet(_next(verdict))


def _headline(verdict: Verdict) -> str:
    who = COMPILERS[verdict.compiler]
    what = f"{verdict.name} on {verdict.hardware}"
    if verdict.verdict == "does not fit":
        return f"Does not fit: {who} has no room for {what}."
    if verdict.verdict == "collectives missing":
        return f"Not proved: {who} left out planned collectives of {what}."
    if verdict.fits is None:
        return f"Shapes, FLOPs and collectives of {what} hold by {who}; memory is not checked."
    return f"Proved by {who}: {what} compiles, fits, and has the planned collectives."


def _numbers(verdict: Verdict) -> Iterator[tuple[str, str, str, str]]:
    planned, compiled = verdict.planned, verdict.compiled
    if compiled is None:
        return
    if compiled.peak_bytes is not None:
        yield _row("memory at peak", planned.peak_bytes, compiled.peak_bytes, units.show_gib)
        if compiled.capacity_bytes:
            yield ("  of", "", units.show_gib(compiled.capacity_bytes), "")
    yield _row("FLOPs of a chip", planned.flops, compiled.flops, _flops)
    if compiled.step_s:
        by = [("roofline", planned.step_s.lower, compiled.step_s.roofline)]
        if compiled.step_s.cycles is not None:
            by.append(("cycles", planned.step_s.expected, compiled.step_s.cycles))
        names = {"roofline": "step, rooflines", "cycles": "step, expected / cycles"}
        for name, plan_s, xla_s in by:
            yield _row(names[name], plan_s, xla_s, units.show_seconds)


def _flops(value: float) -> str:
    return units.show_rate(value, "FLOP")


def _row(
    name: str, planned: float, compiled: float, show: Callable[[float], str]
) -> tuple[str, str, str, str]:
    change = f"{compiled / planned - 1:+.1%}" if planned else ""
    return (name, show(planned), show(compiled), change)


def _collective(row: CheckedCollective) -> tuple[str, ...]:
    return (
        row.role,
        row.kind.replace("_", "-"),
        f"{row.planned_n:,}",
        f"{row.compiled_n:,}",
        units.show_bytes(row.planned_bytes),
        units.show_bytes(row.compiled_bytes),
        f"{row.asynchronous:.0%}" if row.compiled_n else "",
    )


def _largest(verdict: Verdict) -> Iterator[tuple[str, str, str]]:
    for one in verdict.largest[:5]:
        name = f"{one.category}, {one.scope}" if one.scope else one.category
        yield (name, one.shape, units.show_bytes(one.bytes))


def _next(verdict: Verdict) -> str:
    if verdict.verdict == "does not fit":
        return "type  shardwise plan ... --fix remat=full, or more microbatches, takes less memory"
    if verdict.compiled and verdict.compiled.step_s:
        return "type  --trace step.json.gz draws the timeline for Perfetto  ·  --json has all of it"
    return "type  --json has all of it"
