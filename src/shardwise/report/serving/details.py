"""Tables of `plan --serve -v`: axis placement, sharding rules, memory, traffic, operations."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.plan.schema.common import MemoryBytes
from shardwise.plan.schema.serving import PlannedEngines, ServingPlan
from shardwise.report import tables
from shardwise.report.serving import traffic
from shardwise.report.style import Block, strong, table


def details(plan: ServingPlan) -> Iterator[Block]:
    """Tables of the decode and prefill engines, of simulated traffic, and of operations."""
    strategy = plan.strategy
    estimate = plan.estimate
    title = "Decode engines" if strategy.prefill else "Engines"
    yield from _engines(title, strategy.servers, estimate.memory_bytes_per_chip)
    if strategy.prefill and estimate.prefill_memory_bytes_per_chip:
        memory = estimate.prefill_memory_bytes_per_chip
        yield from _engines("Prefill engines", strategy.prefill, memory)
    if estimate.traffic:
        yield from traffic.tables(estimate.traffic)
    yield ""
    yield strong("Prefill of one prompt on an idle engine")
    prefill = estimate.prefill
    yield table(["part", ">time", ""], tables.time_rows(prefill.parts, prefill.step_s.expected))
    yield ""
    yield strong("Operations of a decode step and of a prefill at peak rates, summed over all")
    yield strong("occurrences. Bytes are HBM traffic, or network traffic for a collective")
    headers = ["!operation", "!phase", ">count", "!FLOPs, or collective", ">bytes", ">time"]
    yield table(headers, map(tables.operation_cells, plan.operations))


def _engines(title: str, engines: PlannedEngines, memory: MemoryBytes) -> Iterator[Block]:
    """Axis placement, sharding rules and memory per chip of engines of one kind."""
    yield ""
    yield strong(f"{title}: {engines.count} of {engines.n_chips} chips on {engines.hardware}")
    yield tables.placement(engines.placement)
    yield tables.sharding_rules(engines.rules)
    yield table(["memory per chip", ">bytes", ""], tables.memory_rows(memory))
