"""Figures of a compiled program that are far from the plan's, and the verdict that follows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from shardwise.check.comparison import ROUNDING_SHARE, bytes_by_role, missing_roles
from shardwise.check.verdict import (
    Cause,
    CheckedCollective,
    CompiledNumbers,
    Deviation,
    PlannedNumbers,
    Verdict,
)

TOLERANCE = 0.1  # fraction of the planned memory, FLOPs or traffic by which a program may differ
# Differences below this fraction of all planned traffic are not counted: for the traffic of a role,
# and for that which plans leave out (of the loss, and of sampling).
SMALL_SHARES = {"other": 0.1}
SMALL_SHARE = 0.01
# HBM traffic is far above the plan's from this ratio on. What the compiler fuses or copies is not
# planned, so smaller ratios say nothing.
HBM_RATIO = 2.0


def judge(verdict: Verdict, causes: tuple[Cause, ...]) -> Verdict:
    """The verdict on a program that was compiled, with the answers to its three questions.

    Args:
        verdict: with planned and compiled numbers, and `fits`.
        causes: what takes longer than planned.
    """
    compiled = verdict.compiled
    if verdict.fits is False or compiled is None:
        return replace(verdict, verdict="does not fit")
    traffic: tuple[Deviation, ...] = ()
    if verdict.compiler != "cpu":  # which widens what is sent
        traffic = tuple(_traffic(verdict.collectives))
    missing = missing_roles(verdict.collectives)
    figures = tuple(_figures(verdict.planned, compiled))
    deviations = (*figures, *traffic)
    outcome = "proved"
    if deviations:
        outcome = "holds"
    worse = [deviation.quantity for deviation in deviations if deviation.is_worse]
    if worse:
        outcome = "differs"
    note = verdict.note
    if missing:
        outcome = "collectives missing"
        note = f"{', '.join(missing)}: planned, but not in the program. {note}".strip()
    is_on_time = None
    if compiled.step_s:
        is_on_time = all(deviation.quantity != "time" for deviation in figures)
    return replace(
        verdict,
        sends_as_planned=not (traffic or missing),
        takes_planned_time=is_on_time,
        verdict=outcome,
        note=note,
        deviations=deviations,
        # What fills the memory is in the table of arrays at the peak.
        causes=() if set(worse) <= {"memory"} else causes,
    )


def _figures(planned: PlannedNumbers, compiled: CompiledNumbers) -> Iterator[Deviation]:
    """Yield time beyond the plan's upper bound, and memory, FLOPs and HBM traffic far from it."""
    if compiled.step_s:
        limit = planned.step_s.upper
        if compiled.step_s.roofline > limit * (1 + ROUNDING_SHARE):
            yield Deviation(quantity="time", planned=limit, compiled=compiled.step_s.roofline)
    if compiled.peak_bytes is not None and _is_far(planned.peak_bytes, compiled.peak_bytes):
        yield Deviation(quantity="memory", planned=planned.peak_bytes, compiled=compiled.peak_bytes)
    if _is_far(planned.flops, compiled.flops):
        yield Deviation(quantity="FLOPs", planned=planned.flops, compiled=compiled.flops)
    if compiled.hbm_bytes is not None and compiled.hbm_bytes > HBM_RATIO * planned.hbm_bytes:
        yield Deviation(
            quantity="HBM traffic", planned=planned.hbm_bytes, compiled=compiled.hbm_bytes
        )


def _traffic(rows: Iterable[CheckedCollective]) -> Iterator[Deviation]:
    """Yield the roles whose traffic, summed over kinds of collectives, is far from the plan's."""
    planned, compiled = bytes_by_role(rows)
    total = sum(planned.values())
    for role, n_bytes in planned.items():
        small = SMALL_SHARES.get(role, SMALL_SHARE) * total
        if abs(compiled[role] - n_bytes) > small and _is_far(n_bytes, compiled[role]):
            yield Deviation(quantity=f"{role} traffic", planned=n_bytes, compiled=compiled[role])


def _is_far(planned: float, compiled: float) -> bool:
    return abs(compiled - planned) > TOLERANCE * planned
