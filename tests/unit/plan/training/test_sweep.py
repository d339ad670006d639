"""A sweep is the plan of every combination, and says why where there is none."""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.errors import BadInput, UnknownName

MODEL, JOB = sw.model("llama3-8b"), sw.Train(batch=16, seq=2048)
SLICE, NODE = sw.hardware("v5e:4x4"), sw.hardware("h100:16")


def test_each_row_is_a_plan() -> None:
    found = sw.sweep(MODEL, SLICE, JOB, tensor=[1, 2], seq=[1024, 2048], zero=3)
    assert [row.swept for row in found.rows] == [
        {"tensor": t, "seq": s} for t in (1, 2) for s in (1024, 2048)
    ]
    for row in found.rows:
        job = sw.Train(batch=16, seq=row.swept["seq"])
        plan = sw.plan(MODEL, SLICE, job, {"tensor": row.swept["tensor"], "zero": 3})
        assert row.step_s == plan.step
        assert row.mesh == plan.strategy.mesh
        assert row.memory_bytes == plan.memory.total
        assert row.mfu == plan.estimate.mfu
        assert row.problem is None
    assert found.options == {
        "hardware": ("v5e:4x4",), "tensor": (1, 2), "seq": (1024, 2048), "zero": (3,),
    }  # fmt: skip


def test_rows_without_a_plan_say_why() -> None:
    found = sw.sweep(MODEL, SLICE, JOB, tensor=[3, 2], remat="full")
    lost, there = found.rows
    assert lost.step_s is None
    assert lost.problem is not None
    assert lost.problem.startswith("tensor 3 ")
    assert there.remat == "full"
    assert there.problem is None


def test_machines_are_options() -> None:
    found = sw.sweep(MODEL, [SLICE, NODE], JOB, peak=True)
    assert [row.swept["hardware"] for row in found.rows] == ["v5e:4x4", "h100:16"]
    assert found.rows[1].step_s == sw.plan(MODEL, NODE, JOB, peak=True).step


def test_a_dtype_is_of_the_arithmetic() -> None:
    rows = sw.sweep(MODEL, NODE, JOB, dtype=["bf16", "fp8"]).rows
    fp8 = sw.plan(MODEL, NODE, sw.Train(batch=16, seq=2048, compute="fp8"))
    assert rows[1].step_s == fp8.step
    assert rows[0].step_s is not None
    assert rows[0].step_s.expected > fp8.step.expected


def test_flat_rows() -> None:
    found = sw.sweep(MODEL, SLICE, JOB, tensor=[2, 3])
    first, second = found.to_dicts()
    assert set(first) == set(second)
    assert first["tensor"] == first["mesh_tensor"] == 2
    assert first["step_lower_s"] <= first["step_s"] <= first["step_upper_s"]
    assert second["step_s"] is second["mesh_tensor"] is None
    assert second["problem"].startswith("tensor 3 ")


def test_progress_counts() -> None:
    seen: list[tuple[int, int]] = []
    sw.sweep(MODEL, SLICE, JOB, tensor=[2, 3], progress=lambda i, n: seen.append((i, n)))
    assert seen == [(0, 2), (1, 2)]


def test_bad_sweeps() -> None:
    with pytest.raises(UnknownName, match=r'unknown option of a sweep "tensors"\. Close: "tensor"'):
        sw.sweep(MODEL, SLICE, JOB, tensors=[1])
    with pytest.raises(BadInput, match="tensor has no values"):
        sw.sweep(MODEL, SLICE, JOB, tensor=[])
    with pytest.raises(BadInput, match="hardware has no values"):
        sw.sweep(MODEL, [], JOB)
    with pytest.raises(BadInput, match=r"40 batch x 30 seq on 1 machines is 1,200 plans; at most"):
        sw.sweep(MODEL, SLICE, JOB, batch=range(1, 41), seq=range(1, 31))
