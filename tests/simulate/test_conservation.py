"""Nothing is lost: requests, tokens, blocks, time."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings

from shardwise.simulate import Limits, Pool, Request, Scheduler, Traffic, simulate
from tests.simulate.cases import TIMES, columns, limits, pools, traffics


@settings(max_examples=200)
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


@settings(max_examples=200)
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


@settings(max_examples=200)
@given(traffics(closed=False), limits())
def test_first_tokens_come_in_the_order_of_arrival(traffic: Traffic, limit: Limits) -> None:
    result = simulate(traffic, Pool(times=TIMES, limits=limit))
    if result.summary().preemptions == 0:
        rows = columns(result)
        firsts = dict(zip(rows["id"], rows["first_s"], strict=True))
        assert [firsts[i] for i in sorted(firsts)] == sorted(firsts.values())


@settings(max_examples=300)
@given(traffics(closed=False), limits())
def test_an_engine_finds_every_pass_in_order(traffic: Traffic, limit: Limits) -> None:
    """Passes as an engine sees them: contexts, budgets, and blocks that nobody else writes."""
    scheduler, contexts, made = Scheduler(limit), {}, {}
    for request in traffic:
        scheduler.add(request)
    while scheduler.has_work:
        now = scheduler.schedule()
        assert now.n_decode == len(now.decode)
        assert now.n_decode + now.prefill > 0
        assert scheduler.running <= limit.max_sequences
        if limit.chunked:
            assert now.n_decode + now.prefill <= limit.max_tokens
        else:
            assert now.n_decode == 0 or now.prefill == 0
        gain = scheduler.decoding.gain(1)
        assert now.kv_tokens == sum(contexts[live.request.id] + gain for live in now.decode)
        blocks = scheduler.blocks
        assert blocks.used + blocks.cached + blocks.free == limit.n_blocks
        assert min(blocks.used, blocks.cached, blocks.free) >= 0
        written: dict[int, int] = {}
        for live in now.decode:
            context = contexts[live.request.id]
            write(scheduler, live, range(context, context + gain), written)
        for live, past, tokens in now.chunks:
            assert tokens > 0
            known = contexts.get(live.request.id, 0)
            assert past == known or past % limit.block == 0  # from the cache
            write(scheduler, live, range(past, past + tokens), written)
        decoded, chunks = list(now.decode), now.chunks
        prefilled, ended = scheduler.advance()
        assert all(live.past == live.target for live in prefilled)
        for live in decoded:
            contexts[live.request.id] += gain
        for live, past, tokens in chunks:
            contexts[live.request.id] = past + tokens
        for live in ended:
            made[live.request.id] = live.generated
            assert contexts[live.request.id] >= live.request.prompt + live.request.output - 1
    assert made == dict(enumerate(traffic.output.tolist()))
    assert scheduler.blocks.used == 0


def write(scheduler: Scheduler, live: object, at: range, written: dict[int, int]) -> None:
    """Tokens are written to blocks of the sequence that no other sequence writes in this pass."""
    table = scheduler.table(live)
    assert len(set(table)) == len(table)
    assert all(0 <= block < scheduler.limits.n_blocks for block in table)
    for token in at:
        block = table[token // scheduler.limits.block]
        assert written.setdefault(block, id(live)) == id(live)


def test_a_sequence_that_stops_early_gives_its_blocks_back() -> None:
    scheduler = Scheduler(Limits(n_blocks=10, block=4, max_tokens=300))
    live = scheduler.add(Request(0, 0.0, 6, 20))
    scheduler.schedule()
    scheduler.advance()
    scheduler.schedule()
    assert scheduler.table(live) == [0, 1]
    _, ended = scheduler.advance(stopped=[live])
    assert ended == [live]
    assert live.generated == 2
    assert (scheduler.blocks.used, scheduler.has_work) == (0, False)
