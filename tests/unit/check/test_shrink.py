"""A plan on a smaller machine, and by two depths of its model."""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.check.options import CompileOptions
from shardwise.check.shrink import check_extrapolated, on_smaller_system, with_depth
from shardwise.check.training import check_plan
from shardwise.errors import BadInput
from shardwise.plan.training.rebuild import rebuild
from tests.unit.check.compilers import needs


def dense(n_layers: int) -> sw.ModelConfig:
    return sw.ModelConfig.dense(
        name="tiny",
        n_layers=n_layers,
        d_model=256,
        d_ff=512,
        n_heads=4,
        n_kv_heads=2,
        d_head=64,
        vocab=512,
    )


def planned(n_layers: int, hardware: str, **fixed: int | str) -> sw.Plan:
    return sw.plan(dense(n_layers), sw.hardware(hardware), sw.Train(batch=8, seq=32), fixed)


@needs("cpu")
@pytest.mark.oracle
def test_two_depths_give_what_the_whole_model_computes_and_sends() -> None:
    plan = planned(5, "mi300x:4", tensor=2, fsdp=2)  # the CPU's compiler stands in
    whole = check_plan(plan, CompileOptions(cache=False))
    found = check_extrapolated(plan, (2, 3), CompileOptions(cache=False))
    assert found.compiled is not None
    assert whole.compiled is not None
    assert found.compiled.flops == whole.compiled.flops
    rows = [[(r.role, r.kind, r.compiled_n, r.compiled_bytes) for r in v.collectives]
            for v in (found, whole)]  # fmt: skip
    assert sorted(rows[0]) == sorted(rows[1])
    assert "Compiled with 2 and 3 layers" in found.note


@needs("tpu")
@pytest.mark.oracle
def test_on_a_tpu_memory_is_near_too() -> None:
    plan = planned(6, "v5e:2x2", fsdp=4)
    whole, found = (
        check_plan(plan, CompileOptions()),
        check_extrapolated(plan, (2, 3), CompileOptions()),
    )
    assert found.compiled is not None
    assert whole.compiled is not None
    assert found.compiled.flops == whole.compiled.flops
    assert found.compiled.peak_bytes == pytest.approx(whole.compiled.peak_bytes, rel=0.1)
    assert found.fits


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ((2, 1), "are not two depths"),
        ((1,), "are not two depths"),
        ((1, 9), "check the whole model"),
    ],
)
def test_depths_that_make_no_line(layers: tuple[int, ...], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        check_extrapolated(planned(4, "v5e:2x2", fsdp=4), layers, CompileOptions())


def test_each_kind_of_layer_keeps_its_place_in_a_shallow_model() -> None:
    model = sw.model("gemma2-2b")
    plan = sw.plan(model, sw.hardware("v5e:4x4"), sw.Train(batch=16, seq=1024))
    shallow = rebuild(with_depth(plan, model, [1, 1])).model
    assert [group.count for group in shallow.groups] == [1, 1]
    assert shallow.n_layers == 2
    assert rebuild(with_depth(plan, model, [2, 1])).model.n_layers == 3


def test_a_smaller_machine_has_less_data_and_the_same_work_of_a_chip() -> None:
    plan = planned(2, "v5e:4x4", data=4, tensor=2, fsdp=2)
    found, note = on_smaller_system(plan, "v5e:2x2")
    assert found.strategy.mesh == {**plan.strategy.mesh, "data": 1}
    assert found.workload.batch == plan.workload.batch // 4
    assert found.strategy.micro_batch == plan.strategy.micro_batch
    assert "with data 1; the plan has data 4 on v5e:4x4" in note


@pytest.mark.parametrize(
    ("on", "words"), [("v5e:1x1", "4, 8 chips"), ("v5p:2x2x1", "has another chip")]
)
def test_a_machine_that_cuts_other_axes_is_refused(on: str, words: str) -> None:
    plan = planned(2, "v5e:4x4", data=4, tensor=2, fsdp=2)
    with pytest.raises(BadInput, match=words):
        on_smaller_system(plan, on)
