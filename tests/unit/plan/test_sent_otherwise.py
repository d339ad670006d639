"""What a plan sends where sums of gradients travel in int8, or tokens while products run."""

from __future__ import annotations

import dataclasses

import pytest

import shardwise as sw
from shardwise.plan.collectives import planned_collectives
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh

JOB = sw.Train(batch=16, seq=2048)
MODEL = sw.model("llama3-8b,n_layers=4")
INT8 = 1 + 4 / 256  # bytes of a gradient and of its part of a scale


def plans(layout: Layout) -> tuple[sw.Plan, sw.Plan]:
    """With exact sums, and with sums in int8."""
    on = sw.hardware(f"h100:{layout.mesh.n_chips}")
    exact = sw.evaluate(MODEL, on, JOB, layout)
    return exact, sw.evaluate(MODEL, on, dataclasses.replace(JOB, reduce="int8"), layout)


def sent(plan: sw.Plan) -> dict[tuple[str, str], tuple[float, float]]:
    """(V, bytes that a chip takes in) by role and kind."""
    found = planned_collectives(plan)
    return {(one.role, one.kind): (one.joined_bytes, one.received_bytes) for one in found}


def vectors(plan: sw.Plan) -> float:
    """V of the sums of norms."""
    return sum(op.joined_bytes for op in plan.operations if op.name == "gradients.vectors")


def test_sums_over_copies_of_shards_take_a_byte_and_a_scale() -> None:
    exact, rounded = plans(Layout(mesh=Mesh(data=4, fsdp=4), zero=3, micro_batch=1))
    before, after = sent(exact), sent(rounded)
    norms = vectors(exact)
    each = (before["data", "all_reduce"][0] - norms) / 4  # gradients of a chip, from fp32
    assert after["data", "all_to_all"] == pytest.approx((4 * each * INT8, each * INT8 * 3 / 4))
    assert after["data", "all_gather"] == pytest.approx((each * INT8, each * INT8 * 3 / 4))
    assert after["data", "all_reduce"][0] == norms == vectors(rounded)
    # Sums over what shards weights are as they were: a chip would have to remember whole weights.
    assert after["fsdp", "reduce_scatter"] == before["fsdp", "reduce_scatter"]
    assert rounded.estimate.comm_s["data"] < exact.estimate.comm_s["data"]


def test_dealt_out_updates_need_no_gather_of_sums() -> None:
    exact, rounded = plans(Layout(mesh=Mesh(data=16), zero=1, micro_batch=1))
    before, after = sent(exact), sent(rounded)
    each = before["data", "reduce_scatter"][0] / 4
    assert after["data", "all_to_all"] == pytest.approx((16 * each * INT8, each * INT8 * 15 / 16))
    assert after["data", "all_gather"] == before["data", "all_gather"]
    assert ("data", "reduce_scatter") not in after


@pytest.mark.parametrize(
    ("layout", "shards"),
    [
        (Layout(mesh=Mesh(data=4, fsdp=4), zero=3, micro_batch=1), 4),
        (Layout(mesh=Mesh(data=16), zero=1, micro_batch=1), 1),
    ],
)
def test_what_is_lost_is_held_in_bf16_where_it_was_lost(layout: Layout, shards: int) -> None:
    exact, rounded = plans(layout)
    lost = rounded.memory.optimizer - exact.memory.optimizer
    assert lost == pytest.approx(2 * exact.model.n_parameters / shards, rel=1e-3)


def test_one_copy_loses_nothing() -> None:
    exact, rounded = plans(Layout(mesh=Mesh(fsdp=8), zero=3, micro_batch=2))
    assert rounded.memory.optimizer == exact.memory.optimizer
    assert rounded.step.expected == exact.step.expected


@pytest.mark.parametrize(("fixed", "blocks"), [({}, 2), ({"model": "mixtral-8x7b"}, 1)])
def test_tokens_that_travel_while_products_run(fixed: dict[str, str], blocks: int) -> None:
    """Of dense blocks; those of experts are gathered as before."""
    model = sw.model(f"{fixed.get('model', 'llama3-8b')},n_layers=4")
    layout = Layout(mesh=Mesh(tensor=4), sequence_parallel=True, micro_batch=16)
    passing = dataclasses.replace(layout, overlap=("tp_comm",))
    on = sw.hardware("v5p:2x2x1")
    before, after = (sent(sw.evaluate(model, on, JOB, one)) for one in (layout, passing))
    residual = 16 * 2048 * model.d_model * 2
    # In and out of a block, forward and backward: three of four pieces come from others.
    assert after["tensor", "permute"] == pytest.approx((4 * blocks * 4 * residual * 3 / 4,) * 2)
    for kind in ("all_gather", "reduce_scatter"):
        moved = before["tensor", kind][0] - after["tensor", kind][0]
        assert moved == pytest.approx(2 * blocks * 4 * residual)
