"""Every option that a plan has is one that the compiler takes, and has its reason."""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.check.compiling.job import Job
from shardwise.check.compiling.process import compile_job
from shardwise.check.compiling.result import Compiled
from shardwise.check.compiling.targets import target_of
from shardwise.hardware import chip_names, parse_system
from shardwise.plan.xla_flags import FLAGS, flags_for
from tests.unit.check.compilers import needs


def names(hardware: str) -> set[str]:
    return {flag.name for flag in flags_for(parse_system(hardware))}


def test_every_option_has_a_reason_a_source_and_chips_that_exist() -> None:
    for flags in FLAGS.values():
        assert len({flag.name for flag in flags}) == len(flags)
        for flag in flags:
            assert flag.source
            assert flag.reason.endswith(".")
            assert set(flag.chips) <= set(chip_names())


def test_options_follow_the_machine() -> None:
    assert names("cpu:1") == set()
    assert "xla_tpu_scoped_vmem_limit_kib" in names("v6e:2x2")
    assert "xla_tpu_scoped_vmem_limit_kib" not in names("v5p:2x2x1")
    assert names("v5e:4x4*2") - names("v5e:4x4") == {
        "xla_tpu_enable_data_parallel_all_reduce_opt",
        "xla_tpu_data_parallel_opt_different_sized_ops",
    }


def test_a_plan_has_them_with_their_reasons() -> None:
    model = sw.model("llama3-8b,n_layers=2")
    plan = sw.plan(model, sw.hardware("v5e:4x4"), sw.Train(batch=16, seq=2048))
    assert plan.xla_flags == flags_for(parse_system("v5e:4x4")) != ()
    sources = [flag.reason.rpartition("(")[2] for flag in plan.xla_flags]
    assert [source.partition(",")[0] for source in sources] == [
        "AI-Hypercomputer/maxdiffusion",
        "openxla/xla",
    ]


def accepted(on: str) -> None:
    system = parse_system(on)
    options = {flag.name: flag.value for flag in flags_for(system)}
    job = Job(builder="tests.unit.check.programs:matmul", target=target_of(system), options=options)
    made = compile_job(job)
    assert isinstance(made, Compiled)
    assert made.options == options != {}


@needs("tpu")
@pytest.mark.parametrize(
    "on",
    [
        "v5e:2x2*2",
        "v6e:2x2",
        *(pytest.param(on, marks=pytest.mark.oracle) for on in ("v5p:2x2x1", "7x:2x2x1")),
    ],
)
def test_the_tpu_compiler_takes_them(on: str) -> None:
    accepted(on)


@needs("gpu")
def test_the_gpu_compiler_takes_them() -> None:
    accepted("h100:8")
