"""What is proposed in the place of a plan that does not hold, with a compiler that is told what
to say."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace

import pytest

import shardwise as sw
from shardwise.check import fix as fixing
from shardwise.check.comparison import planned_numbers
from shardwise.check.fix import describe_change, fix, plan_command
from shardwise.check.options import CompileOptions
from shardwise.check.verdict import CompiledNumbers, Verdict
from shardwise.cli import main
from shardwise.plan.training.rebuild import rebuild
from shardwise.strategy.mesh import Mesh
from shardwise.vocabulary import LAYER

GIB = 2.0**30


def answered(plan: sw.Plan, peak: float, limit: float) -> Verdict:
    """What a check says where a program needs `peak` bytes of `limit`."""
    return Verdict(
        name=plan.model.name,
        hardware=plan.hardware.name,
        compiler="tpu",
        fits=peak <= limit,
        verdict="proved" if peak <= limit else "does not fit",
        note="",
        planned=planned_numbers(plan),
        compiled=CompiledNumbers(
            peak_bytes=round(peak),
            arguments_bytes=0,
            temporaries_bytes=0,
            host_bytes=0,
            capacity_bytes=limit,
            flops=0.0,
            step_s=None,
            exposed_s={},
            by_category={},
        ),
        collectives=(),
        differences=(),
        largest=(),
        xla_flags=(),
        compile_s=0.0,
        versions={},
    )


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], list[sw.Plan]]:
    """A compiler that needs so many times what is planned; the plans that it was asked about."""

    def install(times: float) -> list[sw.Plan]:
        asked: list[sw.Plan] = []

        def check_plan(plan: sw.Plan, how: CompileOptions) -> Verdict:
            asked.append(plan)
            return answered(plan, times * plan.memory.total, 15.75 * GIB)

        monkeypatch.setattr(fixing, "check_plan", check_plan)
        return asked

    return install


@pytest.fixture(scope="module")
def oversized() -> sw.Plan:
    job = sw.Train(batch=256, seq=8192, remat="none")
    model, pod = sw.model("llama3-8b"), sw.hardware("v5e:16x16")
    return sw.evaluate(model, pod, job, Mesh(tensor=4, fsdp=64), {"micro_batch": 4})


def test_a_proposal_keeps_the_mesh_and_passes(
    oversized: sw.Plan, compiled: Callable[[float], list[sw.Plan]]
) -> None:
    asked = compiled(1.0)
    assert oversized.memory.total > 15.75 * GIB
    found = fix(oversized, answered(oversized, 60 * GIB, 15.75 * GIB), CompileOptions())
    assert len(asked) == len(found.proposals) == 1
    assert found.proposals[0].passed
    assert found.plan == asked[0]
    assert asked[0].strategy.mesh == oversized.strategy.mesh
    assert asked[0].memory.total < oversized.memory.total
    assert "for" in found.proposals[0].change


def test_chunks_of_the_loss_are_proposed_where_logits_are_what_does_not_fit(
    compiled: Callable[[float], list[sw.Plan]],
) -> None:
    asked = compiled(1.0)
    job = sw.Train(batch=4, seq=16384, remat="full", gradients="bf16", master=None)
    given = {"loss_chunks": 1}
    plan = sw.evaluate(sw.model("gemma2-2b"), sw.hardware("v5e:2x2"), job, Mesh(fsdp=4), given)
    found = fix(plan, answered(plan, plan.memory.total, 15.75 * GIB), CompileOptions())
    assert found.plan == asked[0]
    assert found.proposals[0].change == "loss_chunks 4 for 1"
    assert "--mesh fsdp=4,zero=3,micro_batch=1,loss_chunks=4 " in found.proposals[0].command


def test_what_the_compiler_needs_beyond_the_plan_is_learned(
    oversized: sw.Plan, compiled: Callable[[float], list[sw.Plan]]
) -> None:
    asked = compiled(1.9)
    found = fix(oversized, answered(oversized, 1.0, 15.75 * GIB), CompileOptions())
    totals = [plan.memory.total for plan in asked]
    assert len(asked) == 2
    assert totals[1] * 1.9 <= 15.75 * GIB < totals[0] * 1.9
    assert [one.passed for one in found.proposals] == [False, True]


def test_no_more_than_three_are_tried(
    oversized: sw.Plan, compiled: Callable[[float], list[sw.Plan]]
) -> None:
    asked = compiled(1000.0)
    found = fix(oversized, answered(oversized, 60 * GIB, 15.75 * GIB), CompileOptions())
    assert len(asked) <= fixing.MAX_PROPOSALS
    assert found.plan is None


def test_the_command_plans_the_same_again(
    oversized: sw.Plan, tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"{tmp_path}/again.json"
    main([*shlex.split(plan_command(oversized))[1:], "-o", path])
    capsys.readouterr()
    again = sw.load(path)
    assert isinstance(again, sw.Plan)
    assert rebuild(again).layout == rebuild(oversized).layout


def test_a_change_in_words(oversized: sw.Plan) -> None:
    old = rebuild(oversized).layout
    new = replace(old, recomputed=(LAYER,), n_microbatches=4, micro_batch=1)
    assert describe_change(old, new) == "remat full for none, n_microbatches 4 for 1"
    assert describe_change(old, replace(old, loss_chunks=4)) == "loss_chunks 4 for 1"
