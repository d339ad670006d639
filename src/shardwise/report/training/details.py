"""The tables below a plan: where axes lie, what is sharded, memory by part, every operation."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.plan import Operation, Plan
from shardwise.report.style import Block, bar, strong, table


def details(plan: Plan) -> Iterator[Block]:
    """Placement, rules, memory and operations."""
    yield ""
    yield strong(f"Placement on {plan.hardware.topology}, {plan.hardware.name}")
    yield table(["axis", "where"], [[f"  {a}", w] for a, w in plan.strategy.placement.items()])
    yield ""
    yield strong("Sharding: dims of arrays -> mesh axes")
    yield table(
        ["dim", "mesh axes"], [[f"  {r}", ", ".join(a)] for r, a in plan.strategy.rules.items()]
    )
    yield ""
    yield strong(f"Expected step, at the rates of {plan.estimate.rates.name}")
    yield table(["part", ">time", ""], _parts(plan))
    if plan.estimate.joules is not None and plan.estimate.run_s is not None:
        energy = units.show_rate(plan.estimate.joules / units.HOUR, "Wh")
        watts = plan.estimate.joules / plan.estimate.run_s / plan.hardware.n_chips
        yield f"  energy of the run: {energy} at most, at {watts:,.0f} W a chip, hosts not counted"
    yield ""
    yield strong(f"Memory per chip, remat {plan.strategy.remat}")
    yield table(["part", ">bytes", ""], _memory(plan))
    yield ""
    yield strong("Operations of one step, each over all its occurrences; bytes are of HBM, or of")
    yield strong("the network for a collective")
    heads = ["operation", "!phase", "!>count", "!FLOPs, or collective", "!>bytes", "!>time"]
    yield table(heads, [operation_row(op) for op in plan.operations])


def _parts(plan: Plan) -> Iterator[list[str]]:
    expected = plan.step.expected
    for name, seconds in plan.estimate.expected_s.items():
        yield [f"  {name}", units.show_seconds(seconds), bar(seconds, expected)]
    yield ["  step", units.show_seconds(expected), bar(expected, expected)]


def _memory(plan: Plan) -> Iterator[list[str]]:
    memory = plan.memory
    parts = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "activations": memory.activations,
        "kv_cache": memory.kv_cache,
        "other": memory.other,
        "total": memory.total,
        "kept free": memory.margin,
        "capacity": memory.capacity,
    }
    for name, n_bytes in parts.items():
        if n_bytes:
            yield [f"  {name}", units.show_gib(n_bytes), bar(n_bytes, memory.capacity)]


def operation_row(op: Operation) -> list[str]:
    """An operation as a row of its table."""
    work = units.show_count(op.flops) if op.flops else ""
    return [
        op.name,
        op.phase,
        f"{op.count}",
        f"{op.collective} {op.role}" if op.collective else work,
        units.show_bytes(op.network_bytes if op.collective else op.hbm_bytes),
        units.show_seconds(op.time_s),
    ]
