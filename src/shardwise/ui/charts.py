"""The numbers behind each chart of the page; the page draws them and computes none of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwise.hardware import System
from shardwise.plan.schema.common import MemoryBytes, Operation
from shardwise.plan.schema.json_io import AnyPlan
from shardwise.plan.schema.serving import ServingPlan, ServingPoint
from shardwise.plan.schema.training import Alternative, Plan
from shardwise.plan.schema.training_reasons import Overlap
from shardwise.ui.sentences import why_not

ON_CHIP = ("layers", "ends", "update", "bubble")  # parts of a step that are not traffic
NAMES = {"ends": "embedding and head", "update": "optimizer update", "bubble": "pipeline bubble"}


def roofline(plan: AnyPlan, system: System) -> dict[str, Any]:
    """The roofs of a chip, a dot for each operation, and one for each role's traffic.

    A dot's x is FLOPs per byte, its y FLOP/s at peak rates; `time_s` is its seconds in a step.
    """
    chip = system.chip
    points = [_point(operation) for operation in plan.operations if operation.flops]
    flops = sum(operation.flops for operation in plan.operations)
    return {
        "peak_flops": chip.peak(str(plan.strategy.precision["compute"])),
        "hbm_bytes_per_s": chip.hbm_bytes_per_s,
        "points": points,
        "traffic": _traffic(plan.operations, flops),
    }


def _point(operation: Operation) -> dict[str, Any]:
    return {
        "name": operation.name,
        "phase": operation.phase,
        "expression": operation.expression,
        "count": operation.count,
        "intensity": operation.flops / operation.hbm_bytes if operation.hbm_bytes else None,
        "flops_per_s": operation.flops / operation.time_s if operation.time_s else None,
        "flops": operation.flops,
        "bytes": operation.hbm_bytes,
        "time_s": operation.time_s,
    }


def _traffic(operations: tuple[Operation, ...], flops: float) -> list[dict[str, Any]]:
    """For each role: FLOPs of the step per byte that its collectives receive, and their roof."""
    sums: dict[str, list[float]] = {}
    for operation in operations:
        if operation.role and operation.network_bytes:
            total = sums.setdefault(operation.role, [0.0, 0.0])
            total[0] += operation.network_bytes
            total[1] += operation.time_s
    return [
        {
            "role": role,
            "intensity": flops / n_bytes,
            "flops_per_s": flops / seconds,
            "bytes": n_bytes,
            "bytes_per_s": n_bytes / seconds,
            "time_s": seconds,
        }
        for role, (n_bytes, seconds) in sums.items()
        if seconds
    ]


def memory(plan: AnyPlan) -> dict[str, Any]:
    """The parts of a chip's memory at its peak, and the limit."""
    usage: MemoryBytes = plan.memory
    parts = [{"name": name, "bytes": size} for name, size in usage.largest_parts.items()]
    moment = "decode"
    if isinstance(plan, Plan):
        pipelined = plan.strategy.mesh["pipe"] > 1
        moment = "the backward pass, on the fullest stage" if pipelined else "the backward pass"
    return {
        "parts": parts,
        "total": usage.total,
        "margin": usage.margin,
        "capacity": usage.capacity,
        "left": usage.left,
        "moment": moment,
    }


def timeline(plan: AnyPlan) -> dict[str, Any]:
    """Rows of a step: what the chip computes, and each axis' traffic, exposed or under compute."""
    if isinstance(plan, ServingPlan):
        return _pass_timeline(plan)
    parts = plan.estimate.expected_s
    hidden = hidden_seconds(plan)
    compute, start = [], 0.0
    for name in ON_CHIP:
        if seconds := parts.get(name, 0.0):
            kind = "bubble" if name == "bubble" else "compute"
            compute.append(_span(NAMES.get(name, name), start, seconds, kind))
            start += seconds
    rows = [{"name": "compute", "spans": compute}]
    for role in sorted({*hidden, *parts} - {*ON_CHIP}):
        spans = []
        if seconds := hidden.get(role, 0.0):
            spans.append(_span(f"{role}, under compute", 0.0, seconds, "hidden"))
        if seconds := parts.get(role, 0.0):
            spans.append(_span(f"{role}, exposed", start, seconds, "exposed"))
            start += seconds
        rows.append({"name": role, "spans": spans})
    return {"seconds": plan.step.expected, "unit": "step", "rows": rows}


