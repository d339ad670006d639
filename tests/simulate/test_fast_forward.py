"""A stretch of alike passes run at once is the same as its passes one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.simulate import AffineTimes, Limits, Pool, SimulationResult, Traffic, simulate
from shardwise.simulate.decoding import DecodeBatch
from tests.simulate.cases import TIMES, columns, pools, traffics


def assert_same(fast: SimulationResult, slow: SimulationResult) -> None:
    assert columns(fast) == columns(slow)
    assert fast.duration_s == slow.duration_s
    for one, other in zip(fast.tallies, slow.tallies, strict=True):
        assert other.events == other.passes >= one.events
        # Used blocks are the one thing that is a mean of two ends over a stretch.
        assert replace(one, events=0, used_s=0.0) == replace(other, events=0, used_s=0.0)
        assert one.used_s == pytest.approx(other.used_s, rel=0.2, abs=1e-9)


@settings(max_examples=200)
@given(traffics(), pools())
def test_one_pool(traffic: Traffic, pool: Pool) -> None:
    assert_same(simulate(traffic, pool), simulate(traffic, pool, fast_forward=False))


@settings(max_examples=100)
@given(traffics(), pools(), pools(), st.integers(0, 3))
def test_prefill_and_decode_apart(traffic: Traffic, pool: Pool, decode: Pool, per: int) -> None:
    run = lambda fast: simulate(traffic, pool, decode, per / 256, fast_forward=fast)
    assert_same(run(True), run(False))


def test_a_long_stretch_is_one_event() -> None:
    n = 3
    traffic = Traffic(arrival_s=np.zeros(n), prompt=np.full(n, 7), output=np.full(n, 1001))
    result = simulate(traffic, Pool(times=TIMES, limits=Limits(n_blocks=1000)))
    assert result.tallies[0].passes == 1001
    assert result.tallies[0].events == 2


def test_arrivals_that_change_nothing_do_not_cut_a_stretch() -> None:
    n = 50
    traffic = Traffic(arrival_s=np.arange(n) / 64, prompt=np.full(n, 7), output=np.full(n, 500))
    limits = Limits(n_blocks=1000, max_sequences=1)
    tally = simulate(traffic, Pool(times=TIMES, limits=limits)).tallies[0]
    assert (tally.passes, tally.events) == (500 * n, 2 * n)


def test_used_blocks_of_a_long_stretch() -> None:
    n = 40
    traffic = Traffic(arrival_s=np.arange(n) * 1.0, prompt=np.full(n, 70), output=np.full(n, 500))
    pool = Pool(times=TIMES, limits=Limits(n_blocks=4000))
    fast, slow = (simulate(traffic, pool, fast_forward=f).summary() for f in (True, False))
    assert fast.kv_use == pytest.approx(slow.kv_use, rel=1e-3)


def test_times_that_are_not_affine_are_taken_at_the_mean() -> None:
    class Curved(AffineTimes):
        def pass_s(
            self, decode: float, kv: float, prefill: float, pairs: float, chunks: Any = ()
        ) -> float:
            return 1e-2 + 1e-9 * kv**1.3 + 1e-5 * prefill

    pool = Pool(times=Curved(fixed_s=0), limits=Limits(n_blocks=4000))
    traffic = Traffic(arrival_s=np.arange(9) * 0.3, prompt=np.full(9, 900), output=np.full(9, 400))
    fast, slow = (simulate(traffic, pool, fast_forward=f) for f in (True, False))
    assert fast.columns["end_s"] == pytest.approx(slow.columns["end_s"], rel=1e-4)


@pytest.mark.parametrize("gain", [1.0, 2.3, 1.07, 3.0])
def test_mean_read_is_the_mean_over_passes(gain: float) -> None:
    from shardwise.simulate import Request, SequenceState

    far = Request(0, 0.0, 5, 10_000)
    for n in (1, 2, 7, 10, 53, 100, 331):
        decoding = DecodeBatch(Limits(n_blocks=10_000, tokens_per_pass=gain))
        decoding.add(SequenceState(far), 5)
        decoding.advance(13, {})
        at_once, read = decoding.mean_kv_tokens(n), 0.0
        for _ in range(n):
            read += decoding.mean_kv_tokens(1)
            decoding.advance(1, {})
        assert at_once == pytest.approx(read / n, rel=1e-12)
