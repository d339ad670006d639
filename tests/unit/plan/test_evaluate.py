"""Plans of a split that is given: a mesh under its best form, or a layout as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

import shardwise as sw
from shardwise.errors import BadInput, NotDivisible
from shardwise.strategy.layout import Layout
from shardwise.vocabulary import LAYER, REMAT_POLICIES

LLAMA, SLICE = sw.model("llama3-70b"), sw.hardware("v5p:4x4x8")


def test_a_layout_that_is_given() -> None:
    """A layout is taken as it is; a mesh under its best form, which is no slower."""
    model, system, job = sw.model("llama3-8b"), sw.hardware("h100:16"), sw.Train(batch=64, seq=4096)
    layout = Layout(mesh=sw.Mesh(data=4, pipe=4), zero=1, micro_batch=2, n_microbatches=8,
                    schedule="1f1b", recomputed=(LAYER,))  # fmt: skip
    given = sw.evaluate(model, system, job, layout)
    strategy = given.strategy
    assert (strategy.schedule, strategy.remat, strategy.zero) == ("1f1b", "full", 1)
    assert (strategy.micro_batch, strategy.n_microbatches) == (2, 8)
    free = sw.evaluate(model, system, job, layout.mesh)
    assert free.strategy.mesh == strategy.mesh
    assert free.step.expected <= given.step.expected
    with pytest.raises(NotDivisible, match=r"the layout computes 32 sequences a step .* has 64"):
        sw.evaluate(model, system, job, replace(layout, micro_batch=1))


@pytest.mark.parametrize(
    "layout",
    [
        # 6 microbatches are no multiple of 4 stages.
        Layout(mesh=sw.Mesh(data=4, pipe=4), n_microbatches=6, schedule="interleaved", virtual=2),
        # 12 heads over 16 chips.
        Layout(mesh=sw.Mesh(tensor=2, context=8), n_microbatches=24, context_kind="ulysses",
               zero=3, sequence_parallel=True),
        # 3 chunks on each of 16 stages for 32 layers: 16 places are empty.
        Layout(mesh=sw.Mesh(pipe=16), n_microbatches=16, schedule="interleaved", virtual=3),
    ],
    ids=["interleaved", "ulysses", "empty places"],
)  # fmt: skip
def test_a_layout_that_cannot_run_is_refused(layout: Layout) -> None:
    model, system = sw.model("llama2-7b,n_heads=12,n_kv_heads=12"), sw.hardware("h100:16")
    job = sw.Train(batch=layout.global_batch, seq=2048)
    with pytest.raises(BadInput):
        sw.evaluate(model, system, job, layout)


def test_evaluate_gives_what_does_not_fit_too() -> None:
    plan = sw.evaluate(
        LLAMA, sw.hardware("v5e:4x4"), sw.Train(batch=16, seq=2048), sw.Mesh(fsdp=16)
    )
    assert plan.memory.total > plan.memory.capacity
    (memory,) = (r for r in plan.why if r.constraint == "memory")
    assert memory.margin < 1


@pytest.mark.parametrize(
    "layout",
    [
        Layout(mesh=sw.Mesh(tensor=8, pipe=16, data=128), zero=1, n_microbatches=16,
               schedule="interleaved", virtual=virtual, sequence_parallel=True,
               recomputed=REMAT_POLICIES["dots"],
               overlap=("grad_reduce", "param_gather", "pipe_p2p"))
        for virtual in (2, 4, 8)
    ],
    ids=lambda layout: f"virtual {layout.virtual}",
)  # fmt: skip
def test_the_published_layout_of_llama_3_405b_is_legal(layout: Layout) -> None:
    """Tensor 8, pipe 16, data 128 on 16,384 H100 with 16M tokens. arXiv 2407.21783, table 4."""
    model, system = sw.model("llama3.1-405b"), sw.hardware("h100:16384")
    job = sw.Train(batch=2048, seq=8192, gradients="fp32", master="fp32")
    plan = sw.evaluate(model, system, job, layout)
    assert plan.strategy.schedule == "interleaved"
    assert plan.memory.total + plan.memory.margin <= plan.memory.capacity
    # Table 4 states 430 TFLOP/s a chip for this layout, of a peak of 989.
    assert plan.estimate.mfu == pytest.approx(430 / 989.4, rel=2 * plan.estimate.rates.spread)
    # (p - 1) / (v m) of the work of the stages, which is most of the step.
    bubble = 15 / (layout.virtual * 16)
    assert 0.8 * bubble / (1 + bubble) < plan.estimate.bubble_fraction < bubble / (1 + bubble)


def test_the_published_mesh_of_llama_3_405b_is_legal() -> None:
    model, system = sw.model("llama3.1-405b"), sw.hardware("h100:16384")
    job = sw.Train(batch=2048, seq=8192)
    mesh = sw.Mesh(tensor=8, pipe=16, data=128)
    plan = sw.evaluate(model, system, job, mesh)
    assert plan.strategy.mesh == mesh.sizes
    assert plan.memory.total + plan.memory.margin <= plan.memory.capacity
    assert plan.strategy.placement["tensor"] == "8 in the node"


def test_all_reasons_against_a_mesh_are_told() -> None:
    with pytest.raises(NotDivisible) as error:
        sw.evaluate(LLAMA, SLICE, sw.Train(batch=128, seq=4096),
                    sw.Mesh(tensor=12, fsdp=100, pipe=32))  # fmt: skip
    for said in (
        "38,400 chips",
        "tensor 12 does not",
        "pipe 32:",
        "128 sequences",
        "d_model 8,192",
    ):
        assert sum(said in problem for problem in error.value.problems) == 1, said
    assert len(error.value.problems) == 5