def hidden_seconds(plan: Plan) -> dict[str, float]:
    """Role -> seconds of its traffic that overlap with compute.

    The reason `overlap` states them at calibrated rates; smaller ones follow from peak rates.
    """
    stated: Mapping[str, float] = {}
    for reason in plan.why:
        if isinstance(reason, Overlap):
            stated = reason.hidden_s
    hidden = {}
    for role, seconds in plan.estimate.comm_s.items():
        overlapped = seconds - plan.estimate.expected_s.get(role, 0.0)
        hidden[role] = stated.get(role, max(overlapped, 0.0))
    return {role: seconds for role, seconds in hidden.items() if seconds > 0}


def _pass_timeline(plan: ServingPlan) -> dict[str, Any]:
    """One decoding pass: its parts one after the other, traffic on a row of its own."""
    decode = plan.estimate.decode
    roles = {operation.role for operation in plan.operations if operation.role}
    rows: list[dict[str, Any]] = [{"name": "chip", "spans": []}]
    start = 0.0
    for name, seconds in decode.parts.items():
        if name in roles or "network" in name:
            rows.append({"name": name, "spans": [_span(name, start, seconds, "exposed")]})
        else:
            rows[0]["spans"].append(_span(name, start, seconds, "compute"))
        start += seconds
    return {"seconds": start, "unit": "pass", "rows": rows}


def _span(name: str, start: float, seconds: float, kind: str) -> dict[str, Any]:
    return {"name": name, "start": start, "seconds": seconds, "kind": kind}


def strategies(plan: AnyPlan) -> list[dict[str, Any]]:
    """The plan and its alternatives as rows, with why each alternative is worse."""
    return [_own_row(plan), *(_row(other) for other in plan.alternatives)]


def _row(other: Alternative | ServingPoint) -> dict[str, Any]:
    row = {"mesh": other.mesh, "memory": other.memory_bytes_per_chip, "why": why_not(other)}
    if isinstance(other, Alternative):
        form = f"{other.schedule}, ZeRO-{other.zero}, remat {other.remat}"
        return row | {"form": form, "seconds": other.step_s.expected, "fits": other.fits}
    form = f"{other.dtype}, batch {other.batch} × {other.engines} on {other.hardware}"
    return row | {"form": form, "seconds": other.tpot_s, "fits": True}


def _own_row(plan: AnyPlan) -> dict[str, Any]:
    row: dict[str, Any] = {"mesh": plan.strategy.mesh, "memory": plan.memory.total}
    row |= {"fits": plan.memory.left >= 0, "why": "this plan"}
    if isinstance(plan, Plan):
        strategy = plan.strategy
        form = f"{strategy.schedule}, ZeRO-{strategy.zero}, remat {strategy.remat}"
        rate = plan.estimate.tokens_per_s_per_chip
        return row | {"form": form, "seconds": plan.step.expected, "rate": rate}
    engines = plan.strategy.servers
    batch = plan.estimate.decode.batch
    dtype = plan.strategy.precision["weights"]
    form = f"{dtype}, batch {batch} × {engines.count} on {engines.hardware}"
    rate = plan.estimate.tokens_per_s_per_chip
    return row | {"form": form, "seconds": plan.estimate.tpot_s, "rate": rate}


def pareto(plan: AnyPlan) -> list[dict[str, Any]]:
    """Seconds against throughput per chip: the front of a serving search, or the strategies."""
    if isinstance(plan, Plan):
        tokens = plan.workload.tokens_per_step / plan.hardware.n_chips
        rows = strategies(plan)
        return [
            {
                "name": _mesh_words(row["mesh"]),
                "seconds": row["seconds"],
                "rate": tokens / row["seconds"],
                "memory": row["memory"],
                "own": row["why"] == "this plan",
            }
            for row in rows
        ]
    own = strategies(plan)[0]
    points = [
        {
            "name": f"{_mesh_words(point.mesh)}, batch {point.batch}, {point.hardware}",
            "seconds": point.tpot_s,
            "rate": point.tokens_per_s_per_chip,
            "memory": point.memory_bytes_per_chip,
            "own": False,
        }
        for point in plan.pareto
    ]
    this = {key: own[key] for key in ("seconds", "rate", "memory")}
    return [*points, {"name": "this plan", "own": True, **this}]


def _mesh_words(mesh: Mapping[str, int]) -> str:
    return " × ".join(f"{role} {size:,}" for role, size in mesh.items() if size > 1) or "one chip"
