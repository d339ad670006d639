"""A plan held against collectives that a program might have."""

from __future__ import annotations

import numpy as np
import pytest

import shardwise as sw
from shardwise.check import comparison
from shardwise.check.hlo.collectives import Collective
from shardwise.check.hlo.text import Instruction
from shardwise.plan.collectives import planned_collectives

MODEL = sw.ModelConfig.dense(
    name="tiny", n_layers=2, d_model=512, d_ff=1024, n_heads=4, n_kv_heads=2, d_head=128, vocab=2048
)
OP = Instruction(
    name="i",
    opcode="all-gather",
    shapes=(),
    operands=(),
    literal="",
    attributes="",
    is_root=False,
    op_name="",
    backend_config={},
    callees=(),
)


@pytest.fixture(scope="module")
def plan() -> sw.Plan:
    job = sw.Train(batch=8, seq=64)
    return sw.plan(MODEL, sw.hardware("v5e:2x2"), job, {"tensor": 2, "fsdp": 2})


def made(kind: str, axes: tuple[str, ...], received: float, op_name: str = "x") -> Collective:
    """One collective of a program, in which each chip takes in so many bytes."""
    return Collective(
        kind=kind,
        axes=axes,
        group_size=2,
        dtype="bf16",
        array_bytes=(int(2 * received),),
        received_bytes=int(received),
        n_runs=1,
        form="sync",
        computation="main",
        instruction="i",
        done="",
        op=OP,
        op_name=op_name,
        overlapped=(),
        groups=np.array([[0, 1], [2, 3]]),
    )


def as_planned(plan: sw.Plan) -> list[Collective]:
    return [
        made(p.kind, p.axes if p.role == "data" else (p.role,), p.received_bytes)
        for p in planned_collectives(plan)
    ]


def test_what_is_planned_and_compiled_alike_has_no_difference(plan: sw.Plan) -> None:
    rows = comparison.compare_collectives(plan, as_planned(plan))
    assert {"tensor", "fsdp"} <= {row.role for row in rows}
    assert [d.text for d in comparison.collective_differences(rows) if d.bytes > 1e4] == []
    assert comparison.missing_roles(rows) == []


def test_sums_of_copies_over_some_of_the_axes_are_those_that_are_planned_there() -> None:
    """Routers are copied over `tensor` alone, norms over `fsdp` too: both are sums over copies."""
    model, layout = sw.model("mixtral-8x7b,n_layers=2"), {"tensor": 2, "fsdp": 2, "expert": 1}
    plan = sw.plan(model, sw.hardware("v5p:2x2x1"), sw.Train(batch=8, seq=512), layout)
    (copied,) = (op for op in plan.operations if op.name == "gradients.copied")
    assert copied.axes == ("tensor",)
    rows = comparison.compare_collectives(
        plan, [made("all_reduce", ("tensor",), copied.network_bytes)]
    )
    found = {row.role: row.compiled_bytes for row in rows if row.kind == "all_reduce"}
    assert found == {"data": int(copied.network_bytes)}


@pytest.mark.parametrize("role", ["tensor", "fsdp"])
def test_planned_traffic_that_is_not_there_is_missing(plan: sw.Plan, role: str) -> None:
    rows = comparison.compare_collectives(plan, [c for c in as_planned(plan) if c.axes != (role,)])
    assert comparison.missing_roles(rows) == [role]


def test_an_all_reduce_in_the_place_of_a_reduce_scatter_is_said_and_not_missing(
    plan: sw.Plan,
) -> None:
    swapped = [
        made("all_reduce", c.axes, 2 * c.received_bytes)
        if (c.kind, c.axes) == ("reduce_scatter", ("tensor",))
        else c
        for c in as_planned(plan)
    ]
    rows = comparison.compare_collectives(plan, swapped)
    assert comparison.missing_roles(rows) == []
    told = " ".join(d.text for d in comparison.collective_differences(rows))
    assert "more all-reduce" in told
    assert "tensor" in told


def test_traffic_that_no_plan_has_is_said(plan: sw.Plan) -> None:
    rows = comparison.compare_collectives(
        plan, [*as_planned(plan), made("all_to_all", ("tensor",), 1e6)]
    )
    assert any(
        "all-to-all that the plan does not have" in d.text
        for d in comparison.collective_differences(rows)
    )


def test_sums_of_the_loss_are_nobodys(plan: sw.Plan) -> None:
    found = made("all_reduce", ("tensor",), 1e6, "jit(step)/loss/psum")
    row = next(r for r in comparison.compare_collectives(plan, [found]) if r.compiled_n)
    assert row.role == "other"


@pytest.mark.parametrize("kind", ["all_gather", "all_reduce", "all_to_all"])
def test_what_runs_over_no_axis_of_the_mesh_is_nobodys(plan: sw.Plan, kind: str) -> None:
    """Weights are gathered over `fsdp` alone: a gather over no axis is no part of that."""
    rows = comparison.compare_collectives(plan, [made(kind, (), 1e6)])
    assert [row.role for row in rows if row.compiled_n] == ["other"]


def test_attention_that_computes_more_is_said_with_its_flops() -> None:
    assert comparison.attention_difference(1e12, 1.01e12) is None
    told = comparison.attention_difference(1e12, 1.5e12)
    assert told is not None
    assert "1.50 TFLOP" in told.text


def test_weights_gathered_role_by_role_are_one_gather() -> None:
    job = sw.Train(batch=2, seq=4096)
    ring = {"fsdp": 2, "context": 2, "context_kind": "ring"}
    plan = sw.plan(MODEL, sw.hardware("v5e:2x2"), job, ring)
    gathers = [p for p in planned_collectives(plan) if (p.role, p.kind) == ("fsdp", "all_gather")]
    whole = sum(p.received_bytes for p in gathers)
    halves = [made("all_gather", (role,), whole / 2) for role in ("context", "fsdp")]
    (row,) = [r for r in comparison.compare_collectives(plan, halves) if r.compiled_n]
    assert (row.role, row.kind) == ("fsdp", "all_gather")
    assert row.compiled_bytes == pytest.approx(row.planned_bytes, rel=1e-6)


@pytest.mark.parametrize(
    ("operation", "role"),
    [("mlp.up", "fsdp"), ("mlp.up+attn.k", "fsdp"), ("attn.scores", "context"), ("", "context")],
)
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_weights_over_context_are_told_from_keys(kind: str, operation: str, role: str) -> None:
    gather = {"fsdp": 2, "context": 2, "context_kind": "gather"}
    plan = sw.plan(MODEL, sw.hardware("v5e:2x2"), sw.Train(batch=2, seq=4096), gather)
    collective = made(kind, ("context",), 1e6, f"jit(local)/jvp()/while/body/{operation}/x")
    if "+" in operation:
        parts = ":".join(f"{name}/x" for name in operation.split("+"))
        collective = made(kind, ("context",), 1e6, f"jit(local)/jvp()/while/body/({parts})")
    (row,) = [r for r in comparison.compare_collectives(plan, [collective]) if r.compiled_n]
    assert row.role == role


def test_keys_that_are_gathered_in_the_place_of_a_ring_are_no_weights() -> None:
    ring = {"fsdp": 2, "context": 2, "context_kind": "ring"}
    plan = sw.plan(MODEL, sw.hardware("v5e:2x2"), sw.Train(batch=2, seq=4096), ring)
    keys = made("all_gather", ("context",), 1e6, "jit(local)/jvp()/while/body/attn.core/all_gather")
    (row,) = [r for r in comparison.compare_collectives(plan, [keys]) if r.compiled_n]
    assert (row.role, row.planned_bytes) == ("context", 0)
