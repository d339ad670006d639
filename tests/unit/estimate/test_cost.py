"""Run time, money and MFU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.estimate import cost

positive = st.floats(1e-3, 1e6)


def test_a_run() -> None:
    run = cost.run(2.0, 1e12, 4e6, 1000, 3.0)
    assert run.seconds == 500_000
    assert run.chip_hours == pytest.approx(500_000 * 1000 / 3600)
    assert run.usd == pytest.approx(3 * run.chip_hours)
    assert cost.run(2.0, 1e12, 4e6, 1000, None).usd is None


@given(positive, positive, st.integers(1, 10_000), positive)
def test_mfu_is_one_at_the_peak(flops: float, step: float, n: int, peak: float) -> None:
    ideal = flops / (n * peak)
    assert cost.mfu(flops, ideal, n, peak) == pytest.approx(1, rel=1e-12)
    assert cost.mfu(flops, 2 * ideal, n, peak) == pytest.approx(0.5, rel=1e-12)
    share = cost.mfu(flops, step, n, peak)
    assert cost.training_s(flops, n, peak, share) == pytest.approx(step, rel=1e-9)


def test_llama3_70b_in_44_days() -> None:
    """15T tokens on 8,960 v5p at 40 % take about 44 days. Book §6."""
    seconds = cost.training_s(6 * 70e9 * 15e12, 8960, 4.59e14, cost.REFERENCE_MFU)
    assert seconds / 86400 == pytest.approx(44.3, rel=1e-2)
