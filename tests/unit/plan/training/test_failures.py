"""A run with failures: the numbers of `estimate.goodput`, on the state and hosts of the plan."""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.errors import BadInput
from shardwise.formulas import goodput
from shardwise.plan.schema.json_io import decode
from shardwise.plan.schema.json_output import encode
from shardwise.plan.training.failures import RESTART_S, STORAGE, with_failures

HOURS = 3600.0
MODEL = sw.model("llama3-8b")


def plan_on(machine: str, **job: object) -> sw.Plan:
    return sw.plan(MODEL, sw.hardware(machine), sw.Train(batch=64, seq=2048, **job))  # type: ignore[arg-type]


def test_the_numbers_add_up() -> None:
    plan = with_failures(plan_on("h100:32", tokens=1e12), 50_000 * HOURS)
    told = plan.estimate.goodput
    assert told is not None
    assert told.mtbf_of_run_s == 50_000 * HOURS / 32
    # Weights in bf16 and two moments in fp32, once for the whole model; four nodes write.
    assert told.checkpoint_bytes == sw.parameters(MODEL).total * 14
    assert (told.n_hosts, told.storage_bytes_per_s) == (4, 4 * STORAGE)
    assert told.write_s == told.checkpoint_bytes / told.storage_bytes_per_s
    assert told.restart_s == RESTART_S == 600
    shares = told.goodput + told.writing + told.redone + told.restarting
    assert shares == pytest.approx(1, rel=1e-12)
    assert told.run_s == pytest.approx((plan.estimate.run_s or 0) / told.goodput)
    assert told.usd == pytest.approx((plan.estimate.usd or 0) / told.goodput)
    assert decode(encode(plan)) == plan


def test_the_interval_is_the_best() -> None:
    told = with_failures(plan_on("v5e:4x4"), 100 * HOURS, 60.0).estimate.goodput
    assert told is not None
    for factor in (0.8, 1.25):
        other = goodput.goodput(told.mtbf_of_run_s, factor * told.interval_s, told.write_s, 60.0)
        assert other.steps < told.goodput
    assert told.run_s is told.usd is None
    assert told.n_hosts == sw.hardware("v5e:4x4").n_hosts


def test_more_failures_leave_less() -> None:
    plan = plan_on("h100:32")
    kept = [with_failures(plan, t * HOURS).estimate.goodput for t in (1e2, 1e4, 1e6)]
    shares = [told.goodput for told in kept if told]
    assert shares == sorted(shares)
    assert len(set(shares)) == 3


@pytest.mark.parametrize("mtbf", [0.0, -1.0, float("nan")])
def test_no_time_is_refused(mtbf: float) -> None:
    with pytest.raises(BadInput, match="must be positive"):
        with_failures(plan_on("v5e:4x4"), mtbf)
