"""What is set before the steps of a plan are recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardwise as sw
from shardwise.profile import of_plan

JOB = sw.Train(batch=8, seq=128)
MODEL = sw.ModelConfig.dense(n_layers=1, d_model=64, d_ff=128, n_heads=4, n_kv_heads=4, vocab=256)


@pytest.mark.parametrize(
    ("hardware", "before", "flags"),
    [
        ("h100:1", "--a", "--a --xla_gpu_enable_command_buffer="),
        ("h100:1", "--xla_gpu_enable_command_buffer=FUSION", None),
        ("v5e:1x1", "--a", None),
    ],
)
def test_gpus_launch_each_kernel(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    hardware: str,
    before: str,
    flags: str | None,
) -> None:
    seen = []
    monkeypatch.setenv("XLA_FLAGS", before)
    monkeypatch.setattr(of_plan, "train", lambda *_, **__: seen.append(of_plan.os.environ.copy()))
    plan = sw.plan(MODEL, sw.hardware(hardware), JOB)
    of_plan.record_plan(plan, str(tmp_path), on_stage=lambda stage: None)
    assert [environment["XLA_FLAGS"] for environment in seen] == [flags or before]
