"""Routers, engines apart for prefill and decode, closed loops; and what faster passes do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.errors import BadInput, UnknownName
from shardwise.simulate import AffineTimes, Limits, Pool, Traffic, simulate
from tests.simulate.cases import limits, traffics

TIMES = AffineTimes(fixed_s=1.0, decode_s=0.25, prefill_s=0.125)
LIMITS = Limits(n_blocks=200, max_sequences=4, max_tokens=64)
ONE = Pool(times=TIMES, limits=LIMITS)


def asked(arrival: list[float], prompt: list[int], output: list[int]) -> Traffic:
    return Traffic(arrival_s=np.array(arrival), prompt=np.array(prompt), output=np.array(output))


def test_round_robin_takes_turns_and_the_other_looks() -> None:
    traffic = asked([0, 0.1, 0.2, 0.3, 20], [8, 8, 8, 8, 8], [30, 2, 30, 2, 1])
    turns = simulate(traffic, replace(ONE, replicas=2, router="round_robin"))
    assert turns.columns["replica"].tolist() == [0, 1, 0, 1, 0]
    looks = simulate(traffic, replace(ONE, replicas=2))
    # At 20 s engine 0 still has two requests, engine 1 none.
    assert looks.columns["replica"].tolist() == [0, 1, 0, 1, 1]


def test_requests_of_a_pass_under_way_are_outstanding() -> None:
    traffic = asked([0, 0, 1.0], [4, 4, 4], [1, 2, 1])
    found = simulate(traffic, replace(ONE, replicas=2))
    # Both engines' passes end at 1.5 s, so at 1 s each still has one.
    assert found.columns["replica"].tolist() == [0, 1, 0]


def test_two_engines_serve_twice_as_much() -> None:
    n = 400
    traffic = asked([0.0] * n, [8] * n, [20] * n)
    one, two = (simulate(traffic, replace(ONE, replicas=k)).summary() for k in (1, 2))
    assert two.requests_per_s == pytest.approx(2 * one.requests_per_s, rel=0.02)
    assert two.utilisation == pytest.approx(1.0, rel=0.02)


def test_prefill_and_decode_apart_by_hand() -> None:
    traffic = asked([0, 0], [8, 8], [3, 1])
    found = simulate(traffic, replace(ONE, limits=LIMITS), ONE, transfer_s_per_token=0.5)
    rows = found.columns
    assert rows["first_s"].tolist() == [3, 3]  # both prompts in one pass
    assert rows["end_s"].tolist() == [3 + 8 * 0.5 + 2 * 1.25, 3]
    assert rows["replica"].tolist() == [1, 0]
    assert [tally.passes for tally in found.tallies] == [1, 2]
    assert found.tallies[1].decode_passes == 2


def test_an_engine_sends_one_cache_after_the_other() -> None:
    # Both prompts end in one pass, at 3 s; the second cache waits until the first is sent.
    traffic = asked([0, 0], [8, 8], [2, 2])
    rows = simulate(traffic, replace(ONE, limits=LIMITS), ONE, transfer_s_per_token=0.5).columns
    assert rows["first_s"].tolist() == [3, 3]
    assert rows["end_s"].tolist() == [3 + 4 + 1.25, 3 + 4 + 4 + 1.25]


def test_decode_apart_is_not_held_up_by_prompts() -> None:
    n = 30
    traffic = asked([float(i) for i in range(n)], [40] * n, [12] * n)
    together = simulate(traffic, replace(ONE, replicas=2)).summary()
    apart = simulate(traffic, ONE, replace(ONE, limits=replace(LIMITS, max_sequences=30)))
    assert apart.summary().tpot_s.p99 < together.tpot_s.p50


def test_a_sequence_preempted_after_its_transfer_is_computed_again() -> None:
    small = replace(ONE, limits=Limits(n_blocks=14, block_tokens=1, max_sequences=4, watermark=0.0))
    traffic = asked([0, 0], [5, 5], [8, 8])
    found = simulate(traffic, ONE, small)
    assert found.summary().preemptions > 0
    assert found.columns["output"].tolist() == [8, 8]


def test_a_closed_loop_holds_its_users() -> None:
    n, users = 200, 3
    traffic = Traffic(users=users, prompt=np.full(n, 8), output=np.full(n, 5))
    found = simulate(traffic, ONE)
    assert found.summary().in_system == pytest.approx(users, rel=0.02)
    rows = found.columns
    for at in rows["arrival_s"]:
        open_now = (rows["arrival_s"] <= at) & (rows["end_s"] > at)
        assert open_now.sum() <= users


def test_the_load_is_counted_between_two_requests() -> None:
    n = 200
    traffic = Traffic(users=3, prompt=np.full(n, 8), output=np.arange(n) % 7 + 2)
    pool = replace(ONE, replicas=2)
    numbered = simulate(traffic, pool, counted_requests=(40, n - 1))
    first_s, last_s = numbered.columns["arrival_s"][[40, n - 1]]
    assert numbered.counted_s == (first_s, last_s)
    timed = simulate(traffic, pool, counted_s=(first_s, last_s)).summary()
    # Passes that run when a request arrives count up to its arrival, or not at all.
    assert numbered.summary().running == pytest.approx(timed.running, rel=0.01)
    assert numbered.summary().requests_per_s == timed.requests_per_s
    assert numbered.summary().in_system == pytest.approx(3, rel=0.01)


def test_users_think_before_they_ask_again() -> None:
    traffic = Traffic(users=1, think_s=7.0, prompt=np.full(3, 8), output=np.full(3, 1))
    rows = simulate(traffic, ONE).columns
    assert rows["arrival_s"].tolist() == [0, 9, 18]


@settings(max_examples=150)
@given(
    st.one_of(traffics(closed=False, at_once=True), traffics(closed=True)),
    limits(),
    st.tuples(*[st.integers(0, 4)] * 8),
)
def test_faster_passes_never_lower_the_throughput_at_constant_load(
    traffic: Traffic, limit: Limits, drawn: tuple[int, ...]
) -> None:
    """All at once, or users who do not think: the passes are the same then, and each is shorter."""
    if traffic.users:
        traffic = replace(traffic, think_s=0.0)
    names = ("decode_s", "kv_s", "prefill_s", "pair_s")
    slow = AffineTimes(fixed_s=1.0, **{n: a / 64 for n, a in zip(names, drawn[:4], strict=True)})
    fast = AffineTimes(
        fixed_s=0.75,
        **{n: min(a, b) / 64 for n, a, b in zip(names, drawn[:4], drawn[4:], strict=True)},
    )
    ends = [simulate(traffic, Pool(times=t, limits=limit)).duration_s for t in (fast, slow)]
    assert ends[0] <= ends[1] * (1 + 1e-12)


def test_faster_passes_may_end_later_when_arrivals_are_fixed() -> None:
    """The slow engine's pass ends just after the second arrival, the fast one's just before."""
    traffic = asked([0.0, 1.0], [8, 8], [2, 1])
    slow, fast = (AffineTimes(fixed_s=s) for s in (1.0, 0.9))
    ends = [simulate(traffic, Pool(times=t, limits=LIMITS)).duration_s for t in (slow, fast)]
    assert ends[0] == 2.0
    assert ends[1] == pytest.approx(2.7)


def test_what_cannot_be() -> None:
    with pytest.raises(BadInput, match="at least 1, not 0"):
        replace(ONE, replicas=0)
    with pytest.raises(UnknownName, match="round_robin"):
        replace(ONE, router="round_robyn")
    with pytest.raises(BadInput, match="must not be negative"):
        simulate(asked([0], [5], [1]), ONE, ONE, transfer_s_per_token=-1.0)
    with pytest.raises(BadInput, match="request 1: prompt 5,000"):
        simulate(asked([0, 1], [5, 5000], [1, 1]), ONE)


def test_no_requests() -> None:
    found = simulate(
        Traffic(arrival_s=np.zeros(0), prompt=np.zeros(0, int), output=np.zeros(0, int)), ONE
    )
    assert found.summary().requests == 0
    assert found.summary().ttft_s.mean == 0.0
