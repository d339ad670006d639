"""A sharded matmul in the book's notation: steps with bytes and times, and alternatives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardwise import units
from shardwise.formulas.matmul import MatmulOption, ShardResult, ShardStep
from shardwise.report.style import Block, labelled, quiet, strong, table
from shardwise.report.words import seconds_span

MAX_ALTERNATIVES = 4


def document(result: ShardResult) -> dict[str, Any]:
    """The result as a JSON document, with the sums that its lines show."""
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(result)
    ways = [result.best, *result.others]
    for way, row in zip(ways, [fields["best"], *fields["others"]], strict=True):
        row |= {"comms_s": way.comms_s, "lower_s": way.lower_s, "upper_s": way.upper_s}
    fields["gradients"] = [document(gradient) for gradient in result.gradients]
    return fields


def blocks(result: ShardResult) -> Iterator[Block]:
    """The cheapest way, the alternatives, and the gradients if the result has them."""
    yield strong(_headline(result.best))
    sizes = " ".join(f"{dim}={size:,}" for dim, size in result.sizes.items())
    yield f"{result.dtype} {sizes} on {result.system}"
    placement = result.placement.items()
    yield labelled((f"axis {axis} = {result.mesh[axis]}", where) for axis, where in placement)
    yield ""
    yield from _program(result)
    for gradient in result.gradients:
        yield ""
        yield strong(f"gradient  {gradient.expression}   {_headline(gradient.best)}")
        yield from _program(gradient)
    yield quiet(
        "FLOPs and bytes of a matmul are per chip; bytes of a collective are the whole array "
        "that it gathers or reduces (the book's V)"
    )


def _headline(way: MatmulOption) -> str:
    times = {"Communication": way.comms_s, "Compute": way.math_s, "HBM": way.hbm_s}
    slowest = max(times, key=lambda name: times[name])
    return f"{slowest}-bound, {seconds_span(way.lower_s, way.upper_s)} (all / nothing overlapped)."


def _program(result: ShardResult) -> Iterator[Block]:
    yield _steps(result.best)
    if result.others:
        yield "alternatives, by communication"
        yield table(["", ">comms", ">total"], _others(result))
    for note in result.padding:
        yield f"padding: {note}"


def _steps(way: MatmulOption) -> Block:
    rows = [_step(step) for step in way.before]
    matmul = [
        way.local,
        units.show_count(way.flops_per_chip),
        units.show_bytes(way.hbm_bytes_per_chip),
        units.show_seconds(max(way.math_s, way.hbm_s)),
    ]
    rows.append(matmul)
    rows += [_step(step) for step in way.after]
    return table(["step", ">FLOPs", ">bytes", ">time"], rows)


def _step(step: ShardStep) -> list[str]:
    if step.collective is None:
        return [step.expression, "", "", "free"]
    time = units.show_seconds(step.time_s)
    if step.latency_bound:
        time += " (hops)"
    return [step.expression, "", units.show_bytes(step.joined_bytes), time]


def _others(result: ShardResult) -> Iterator[list[str]]:
    for way in result.others[:MAX_ALTERNATIVES]:
        steps = [step.expression.partition(" -> ")[0] for step in way.steps]
        yield [
            "; ".join(steps) or "no communication",
            units.show_seconds(way.comms_s),
            units.show_seconds(way.upper_s),
        ]
    n_slower = len(result.others) - MAX_ALTERNATIVES
    if n_slower > 0:
        yield [f"and {n_slower} slower (--json lists them)", "", ""]
