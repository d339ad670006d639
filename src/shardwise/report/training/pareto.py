"""A front as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardwise import units
from shardwise.plan.training.pareto import Front, FrontPoint
from shardwise.report.style import Block, bar, labelled, quiet, strong, table
from shardwise.report.words import mesh_text, percent

APART = 0.9  # of a long front, points that save a tenth of the memory are shown


def blocks(front: Front, *, verbose: bool = False) -> Iterator[Block]:
    """The whole answer; `verbose` shows every point of a front against memory."""
    if front.against == "memory":
        yield from _memory(front, verbose)
    else:
        yield from _chips(front)


def _memory(front: Front, verbose: bool) -> Iterator[Block]:
    points = front.points if verbose else thinned(front.points)
    first, last = points[0], points[-1]
    most, least = (units.show_gib(p.memory_bytes or 0.0) for p in (first, last))
    slower = _step(last) / _step(first)
    yield strong(
        f"From {most} to {least} of a chip for ×{slower:.2f} the step. No split "
        "is both faster and smaller than these."
    )
    full = first.memory_bytes or 1.0
    rows = [
        [
            units.show_seconds(_step(p)),
            units.show_gib(p.memory_bytes or 0.0),
            bar(p.memory_bytes or 0.0, full, 10),
            mesh_text(p.mesh or {}),
            f"ZeRO-{p.zero}" if p.zero else "–",
            p.remat or "",
        ]
        for p in points
    ]
    yield table([">step", ">HBM", "", "mesh", "!", "!remat"], rows)
    if len(points) < len(front.points):
        yield quiet(f"{len(points)} of {len(front.points)} points  ·  -v shows all, --json too")


def _chips(front: Front) -> Iterator[Block]:
    there = [p for p in front.points if p.step_s]
    cheapest = min(there, key=lambda p: p.chip_s or 0.0)
    fastest = min(there, key=_step)
    dearer = (fastest.chip_s or 0.0) / (cheapest.chip_s or 1.0)
    yield strong(
        f"Cheapest: {cheapest.hardware} ({cheapest.chip_s or 0.0:,.0f} chip-seconds a step of "
        f"{units.show_seconds(_step(cheapest))}). Fastest: {fastest.hardware} "
        f"({units.show_seconds(_step(fastest))}, ×{dearer:.2f} the cost)."
    )
    problems = list(dict.fromkeys(p.problem for p in front.points if p.problem))
    rows = [_machine(p, problems, cheapest.chip_s or 1.0) for p in front.points]
    yield table([">chips", "!hardware", ">step", ">cost", ">MFU", ">HBM", "mesh"], rows)
    yield labelled((f"({i})", problem) for i, problem in enumerate(problems, 1))


def _machine(p: FrontPoint, problems: Sequence[str], least: float) -> list[str]:
    if p.problem:
        return [f"{p.n_chips:,}", p.hardware, *["–"] * 4, f"none ({problems.index(p.problem) + 1})"]
    beaten = "" if p.on_front else " (fewer chips are as fast)"
    return [
        f"{p.n_chips:,}",
        p.hardware,
        units.show_seconds(_step(p)),
        f"×{(p.chip_s or 0.0) / least:.2f}",
        percent(p.mfu or 0.0),
        units.show_gib(p.memory_bytes or 0.0),
        mesh_text(p.mesh or {}) + beaten,
    ]


def thinned(points: Sequence[FrontPoint]) -> list[FrontPoint]:
    """The fastest, then each that takes a tenth less memory than the one before, and the last."""
    kept = [points[0]]
    for point in points[1:]:
        if (point.memory_bytes or 0.0) <= APART * (kept[-1].memory_bytes or 0.0):
            kept.append(point)
    return kept if kept[-1] is points[-1] else [*kept, points[-1]]


def _step(p: FrontPoint) -> float:
    return p.step_s.expected if p.step_s else 0.0
