"""A Pareto front of training plans as a table: step time against memory or against chips."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardwise import units
from shardwise.plan.training.pareto import Front, FrontPoint
from shardwise.report.style import Block, bar, quiet, strong, table
from shardwise.report.tables import DASH, distinct_problems, footnotes, problem_number
from shardwise.report.words import duration, mesh_text, percent

MEMORY_STEP = 0.9  # a point of the shortened front has at most this share of the one before it


def blocks(front: Front, *, verbose: bool = False) -> Iterator[Block]:
    """The front as a table; `verbose` keeps all points of a front against memory."""
    if front.against == "memory":
        yield from _memory(front, verbose)
    else:
        yield from _chips(front)


def _memory(front: Front, verbose: bool) -> Iterator[Block]:
    points: Sequence[FrontPoint] = front.points
    if not verbose:
        points = thinned(points)
    fastest = points[0]
    smallest = points[-1]
    slowdown = _step_s(smallest) / _step_s(fastest)
    yield strong(
        f"Memory per chip from {units.show_gib(fastest.memory_bytes or 0.0)} down to "
        f"{units.show_gib(smallest.memory_bytes or 0.0)}, for ×{slowdown:.2f} the step time. No "
        "other split is both faster and smaller."
    )
    largest_bytes = fastest.memory_bytes or 1.0
    rows = []
    for point in points:
        memory_bytes = point.memory_bytes or 0.0
        row = [
            duration(_step_s(point)),
            units.show_gib(memory_bytes),
            bar(memory_bytes, largest_bytes, 10),
            mesh_text(point.mesh or {}),
            f"ZeRO-{point.zero}" if point.zero else DASH,
            point.remat or "",
        ]
        rows.append(row)
    yield table([">step", ">HBM", "", "mesh", "!", "!remat"], rows)
    if len(points) < len(front.points):
        yield quiet(f"{len(points)} of {len(front.points)} points  ·  -v or --json shows all")


def _chips(front: Front) -> Iterator[Block]:
    planned = [point for point in front.points if point.step_s]
    cheapest = min(planned, key=lambda point: point.chip_s or 0.0)
    fastest = min(planned, key=_step_s)
    least_chip_s = cheapest.chip_s or 1.0
    cost_ratio = (fastest.chip_s or 0.0) / least_chip_s
    yield strong(
        f"Cheapest: {cheapest.hardware} ({cheapest.chip_s or 0.0:,.0f} chip-seconds per step of "
        f"{duration(_step_s(cheapest))}). Fastest: {fastest.hardware} "
        f"({duration(_step_s(fastest))}, ×{cost_ratio:.2f} the cost)."
    )
    problems = distinct_problems(front.points)
    rows = [_machine(point, problems, least_chip_s) for point in front.points]
    yield table([">chips", "!hardware", ">step", ">cost", ">MFU", ">HBM", "mesh"], rows)
    yield footnotes(problems)


def _machine(point: FrontPoint, problems: Sequence[str], least_chip_s: float) -> list[str]:
    machine = [f"{point.n_chips:,}", point.hardware]
    if point.problem:
        return [*machine, *[DASH] * 4, problem_number(problems, point.problem)]
    mesh = mesh_text(point.mesh or {})
    if not point.on_front:
        mesh += " (fewer chips are as fast)"
    return [
        *machine,
        duration(_step_s(point)),
        f"×{(point.chip_s or 0.0) / least_chip_s:.2f}",
        percent(point.mfu or 0.0),
        units.show_gib(point.memory_bytes or 0.0),
        mesh,
    ]


def thinned(points: Sequence[FrontPoint]) -> list[FrontPoint]:
    """Points in which memory falls by at least a tenth from one to the next, and the last one."""
    shown = [points[0]]
    for point in points[1:]:
        if (point.memory_bytes or 0.0) <= MEMORY_STEP * (shown[-1].memory_bytes or 0.0):
            shown.append(point)
    if shown[-1] is not points[-1]:
        shown.append(points[-1])
    return shown


def _step_s(point: FrontPoint) -> float:
    """Expected seconds of a step; 0 for a machine without a plan."""
    if point.step_s is None:
        return 0.0
    return point.step_s.expected
