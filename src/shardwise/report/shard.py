"""A sharded matmul as the book writes it: its steps with bytes and times, and the other ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardwise import units
from shardwise.estimate.matmul import ShardResult, Way
from shardwise.report.style import Block, labelled, quiet, strong, table
from shardwise.report.words import seconds_span

SHOWN_WAYS = 4


def document(result: ShardResult) -> dict[str, Any]:
    """The result as a document, with the sums that its lines show."""
    import msgspec

    made: dict[str, Any] = msgspec.to_builtins(result)
    made["best"] = _way_document(result.best, made["best"])
    made["others"] = [
        _way_document(way, raw) for way, raw in zip(result.others, made["others"], strict=True)
    ]
    made["gradients"] = [document(gradient) for gradient in result.gradients]
    return made


def _way_document(way: Way, raw: dict[str, Any]) -> dict[str, Any]:
    return {**raw, "comms_s": way.comms_s, "lower_s": way.lower_s, "upper_s": way.upper_s}


def blocks(result: ShardResult) -> Iterator[Block]:
    """The cheapest way, the others, and the gradients when they were asked for."""
    yield strong(_headline(result.best))
    sizes = " ".join(f"{d}={n:,}" for d, n in result.sizes.items())
    yield f"{result.dtype} {sizes} on {result.system}"
    yield labelled((f"axis {axis} = {result.mesh[axis]}", at) for axis, at in _places(result))
    yield ""
    yield from _program(result)
    for gradient in result.gradients:
        yield ""
        yield strong(f"gradient  {gradient.expression}   {_headline(gradient.best)}")
        yield from _program(gradient)
    yield quiet("bytes = the array over the shards that a collective joins (the book's V)")


def _headline(way: Way) -> str:
    times = {"Communication": way.comms_s, "Compute": way.math_s, "HBM": way.hbm_s}
    slowest = max(times, key=lambda name: times[name])
    return f"{slowest}-bound, {seconds_span(way.lower_s, way.upper_s)} (all / nothing overlapped)."


def _places(result: ShardResult) -> Iterator[tuple[str, str]]:
    yield from result.placement.items()


def _program(result: ShardResult) -> Iterator[Block]:
    yield _steps(result.best)
    if result.others:
        yield "other ways, and what they communicate"
        yield table(["", ">comms", ">total"], _others(result))
    for note in result.padding:
        yield f"padding: {note}"


def _steps(way: Way) -> Block:
    rows = [_step_row(step.expression, step) for step in way.before]
    local = f"{way.local}   {units.show_count(way.flops_per_chip)} FLOPs a chip"
    rows.append([local, units.show_bytes(way.hbm_bytes_per_chip), units.show_seconds(_chip_s(way))])
    rows += [_step_row(step.expression, step) for step in way.after]
    return table(["step", ">bytes", ">time"], rows)


def _chip_s(way: Way) -> float:
    return max(way.math_s, way.hbm_s)


def _step_row(expression: str, step: Any) -> list[str]:
    if step.collective is None:
        return [expression, "", "free"]
    late = " (hops)" if step.latency_bound else ""
    return [expression, units.show_bytes(step.joined_bytes), units.show_seconds(step.time_s) + late]


def _others(result: ShardResult) -> Iterator[list[str]]:
    for way in result.others[:SHOWN_WAYS]:
        done = [s.expression.partition(" -> ")[0] for s in way.steps]
        yield [
            "; ".join(done) or "no communication",
            units.show_seconds(way.comms_s),
            units.show_seconds(way.upper_s),
        ]
    if len(result.others) > SHOWN_WAYS:
        yield [f"and {len(result.others) - SHOWN_WAYS} slower (--json lists them)", "", ""]
