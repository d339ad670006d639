"""The largest rate that keeps a promise, and the figures that it is judged by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwise.errors import BadInput, NoPlan
from shardwise.simulate import (
    AffineTimes,
    Limits,
    Pool,
    Slo,
    Traffic,
    capacity,
    mean_field,
    simulate,
    traffic,
)

N = 1500
TIMES = AffineTimes(fixed_s=8e-3, decode_s=2e-5, kv_s=2e-8, prefill_s=2.5e-5)
POOL = Pool(times=TIMES, limits=Limits(n_blocks=40_000))
SLO = Slo(ttft_s=0.5, tpot_s=0.025, share=0.9)


def asked(arrival_s: np.ndarray) -> Traffic:
    n = len(arrival_s)
    return Traffic(arrival_s=arrival_s, prompt=traffic.fixed(n, 1024), output=traffic.fixed(n, 256))


def poisson(n: int = N) -> Traffic:
    return asked(traffic.poisson(n, 1.0, np.random.default_rng(0)))


def test_the_answer_holds_and_a_little_more_does_not() -> None:
    found = capacity(poisson(), POOL, SLO, tolerance=0.02)
    assert found.summary.within >= SLO.share
    failed = [rate for rate, share in found.trials if share < SLO.share]
    assert found.rate < min(failed) <= found.rate * 1.02
    again = simulate(poisson().at_rate(found.rate), POOL).within(SLO, 0.1 * N / found.rate)
    assert again == found.summary.within


def test_constant_arrivals_reach_what_the_closed_form_says() -> None:
    slo = replace(SLO, ttft_s=60.0, share=0.5)
    found = capacity(asked(traffic.constant(N, 1.0)), POOL, slo, tolerance=0.005)
    state = mean_field(TIMES, POOL.limits, 1024, 256, found.mean_field_rate)
    assert state.tpot_s == pytest.approx(slo.tpot_s, rel=1e-6)
    assert found.rate / found.mean_field_rate == pytest.approx(1.0, rel=0.02)


def test_bursts_cost_capacity() -> None:
    burst = asked(traffic.gamma(N, 1.0, 4.0, np.random.default_rng(0)))
    rates = [capacity(x, POOL, SLO, tolerance=0.03).rate for x in (poisson(), burst)]
    assert rates[1] < 0.9 * rates[0]


def test_prefill_and_decode_apart_have_no_closed_form() -> None:
    found = capacity(poisson(500), POOL, SLO, decode=POOL, tolerance=0.1)
    assert found.mean_field_rate is None
    assert found.rate > capacity(poisson(500), POOL, SLO, tolerance=0.1).rate


def test_promises_that_nothing_keeps_or_breaks() -> None:
    with pytest.raises(NoPlan, match="no rate meets the bounds"):
        capacity(poisson(50), POOL, Slo(tpot_s=1e-3))
    few = Traffic(arrival_s=np.array([0, 1.0]), prompt=np.array([9, 9]), output=np.array([2, 2]))
    with pytest.raises(BadInput, match="so short"):
        capacity(few, POOL, SLO)
    with pytest.raises(BadInput, match="tolerance"):
        capacity(few, POOL, SLO, tolerance=0.0)
    with pytest.raises(BadInput, match="bounds must be above 0"):
        Slo(ttft_s=0.0)


def test_figures_by_hand() -> None:
    """Prompts of 4 tokens at 0 s and 10 s, 3 and 1 tokens asked; passes of 1 s."""
    pool = Pool(times=AffineTimes(fixed_s=1.0), limits=Limits(n_blocks=10, block_tokens=4))
    two = Traffic(arrival_s=np.array([0.0, 9.5]), prompt=np.array([4, 4]), output=np.array([3, 1]))
    found = simulate(two, pool).summary(Slo(ttft_s=1.0, tpot_s=0.5))
    assert found.duration_s == 10.5
    assert (found.ttft_s.mean, found.tpot_s.mean, found.latency_s.mean) == (1.0, 1.0, 2.0)
    assert found.latency_s.p50 == 2.0
    assert found.queue_s.p99 == 0.0
    assert found.output_tokens_per_s == pytest.approx(4 / 10.5)
    assert found.utilisation == found.running == found.in_system == pytest.approx(4 / 10.5)
    # Blocks held: 1 in both prompts' passes, 2 in both decode passes.
    assert found.kv_use == pytest.approx((1 + 2 + 2 + 1) / 10 / 10.5)
    assert found.kv_peak == 0.2
    assert (found.within, found.goodput) == (0.5, pytest.approx(1 / 10.5))


def test_hit_rate() -> None:
    limits = Limits(n_blocks=100, block_tokens=4)
    shared = Traffic(
        arrival_s=np.array([0.0, 9.0, 18.0]), prompt=np.full(3, 16), output=np.full(3, 2),
        prefix=["p"] * 3, shared=np.full(3, 10),
    )  # fmt: skip
    for cache, hit_rate in ((True, 16 / 48), (False, 0.0)):
        pool = Pool(times=AffineTimes(fixed_s=1.0), limits=replace(limits, prefix_cache=cache))
        assert simulate(shared, pool).summary().hit_rate == pytest.approx(hit_rate)
