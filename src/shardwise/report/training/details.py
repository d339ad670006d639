"""Tables of `plan -v`: axis placement, sharding rules, time and memory by part, operations."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.plan import Plan
from shardwise.report import tables
from shardwise.report.style import Block, bar, strong, table
from shardwise.report.words import duration, signed_percent


def details(plan: Plan) -> Iterator[Block]:
    """Tables of axis placement, sharding rules, times, memory and operations, with headings."""
    estimate = plan.estimate
    yield ""
    yield strong(f"Placement on {plan.hardware.topology}, {plan.hardware.name}")
    yield tables.placement(plan.strategy.placement)
    other = plan.strategy.next_placement
    if other:
        change = signed_percent(other.step_s / plan.step.expected - 1)
        yield f"The next best placement takes {duration(other.step_s)} ({change}):"
        yield tables.placement(other.placement)
    yield ""
    yield strong("Sharding: array dims -> mesh axes")
    yield tables.sharding_rules(plan.strategy.rules)
    yield ""
    yield strong(f"Expected step, at the rates of {estimate.rates.name}")
    total_s = plan.step.expected
    step = ["  step", duration(total_s), bar(total_s, total_s)]
    yield table(["part", ">time", ""], [*tables.time_rows(estimate.expected_s, total_s), step])
    if estimate.joules is not None and estimate.run_s is not None:
        energy = units.show_rate(estimate.joules / units.HOUR, "Wh")
        watts = estimate.joules / estimate.run_s / plan.hardware.n_chips
        yield f"  energy of the run: {energy} at most, at {watts:,.0f} W a chip, without hosts"
    yield ""
    yield strong(f"Memory per chip, remat {plan.strategy.remat}")
    yield table(["part", ">bytes", ""], tables.memory_rows(plan.memory))
    yield ""
    yield strong("Operations of one step, summed over all occurrences. Bytes are HBM traffic,")
    yield strong("or network traffic for a collective")
    headers = ["operation", "!phase", "!>count", "!FLOPs, or collective", "!>bytes", "!>time"]
    yield table(headers, map(tables.operation_cells, plan.operations))
