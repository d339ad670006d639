"""Nothing is lost: requests, tokens, blocks, time."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings

from shardwise.simulate import Limits, Pool, Traffic, simulate
from tests.simulate.cases import TIMES, columns, limits, pools, traffics


@settings(max_examples=100)
@given(traffics(), pools(), pools())
def test_no_request_is_lost(traffic: Traffic, pool: Pool, decode: Pool) -> None:
    for second in (None, decode):
        rows = columns(simulate(traffic, pool, second, 0.125))
        assert sorted(rows["id"]) == list(range(len(traffic)))
        for i, request in enumerate(map(int, rows["id"])):
            assert rows["prompt"][i] == traffic.prompt[request]
            assert rows["output"][i] == traffic.output[request]
            times = [rows[name][i] for name in ("arrival_s", "start_s", "first_s", "end_s")]
            assert times == sorted(times)
            assert times[1] < times[2]
            assert (times[2] == times[3]) == (rows["output"][i] == 1)


@settings(max_examples=100)
@given(traffics(), pools())
def test_littles_law(traffic: Traffic, pool: Pool) -> None:
    """The area under the number in the system, counted by engines, is the sum of the latencies."""
    result = simulate(traffic, pool)
    rows = columns(result)
    spent = sum(map(Fraction, rows["end_s"])) - sum(map(Fraction, rows["arrival_s"]))
    assert sum(Fraction(tally.system_s) for tally in result.tallies) == spent
    found = result.summary()
    assert found.in_system == pytest.approx(found.requests_per_s * found.latency_s.mean)
    assert found.running <= found.in_system * (1 + 1e-12)
    assert 0 < found.utilisation <= 1 + 1e-12
    assert 0 < found.kv_use <= found.kv_peak * (1 + 1e-12) <= 1 + 1e-12


@settings(max_examples=100)
@given(traffics(closed=False), limits())
def test_first_tokens_come_in_the_order_of_arrival(traffic: Traffic, limit: Limits) -> None:
    result = simulate(traffic, Pool(times=TIMES, limits=limit))
    if result.summary().preemptions == 0:
        rows = columns(result)
        firsts = dict(zip(rows["id"], rows["first_s"], strict=True))
        assert [firsts[i] for i in sorted(firsts)] == sorted(firsts.values())
