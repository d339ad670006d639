"""Causes of gaps between plan and measurement, in words."""

from __future__ import annotations

from shardwise import units
from shardwise.compare import causes
from shardwise.compare.pairs import GREW
from shardwise.compare.result import Cause
from shardwise.compare.traces import (
    MORE_BYTES,
    MORE_FLOPS,
    MORE_MEMORY,
    MORE_REMAT,
    NEW_COLLECTIVE,
)
from shardwise.ops.collective import DISPLAY_NAMES
from shardwise.profile.host import DISPATCH, LOADING
from shardwise.profile.names import short_name
from shardwise.report.words import compiled_steps

seconds = units.show_seconds


def phrase(cause: Cause) -> str:
    """A cause in a few words: `runs at 31 GFLOP/s, planned 43 GFLOP/s`."""
    planned = cause.planned or 0.0
    measured = cause.measured or 0.0
    at = f" at {short_name(cause.name)}" if cause.name else ""
    name = short_name(cause.group)
    match cause.kind:
        case causes.SLOWER if measured > 1 and planned > 1:
            return (
                f"{units.show_rate(measured, 'FLOP/s')} reached, "
                f"{units.show_rate(planned, 'FLOP/s')} planned"
            )
        case causes.SLOWER:
            return f"slower than its rates; most{at}" if at else "slower than its rates"
        case causes.RECOMPUTED if cause.name == "FLOPs":
            return f"{units.show_count(measured)}FLOP, planned {units.show_count(planned)}FLOP"
        case causes.RECOMPUTED:
            if planned:
                return f"matmuls computed again: {seconds(measured)}, planned {seconds(planned)}"
            return f"matmuls computed again ({seconds(measured)}), and no remat is planned"
        case causes.NOT_RECOMPUTED if cause.name == "memory":
            return (
                f"no remat: {units.show_gib(measured)} of memory, planned "
                f"{units.show_gib(planned)}, and fewer FLOPs than planned"
            )
        case causes.NOT_RECOMPUTED:
            return (
                f"no remat: the plan recomputes {seconds(planned)} of matmuls to save memory, "
                "the program does not"
            )
        case causes.UNPLANNED_COLLECTIVE:
            return f"a collective that is not in the plan{at}: a sharding differs"
        case causes.WEIGHTS_GATHERED:
            return f"weights are gathered for every token{at}: FSDP does not suit decoding"
        case causes.EXPOSED:
            return f"planned as hidden, {seconds(measured)} exposed, most{at}"
        case causes.SLOWER_NETWORK:
            return (
                f"collectives take {seconds(measured)} with the hidden ones, planned "
                f"{seconds(planned)}; most{at}"
            )
        case causes.HOST_BOUND if cause.name == LOADING:
            return "host-bound: the device waits for the loading of data"
        case causes.HOST_BOUND if cause.name == DISPATCH:
            return "host-bound: the device waits for the dispatch of programs"
        case causes.HOST_BOUND:
            return (
                "host-bound: the device waits between programs for the host's own code, such as "
                "loading of data"
            )
        case causes.COMPILATION:
            return (
                "host-bound: the device waits for compilation: "
                f"{compiled_steps(round(measured), round(planned))}"
            )
        case causes.DEVICES_WAIT:
            return f"devices wait {seconds(measured)} for each other, most{at}"
        case causes.CALLBACKS:
            return f"the device waits {seconds(measured)} for callbacks on the host, most{at}"
        case causes.OTHER_FLOPS:
            return (
                f"its products compute {units.show_rate(measured, 'FLOP')}, planned "
                f"{units.show_rate(planned, 'FLOP')}"
            )
        case causes.IDLE:
            return "the device waits"
        case causes.COPIES:
            return f"copies that the plan does not have; most{at}"
        case causes.LOOPS:
            return "control of loops"
        case causes.UNNAMED:
            return f"matmuls that the plan does not have; most{at}"
        case causes.SHORT_OPERATIONS:
            return f"too small a batch: an operation takes {seconds(measured)}, launches dominate"
        case causes.SMALL_BATCH:
            return (
                f"too small a batch: {units.show_count(round(measured))}; {cause.name} weights "
                f"takes longer than computing below {units.show_count(round(planned))}"
            )
        case causes.VOCABULARY:
            return (
                f"the vocabulary on a chip, {measured:g}, is no multiple of "
                f"{causes.LANES}: pad it to {planned:,.0f}"
            )
        case causes.MEMORY:
            most = f"; most{at}" if cause.name not in ("", "memory") else ""
            return f"memory {units.show_gib(measured)}, planned {units.show_gib(planned)}{most}"
        case causes.TRAFFIC:
            return f"{cause.name} {units.show_bytes(measured)}, planned {units.show_bytes(planned)}"
        case causes.COMPILED_SLOWER:
            detail = f" ({cause.name})" if cause.name else ""
            return f"{cause.group}{detail}: {seconds(measured)}, planned {seconds(planned)}"
        case kind if kind == NEW_COLLECTIVE and cause.name:
            shown = f"{DISPLAY_NAMES[cause.name]} of {units.show_bytes(max(planned, measured))}"
            return f"a collective that {_less(planned, measured)} does not have: {name} ({shown})"
        case kind if kind == MORE_REMAT:
            if planned and measured:
                return f"remat, {seconds(planned)} and {seconds(measured)}"
            recomputed = seconds(max(planned, measured))
            return f"remat, of which {_less(planned, measured)} has none: {recomputed}"
        case kind if kind == MORE_MEMORY:
            most = f"; most{at}" if at else ""
            return (
                f"B needs {units.show_gib(measured)} of memory, A {units.show_gib(planned)}{most}"
            )
        case kind if kind == MORE_BYTES:
            shown = f"{units.show_bytes(planned)} and {units.show_bytes(measured)}"
            return f"{name} moves {_times(planned, measured, 'bytes')} ({shown})"
        case kind if kind == NEW_COLLECTIVE:
            shown = seconds(max(planned, measured))
            return f"a collective that {_less(planned, measured)} does not have: {name} ({shown})"
        case kind if kind == MORE_FLOPS:
            return f"{name} computes {_times(planned, measured, 'FLOPs')}"
        case kind if kind == GREW and not planned:
            return f"{name}, {seconds(measured)} (none in A)"
        case kind if kind == GREW and not measured:
            return f"{name}, {seconds(planned)} (none in B)"
        case kind if kind == GREW:
            return f"{name}, {seconds(planned)} and {seconds(measured)}"
    return cause.kind


def _times(first: float, second: float, unit: str) -> str:
    """How many times as much the one that does more does, and which of A and B it is."""
    larger = "A" if _less(first, second) == "B" else "B"
    return f"{max(first, second) / min(first, second):.1f} times the {unit} in {larger}"


def _less(first: float, second: float) -> str:
    """Which of A and B has less."""
    return "A" if first < second else "B"
