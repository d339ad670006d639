"""Every option that is set is one that the compiler takes, and has its reason."""

from __future__ import annotations

import pytest

from shardwise.check.compile import compile_job
from shardwise.check.flags import FLAGS, REASONS, flags_for
from shardwise.check.job import Job
from shardwise.check.result import Compiled
from shardwise.check.targets import target_of
from shardwise.hardware import chip_names, parse_system
from tests.unit.check.compilers import needs


def test_every_option_has_a_reason_a_source_and_chips_that_exist() -> None:
    for flags in FLAGS.values():
        assert len({flag.name for flag in flags}) == len(flags)
        for flag in flags:
            assert flag.source
            assert flag.reason.endswith(".")
            assert flag.name in REASONS
            assert set(flag.chips) <= set(chip_names())


def test_options_follow_the_machine() -> None:
    assert flags_for("cpu", "cpu") == {}
    assert "xla_tpu_scoped_vmem_limit_kib" in flags_for("tpu", "v6e")
    assert "xla_tpu_scoped_vmem_limit_kib" not in flags_for("tpu", "v5p")
    dcn = set(flags_for("tpu", "v5e", n_slices=2)) - set(flags_for("tpu", "v5e"))
    assert dcn == {
        "xla_tpu_enable_data_parallel_all_reduce_opt",
        "xla_tpu_data_parallel_opt_different_sized_ops",
    }


def accepted(on: str, platform: str, chip: str, n_slices: int = 1) -> None:
    options = flags_for(platform, chip, n_slices)
    job = Job(
        builder="tests.unit.check.programs:matmul",
        target=target_of(parse_system(on)),
        options=options,
    )
    made = compile_job(job)
    assert isinstance(made, Compiled)
    assert made.options == options


@needs("tpu")
@pytest.mark.parametrize(("on", "n_slices"), [("v5e:2x2*2", 2), ("v5p:2x2x1", 1), ("v6e:2x2", 1)])
def test_the_tpu_compiler_takes_them(on: str, n_slices: int) -> None:
    accepted(on, "tpu", on.partition(":")[0], n_slices)


@needs("gpu")
def test_the_gpu_compiler_takes_them() -> None:
    accepted("h100:8", "gpu", "h100")
