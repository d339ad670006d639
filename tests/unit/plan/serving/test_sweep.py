"""Sweeps of serving: each row is the plan of its options; what does not fit is a row."""

from __future__ import annotations

import dataclasses

import pytest

import shardwise as sw
from shardwise.errors import BadInput, UnknownName

LLAMA = sw.model("llama3-70b")
SLICE = sw.hardware("v5e:4x2")
JOB = sw.Serve(context=8192)


def test_rows_are_plans() -> None:
    found = sw.sweep(LLAMA, SLICE, JOB, dtype=["int8"], batch=[1, 32], peak=True)
    assert [row.swept for row in found.rows] == [{"batch": 1}, {"batch": 32}]
    for row, batch in zip(found.rows, (1, 32), strict=True):
        held = {"weights": "int8", "kv": "int8", "compute": "int8"}
        plan = sw.plan(LLAMA, SLICE, sw.Serve(context=8192, batch=batch, **held), peak=True)
        told = plan.estimate
        assert row.step_s == plan.step
        assert row.tpot_s == told.tpot_s
        assert row.tokens_per_s == told.tokens_per_s
        assert row.memory_bytes == plan.memory.total
        assert told.usd_per_million_tokens
        assert row.usd_per_million_output_tokens == told.usd_per_million_tokens.output
        assert row.mesh == plan.strategy.mesh
        assert row.bound == told.decode.bound


def test_what_does_not_fit_is_a_row() -> None:
    found = sw.sweep(LLAMA, SLICE, JOB, dtype=["bf16", "int8"], tensor=[8, 3], batch=8)
    problems = [row.problem or "" for row in found.rows]
    assert "141 GB" in problems[0] or "does not fit" in problems[0]
    assert "tensor 3 does not divide" in problems[1]
    assert problems[2] == ""
    rows = found.to_dicts()
    assert {tuple(row) for row in rows} == {tuple(rows[0])}
    assert rows[0]["step_s"] is None
    assert rows[2]["mesh_tensor"] == 8


def test_options_of_the_work() -> None:
    found = sw.sweep(
        LLAMA,
        [SLICE, sw.chip("h200")],
        sw.Serve(context=1),
        prompt=[1024, 4096],
        output=256,
        kv_dtype="int8",
        dtype="int8",
        rate=2.0,
        cached=[0.0, 0.5],
    )
    assert len(found.rows) == 8
    assert {row.kv_dtype for row in found.rows if row.step_s} == {"int8"}
    assert found.rows[0].swept == {"hardware": "v5e:4x2", "prompt": 1024, "cached": 0.0}
    on_gpus = [row for row in found.rows if row.swept["hardware"] == "h200" and row.step_s]
    assert on_gpus
    assert all(row.hardware.startswith("h200:") for row in on_gpus)
    assert all(row.requests_per_s == 2.0 for row in on_gpus)


def test_contexts_replace_lengths() -> None:
    job = dataclasses.replace(sw.Serve(prompt=1024, output=64), batch=4, weights="int8", kv="int8")
    short, long = sw.sweep(LLAMA, SLICE, job, context=[1024, 8192]).rows
    assert (short.tpot_s or 0) < (long.tpot_s or 0)


def test_more_bandwidth_or_batch_never_serves_less() -> None:
    rows = sw.sweep(LLAMA, SLICE, JOB, dtype="int8", batch=[1, 2, 4, 8, 16, 28], tensor=8).rows
    each = [row.tokens_per_s_per_chip or 0.0 for row in rows]
    assert each == sorted(each)
    assert all(row.step_s and row.step_s.lower <= row.step_s.expected for row in rows)


def test_mistakes() -> None:
    with pytest.raises(UnknownName, match="batches"):
        sw.sweep(LLAMA, SLICE, JOB, batches=[1, 2])
    with pytest.raises(BadInput, match="no values"):
        sw.sweep(LLAMA, SLICE, JOB, batch=[])
    with pytest.raises(BadInput, match="at most"):
        sw.sweep(LLAMA, SLICE, JOB, batch=range(1, 1002))
    with pytest.raises(BadInput, match="no values"):
        sw.sweep(LLAMA, [], JOB)
