"""A sharded matmul as the book writes it: its steps with bytes and times, and the other ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardwise import units
from shardwise.formulas.matmul import MatmulOption, ShardResult, ShardStep
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


def _way_document(way: MatmulOption, raw: dict[str, Any]) -> dict[str, Any]:
    return {**raw, "comms_s": way.comms_s, "lower_s": way.lower_s, "upper_s": way.upper_s}


def blocks(result: ShardResult) -> Iterator[Block]:
    """The cheapest way, the others, and the gradients when they were asked for."""
    yield strong(_headline(result.best))
    sizes = " ".join(f"{d}={n:,}" for d, n in result.sizes.items())
    yield f"{result.dtype} {sizes} on {result.system}"
    yield labelled((f"axis {a} = {result.mesh[a]}", at) for a, at in result.placement.items())
    yield ""
    yield from _program(result)
    for gradient in result.gradients:
        yield ""
        yield strong(f"gradient  {gradient.expression}   {_headline(gradient.best)}")
        yield from _program(gradient)
    yield quiet(
        "FLOPs and bytes of a product are those of one chip; bytes of a collective are the array "
        "over the shards that it joins (the book's V)"
    )


def _headline(way: MatmulOption) -> str:
    times = {"Communication": way.comms_s, "Compute": way.math_s, "HBM": way.hbm_s}
    slowest = max(times, key=lambda name: times[name])
    return f"{slowest}-bound, {seconds_span(way.lower_s, way.upper_s)} (all / nothing overlapped)."


def _program(result: ShardResult) -> Iterator[Block]:
    yield _steps(result.best)
    if result.others:
        yield "other ways, and what they communicate"
        yield table(["", ">comms", ">total"], _others(result))
    for note in result.padding:
        yield f"padding: {note}"


def _steps(way: MatmulOption) -> Block:
    rows = [_step(step) for step in way.before]
    time_s, hbm = max(way.math_s, way.hbm_s), way.hbm_bytes_per_chip
    flops = units.show_count(way.flops_per_chip)
    rows.append([way.local, flops, units.show_bytes(hbm), units.show_seconds(time_s)])
    rows += [_step(step) for step in way.after]
    return table(["step", ">FLOPs", ">bytes", ">time"], rows)


def _step(step: ShardStep) -> list[str]:
    if step.collective is None:
        return [step.expression, "", "", "free"]
    time = units.show_seconds(step.time_s) + (" (hops)" if step.latency_bound else "")
    return [step.expression, "", units.show_bytes(step.joined_bytes), time]


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
