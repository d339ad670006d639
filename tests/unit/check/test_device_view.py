"""Chips of two devices: the plan's side worked out over devices, and the real compiler's."""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.check.device_view import plan_over_devices
from shardwise.plan.collectives import planned_collectives
from tests.unit.check.compilers import needs
from tests.unit.check.test_comparison import MODEL

NARROW = sw.ModelConfig.dense(
    name="narrow",
    n_layers=2,
    d_model=256,
    d_ff=512,
    n_heads=2,
    n_kv_heads=2,
    d_head=128,
    vocab=1024,
)
JOB = sw.Train(batch=16, seq=64)


def flops(plan: sw.Plan) -> float:
    return sum(op.flops for op in plan.operations)


def test_where_a_chip_is_one_device_nothing_changes() -> None:
    plan = sw.plan(MODEL, sw.hardware("v5e:2x2"), JOB, {"fsdp": 4})
    assert plan_over_devices(plan) == (plan, "")


def test_two_devices_compute_what_a_chip_does_and_gather_weights_twice() -> None:
    plan = sw.plan(MODEL, sw.hardware("7x:2x2x1"), JOB, {"fsdp": 4})
    found, told = plan_over_devices(plan)
    assert "fsdp 4 of the plan is fsdp 8 of the program" in told
    assert flops(found) == pytest.approx(flops(plan))
    before, after = ({p.kind: p for p in planned_collectives(p)} for p in (plan, found))
    for kind in ("all_gather", "reduce_scatter"):
        assert after[kind].n == before[kind].n
        # 7/8 of every weight into each of two devices, 3/4 into one chip.
        ratio = after[kind].received_bytes / before[kind].received_bytes
        assert ratio == pytest.approx(2 * (7 / 8) / (3 / 4), rel=1e-3)
    assert found.memory.weights == pytest.approx(plan.memory.weights, rel=1e-3)
    assert found.memory.activations == pytest.approx(plan.memory.activations, rel=1e-3)
    assert found.memory.capacity == plan.memory.capacity
    assert found.step == plan.step


@needs("tpu")
@pytest.mark.oracle
@pytest.mark.parametrize(
    ("hardware", "fixed"),
    [("7x:2x2x1", {"fsdp": 4}), ("v3:2x2", {"data": 2, "tensor": 2})],
)
def test_the_compiler_has_what_is_planned_over_devices(
    hardware: str, fixed: dict[str, int | str]
) -> None:
    plan = sw.plan(NARROW, sw.hardware(hardware), sw.Train(batch=8, seq=128), fixed)
    found = sw.check(plan, cache=False)
    assert (found.compiler, found.fits, found.sends_as_planned) == ("tpu", True, True)
    assert found.compiled is not None
    assert found.compiled.capacity_bytes == sw.hardware(hardware).chip.hbm_usable_bytes
    assert found.note.startswith("A chip is 2 devices")
    # Without a kernel (v3) the whole square of scores is computed, with one whole blocks of it.
    assert found.planned.flops <= found.compiled.flops < 1.1 * found.planned.flops
    for row in found.collectives:
        if row.planned_bytes > 1e5:
            # Of two layers the compiler gathers some weights once for both passes.
            least = 0.9 if row.kind == "all_gather" else 0.98
            assert least * row.planned_bytes < row.compiled_bytes < 1.02 * row.planned_bytes, row
