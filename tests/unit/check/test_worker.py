"""A program through the compiler in a process of its own: what comes back, what it says."""

from __future__ import annotations

import pytest

from shardwise.check.compile import compile_job
from shardwise.check.job import Job
from shardwise.check.result import Compiled
from shardwise.check.targets import target_of
from shardwise.hardware import parse_system

PROGRAMS = "tests.unit.check.programs"


@pytest.mark.parametrize("name", ["cpu:4", "v5e:2x2"])
def test_a_matmul_compiles(name: str) -> None:
    stages: list[str] = []
    job = Job(builder=f"{PROGRAMS}:matmul", target=target_of(parse_system(name)))
    compiled = compile_job(job, on_stage=lambda stage, _: stages.append(stage))
    assert isinstance(compiled, Compiled)
    assert compiled.mesh == {"data": 4}
    # bf16 In[256 / 4, 256] and W[256, 256].
    assert compiled.memory.arguments == 2 * (64 * 256 + 256 * 256)
    assert "all-reduce" in compiled.hlo
    assert "mlp.up" in compiled.hlo
    assert stages[0] == "starting"
    assert len(compiled.places) == 4
