"""What is proposed in the place of a plan that does not hold, with a compiler that is told what
to say."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import shardwise as sw
from shardwise.check import fix as fixing
from shardwise.check.comparison import planned_numbers
from shardwise.check.device_view import plan_over_devices
from shardwise.check.fix import describe_change, fix, plan_command
from shardwise.check.options import CompileOptions
from shardwise.check.verdict import CompiledNumbers, Verdict
from shardwise.cli import main
from shardwise.errors import BadInput, NoAnswer
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
            hbm_bytes=0.0,
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
        required_bytes=peak,
    )


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], list[sw.Plan]]:
    """A compiler that needs so many times what is planned; the plans that it was asked about."""

    def install(times: float) -> list[sw.Plan]:
        asked: list[sw.Plan] = []

        def check_plan(plan: sw.Plan, how: CompileOptions) -> Verdict:
            assert not how.explain  # a proposal is compiled once
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
    assert found.proposals[0].fits
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
    assert asked[0].strategy.loss_chunks == 4


def test_what_the_compiler_needs_beyond_the_plan_is_learned(
    oversized: sw.Plan, compiled: Callable[[float], list[sw.Plan]]
) -> None:
    asked = compiled(1.9)
    found = fix(oversized, answered(oversized, 1.0, 15.75 * GIB), CompileOptions())
    totals = [plan.memory.total for plan in asked]
    assert len(asked) == 2
    assert totals[1] * 1.9 <= 15.75 * GIB < totals[0] * 1.9
    assert [one.fits for one in found.proposals] == [False, True]


def test_no_more_than_three_are_tried(
    oversized: sw.Plan, compiled: Callable[[float], list[sw.Plan]]
) -> None:
    asked = compiled(1000.0)
    found = fix(oversized, answered(oversized, 60 * GIB, 15.75 * GIB), CompileOptions())
    assert len(asked) <= fixing.MAX_PROPOSALS
    assert found.plan is None


def test_a_compiler_without_an_answer_leaves_the_proposals_so_far(
    oversized: sw.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Verdict | Exception] = [
        BadInput("not yet"),
        answered(oversized, 60 * GIB, 15.75 * GIB),
        NoAnswer("compiling takes too long"),
    ]

    def check_plan(plan: sw.Plan, how: CompileOptions) -> Verdict:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(fixing, "check_plan", check_plan)
    found = fix(oversized, answered(oversized, 16 * GIB, 15.75 * GIB), CompileOptions())
    assert [one.verdict for one in found.proposals] == ["refused", "does not fit", "no answer"]
    assert [one.note for one in found.proposals] == ["not yet", "", "compiling takes too long"]
    assert found.plan is None


def test_proposals_for_chips_of_two_devices_fit_over_both_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Copies of weights are held by each of the two devices, so that a chip holds them twice."""
    asked: list[sw.Plan] = []

    def check_plan(plan: sw.Plan, how: CompileOptions) -> Verdict:
        asked.append(plan)
        return answered(plan, plan_over_devices(plan)[0].memory.total, limit)

    monkeypatch.setattr(fixing, "check_plan", check_plan)
    system = sw.hardware("7x:2x2x1")
    limit = system.chip.need("hbm_bytes")
    job = sw.Train(batch=64, seq=4096, remat="none")
    plan = sw.evaluate(sw.model("llama3-8b"), system, job, Mesh(data=4), {"zero": 0})
    seen = plan_over_devices(plan)[0].memory.total
    assert seen > limit
    verdict = replace(
        answered(plan, seen, limit), planned=planned_numbers(plan_over_devices(plan)[0])
    )
    found = fix(plan, verdict, CompileOptions())
    assert [one.fits for one in found.proposals] == [True]
    assert found.proposals[0].planned_bytes == plan_over_devices(asked[0])[0].memory.total <= limit


MOE = "mixtral-8x7b,n_layers=4"
JOB = {"batch": 256, "seq": 8192}


@pytest.mark.parametrize(
    ("model", "hardware", "job", "mesh", "form"),
    [
        (
            "llama3-8b",
            "v5e:16x16",
            {"remat": "none"},
            {"tensor": 4, "fsdp": 64},
            {"micro_batch": 4},
        ),
        ("llama3-8b", "v5e:16x16", {}, {"fsdp": 64, "context": 4}, {"context_kind": "ulysses"}),
        ("llama3-8b", "v5e:16x16", {}, {"fsdp": 64, "context": 4}, {"context_kind": "ring"}),
        (MOE, "h100:64", {}, {"fsdp": 8, "expert": 4, "tensor": 2}, {"expert_tensor": 1}),
        ("llama3-8b", "v5e:16x16", {"offload": ("optimizer",)}, {"fsdp": 256}, {}),
        ("llama3-8b", "v5e:16x16", {"overlap": ("tp_comm",)}, {"tensor": 4, "fsdp": 64}, {}),
        ("llama3-8b", "h100:64", {"compute": "fp8"}, {"fsdp": 64}, {"loss_chunks": 4}),
        ("llama3-8b", "v5e:16x16", {"reduce": "int8", "optimizer": "sgd"}, {"data": 256}, {}),
        ("llama3-8b", "v5e:16x16", {"tokens": 15e12}, {"pipe": 4, "fsdp": 64}, {"virtual": 2}),
        (
            "llama3-8b",
            "v5e:16x16",
            {"gradients": "bf16", "moments": "bf16", "master": None},
            {"fsdp": 256},
            {},
        ),
    ],
)
def test_the_command_plans_the_same_again(
    model: str,
    hardware: str,
    job: dict[str, Any],
    mesh: dict[str, int],
    form: dict[str, int | str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "pipe" in mesh:
        form = {**form, "schedule": "interleaved"}
    plan = sw.evaluate(
        sw.model(model), sw.hardware(hardware), sw.Train(**{**JOB, **job}), Mesh(**mesh), form
    )
    path = tmp_path / "again.json"
    main([*shlex.split(plan_command(plan))[1:], "-o", str(path)])
    capsys.readouterr()
    again = sw.load(str(path))
    assert isinstance(again, sw.Plan)
    assert rebuild(again).layout == rebuild(plan).layout
    assert replace(again.job, remat=plan.job.remat) == plan.job
    assert again.step == plan.step


def test_a_plan_that_no_options_make_has_no_command() -> None:
    job = sw.Train(batch=256, seq=8192, gradients="bf16", master=None)
    plan = sw.plan(sw.model("llama3-8b"), sw.hardware("v5e:16x16"), job, {"fsdp": 256})
    assert plan_command(plan) == ""


def test_a_change_in_words(oversized: sw.Plan) -> None:
    old = rebuild(oversized).layout
    new = replace(old, recomputed=(LAYER,), n_microbatches=4, micro_batch=1)
    assert describe_change(old, new) == "remat full for none, n_microbatches 4 for 1"
    assert describe_change(old, replace(old, loss_chunks=4)) == "loss_chunks 4 for 1"
