"""FLOPs by the rules of thumb, and the share of the peak they reach."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.formulas.flops import REFERENCE_MFU, compute_s, forward_flops, mfu, training_flops
from shardwise.formulas.inference import decode_step

positive = st.floats(1e-3, 1e6)


def test_published_training_runs() -> None:
    # Book §4: DeepSeek-V3's 37e9 active parameters and 14.8T tokens in 2.79M H800 hours at
    # 1.513e15 fp8 FLOP/s are about 21.7 % of the peak.
    flops = training_flops(37e9, 14.8e12)
    assert flops == pytest.approx(3.29e24, rel=2e-3)
    assert flops / (2.79e6 * 3600 * 1.513e15) == pytest.approx(0.217, rel=5e-3)
    assert training_flops(1, 1, recompute=True) == 8
    assert forward_flops(70e9, 2) == 2.8e11


@given(positive, positive, st.integers(1, 10_000), positive)
def test_mfu_is_one_at_the_peak(flops: float, step: float, n: int, peak: float) -> None:
    ideal = flops / (n * peak)
    assert mfu(flops, ideal, n, peak) == pytest.approx(1, rel=1e-12)
    assert mfu(flops, 2 * ideal, n, peak) == pytest.approx(0.5, rel=1e-12)
    share = mfu(flops, step, n, peak)
    assert compute_s(flops, n, peak, share) == pytest.approx(step, rel=1e-9)


def test_llama3_70b_in_44_days() -> None:
    """15T tokens on 8,960 v5p at 40 % take about 44 days. Book §6."""
    seconds = compute_s(6 * 70e9 * 15e12, 8960, 4.59e14, REFERENCE_MFU)
    assert seconds / 86400 == pytest.approx(44.3, rel=1e-2)


def test_mfu_of_a_compute_bound_decode_step() -> None:
    step = decode_step(
        1024, 0, 7e9, n_chips=4, hbm_bytes_per_s=8.2e11, params=7e9, flops_per_s=1.97e14
    )
    assert mfu(forward_flops(7e9, 1024), step.step_s, 4, 1.97e14) == pytest.approx(1.0)
