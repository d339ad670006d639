"""What the compiler says of a plan, for people."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator

from shardwise import units
from shardwise.check.verdict import CheckedCollective, CompiledNumbers, PeakArray, Proposal, Verdict
from shardwise.report.style import Block, labelled, quiet, strong, table

COMPILERS = {"tpu": "XLA's TPU compiler", "gpu": "XLA's GPU compiler", "cpu": "XLA's CPU compiler"}
SHOWN = 6  # rows of arrays at the peak


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
    if verdict.compiled and verdict.largest:
        yield from memory(verdict.compiled, verdict.largest)
    if verdict.xla_flags:
        told = [f"{flag.name}={flag.value}" for flag in verdict.xla_flags]
        yield labelled(("xla" if i == 0 else "", text) for i, text in enumerate(told))
    if verdict.proposals:
        yield from _proposals(verdict.proposals)
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
    if compiled.host_bytes:
        yield ("in host memory", "", units.show_gib(compiled.host_bytes), "")
    yield _row("FLOPs of a chip", planned.flops, compiled.flops, show_flops)
    if compiled.step_s:
        by = [("roofline", planned.step_s.lower, compiled.step_s.roofline)]
        if compiled.step_s.cycles is not None:
            by.append(("cycles", planned.step_s.expected, compiled.step_s.cycles))
        names = {"roofline": "step, rooflines", "cycles": "step, expected / cycles"}
        for name, plan_s, xla_s in by:
            yield _row(names[name], plan_s, xla_s, units.show_seconds)


def show_flops(value: float) -> str:
    """`1.55 TFLOP`."""
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


def memory(compiled: CompiledNumbers, largest: tuple[PeakArray, ...]) -> Iterator[Block]:
    """What fills the memory at the peak: by category, then the largest arrays."""
    parts = (f"{name} {units.show_gib(n)}" for name, n in compiled.by_category.items())
    yield labelled([("holds", "  ·  ".join(parts))])
    yield table(["largest at the peak", "", ">n", ">all"], map(_buffer, largest[:SHOWN]))


def _buffer(one: PeakArray) -> tuple[str, str, str, str]:
    name = one.name or one.category
    shape = f"{one.shape} {one.letters}".strip()
    return (name, shape, f"{one.n}", units.show_gib(one.n * one.bytes))


def _proposals(proposals: tuple[Proposal, ...]) -> Iterator[Block]:
    heads = ["instead", "", ">plan", ">XLA", ">expected step"]
    yield table(heads, map(_proposal, proposals))
    for one in proposals:
        if one.passed:
            yield from _continued(one.command)


def _continued(command: str) -> Iterator[str]:
    """A command in lines that a shell joins again."""
    lines = textwrap.wrap(
        command, 74, initial_indent="  ", subsequent_indent="    ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    yield from (f"{line} \\" for line in lines[:-1])
    yield lines[-1]


def _proposal(one: Proposal) -> tuple[str, ...]:
    return (
        one.change,
        one.verdict,
        units.show_gib(one.planned_bytes),
        "" if one.compiled_bytes is None else units.show_gib(one.compiled_bytes),
        units.show_seconds(one.step_s.expected),
    )


def _next(verdict: Verdict) -> str:
    if verdict.proposals:
        passed = any(one.passed for one in verdict.proposals)
        return "type  the line above plans what passed" if passed else "nothing that was tried fits"
    if not verdict.passed:
        return "type  --fix looks for a plan that passes, and compiles it; --save FILE keeps it"
    if verdict.compiled and verdict.compiled.step_s:
        return "type  --trace step.json.gz draws the timeline for Perfetto  ·  --json has all of it"
    return "type  --json has all of it"
