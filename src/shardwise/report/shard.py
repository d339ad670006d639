"""The cheapest way to run a sharded matmul, step by step, and the alternatives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardwise import units
from shardwise.formulas.matmul import MatmulOption, ShardResult, ShardStep
from shardwise.report.style import Block, labelled, quiet, strong, table
from shardwise.report.words import seconds_span

MAX_ALTERNATIVES = 4  # rows of other options on a screen


def document(result: ShardResult) -> dict[str, Any]:
    """The result as a JSON document, with the total times of each option."""
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(result)
    options = [result.best, *result.others]
    for option, row in zip(options, [fields["best"], *fields["others"]], strict=True):
        row |= {"comms_s": option.comms_s, "lower_s": option.lower_s, "upper_s": option.upper_s}
    fields["gradients"] = [document(gradient) for gradient in result.gradients]
    return fields


def blocks(result: ShardResult) -> Iterator[Block]:
    """The cheapest option, its alternatives, and the same for the gradients of the result."""
    yield strong(_headline(result.best))
    sizes = " ".join(f"{dim}={size:,}" for dim, size in result.sizes.items())
    yield f"{result.dtype} {sizes} on {result.system}"
    axes = []
    for axis, where in result.placement.items():
        axes.append((f"axis {axis} = {result.mesh[axis]}", where))
    yield labelled(axes)
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


def _headline(option: MatmulOption) -> str:
    times = {"Communication": option.comms_s, "Compute": option.math_s, "HBM": option.hbm_s}
    slowest = max(times, key=lambda name: times[name])
    bounds = seconds_span(option.lower_s, option.upper_s)
    return f"{slowest}-bound, {bounds} (all / nothing overlapped)."


def _program(result: ShardResult) -> Iterator[Block]:
    yield _steps(result.best)
    if result.others:
        yield "alternatives, by communication"
        yield table(["", ">comms", ">total"], _alternatives(result))
    for note in result.padding:
        yield f"padding: {note}"


def _steps(option: MatmulOption) -> Block:
    local_matmul = [
        option.local,
        units.show_count(option.flops_per_chip),
        units.show_bytes(option.hbm_bytes_per_chip),
        units.show_seconds(max(option.math_s, option.hbm_s)),
    ]
    rows = [*map(_collective, option.before), local_matmul, *map(_collective, option.after)]
    return table(["step", ">FLOPs", ">bytes", ">time"], rows)


def _collective(step: ShardStep) -> list[str]:
    """A row for a collective, or for a local slice, which takes no time."""
    if step.collective is None:
        return [step.expression, "", "", "free"]
    time = units.show_seconds(step.time_s)
    if step.latency_bound:
        time += " (hops)"
    return [step.expression, "", units.show_bytes(step.joined_bytes), time]


def _alternatives(result: ShardResult) -> Iterator[list[str]]:
    for option in result.others[:MAX_ALTERNATIVES]:
        steps = [step.expression.partition(" -> ")[0] for step in option.steps]
        yield [
            "; ".join(steps) or "no communication",
            units.show_seconds(option.comms_s),
            units.show_seconds(option.upper_s),
        ]
    n_slower = len(result.others) - MAX_ALTERNATIVES
    if n_slower > 0:
        yield [f"and {n_slower} slower (--json lists them)", "", ""]
