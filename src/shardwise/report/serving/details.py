"""The tables below a serving plan: where axes lie, what is sharded, memory, every operation."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.plan.schema.common import MemoryBytes
from shardwise.plan.schema.serving import PlannedEngines, ServingPlan
from shardwise.report.serving.traffic import tables
from shardwise.report.style import Block, bar, strong, table
from shardwise.report.training.details import operation_row


def details(plan: ServingPlan) -> Iterator[Block]:
    """Placement, rules, memory and operations, of engines that generate and of those that read."""
    strategy, told = plan.strategy, plan.estimate
    yield from _servers("Engines that generate", strategy.servers, told.memory_bytes_per_chip)
    if strategy.prefill and told.prefill_memory_bytes_per_chip:
        memory = told.prefill_memory_bytes_per_chip
        yield from _servers("Engines that read prompts", strategy.prefill, memory)
    if told.traffic:
        yield from tables(told.traffic)
    yield ""
    yield strong("A prompt on an idle engine")
    rows = told.prefill.parts.items()
    whole = told.prefill.step_s.expected
    yield table(
        ["part", ">time", ""], [[f"  {n}", units.show_seconds(s), bar(s, whole)] for n, s in rows]
    )
    yield ""
    yield strong(
        "Operations of a pass and of a prompt at peak rates, each over all its occurrences"
    )
    heads = ["!operation", "!phase", ">count", "!FLOPs, or collective", ">bytes", ">time"]
    yield table(heads, [operation_row(op) for op in plan.operations])


def _servers(title: str, these: PlannedEngines, memory: MemoryBytes) -> Iterator[Block]:
    yield ""
    yield strong(f"{title}: {these.count} of {these.n_chips} chips on {these.hardware}")
    yield table(["axis", "where"], [[f"  {a}", w] for a, w in these.placement.items()])
    yield table(["dim", "mesh axes"], [[f"  {r}", ", ".join(a)] for r, a in these.rules.items()])
    parts = {
        "weights": memory.weights,
        "kv_cache": memory.kv_cache,
        "other": memory.other,
        "total": memory.total,
        "kept free": memory.margin,
        "capacity": memory.capacity,
    }
    yield table(
        ["memory per chip", ">bytes", ""],
        [
            [f"  {name}", units.show_gib(n), bar(n, memory.capacity)]
            for name, n in parts.items()
            if n
        ],
    )
