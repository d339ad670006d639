"""Constant traffic: the simulation agrees with the closed form, and that with arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from shardwise.errors import BadInput
from shardwise.simulate import (
    AffineTimes,
    Limits,
    MeanField,
    Pool,
    Summary,
    Traffic,
    mean_field,
    simulate,
)
from shardwise.simulate.traffic import constant, fixed

TIMES = AffineTimes(fixed_s=8e-3, decode_s=2e-5, kv_s=2e-8, prefill_s=2.5e-5, pair_s=1e-10)
WITHIN = 0.01


def both(
    limits: Limits,
    rate: float,
    n: int,
    prompt: int = 1024,
    output: int = 256,
    times: AffineTimes = TIMES,
) -> tuple[Summary, MeanField]:
    """A long run, its times without the start; and the closed form."""
    traffic = Traffic(arrival_s=constant(n, rate), prompt=fixed(n, prompt), output=fixed(n, output))
    result = simulate(traffic, Pool(times=times, limits=limits))
    return result.summary(after_s=0.3 * n / rate), mean_field(times, limits, prompt, output, rate)


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize(
    ("rate", "n", "tokens_per_pass"),
    [
        (0.3, 2000, 1.0),
        (4.0, 4000, 1.0),
        (12.0, 8000, 1.0),
        pytest.param(17.0, 25_000, 1.0, marks=pytest.mark.oracle),
        (15.0, 8000, 2.3),
    ],
)
def test_agrees(rate: float, n: int, tokens_per_pass: float, chunked: bool) -> None:
    limits = Limits(n_blocks=40_000, chunked=chunked, tokens_per_pass=tokens_per_pass)
    found, mean = both(limits, rate, n)
    assert found.utilisation == pytest.approx(mean.utilisation, rel=WITHIN)
    assert found.requests_per_s == pytest.approx(mean.rate, rel=WITHIN)
    assert found.decoding == pytest.approx(mean.decoding, rel=WITHIN)
    if rate * found.latency_s.mean < 1:  # alone: a step is a pass, without the prompts
        assert found.tpot_s.mean == pytest.approx(mean.step_s, rel=WITHIN)
    else:
        assert found.step_s == pytest.approx(mean.step_s, rel=WITHIN)
        assert found.tpot_s.mean == pytest.approx(mean.tpot_s, rel=2 * WITHIN)


@pytest.mark.parametrize("limits", [
    Limits(n_blocks=40_000),
    Limits(n_blocks=40_000, max_sequences=64),
    Limits(n_blocks=40_000, max_tokens=512),
    Limits(n_blocks=10_000, paged=False),
    Limits(n_blocks=40_000, tokens_per_pass=2.3),
])  # fmt: skip
def test_overload_agrees(limits: Limits) -> None:
    found, mean = both(limits, 90.0, 12_000)
    assert mean.rate == mean.largest_rate < 90
    assert found.requests_per_s == pytest.approx(mean.largest_rate, rel=WITHIN)


def test_a_prompt_takes_a_place_for_one_pass() -> None:
    limits = Limits(n_blocks=40_000, max_sequences=32)
    found, mean = both(limits, 900.0, 12_000, prompt=200, output=8)
    assert found.requests_per_s == pytest.approx(mean.largest_rate, rel=WITHIN)


def test_a_lone_request_by_hand() -> None:
    limits, times = Limits(n_blocks=999), AffineTimes(fixed_s=1.0, kv_s=0.1, prefill_s=0.01)
    found, mean = both(limits, 1 / 100, 100, prompt=10, output=3, times=times)
    passes = [1 + 10 * 0.01, 1 + 11 * 0.1, 1 + 12 * 0.1]
    assert found.ttft_s.p50 == pytest.approx(passes[0])
    assert found.latency_s.p99 == pytest.approx(sum(passes))
    assert found.tpot_s.mean == pytest.approx((passes[1] + passes[2]) / 2) == mean.tpot_s
    assert mean.utilisation == pytest.approx(sum(passes) / 100)


def test_two_that_meet_by_hand() -> None:
    """Arrivals at 0 and 1.5; the second prompt shares the pass at 2 with the first's decoding."""
    times = AffineTimes(fixed_s=1.0, decode_s=0.25, prefill_s=0.125)
    traffic = Traffic(
        arrival_s=np.array([0, 1.5]), prompt=np.array([8, 4]), output=np.array([3, 2])
    )
    rows = simulate(traffic, Pool(times=times, limits=Limits(n_blocks=99))).columns
    # 0 to 2: 8 prompt tokens. 2 to 3.75: one decodes, 4 prompt tokens. 3.75 to 5.25: two decode.
    assert rows["start_s"].tolist() == [0, 2]
    assert rows["first_s"].tolist() == [2, 3.75]
    assert rows["end_s"].tolist() == [5.25, 5.25]


def test_one_token_needs_no_decoding() -> None:
    found, mean = both(Limits(n_blocks=999), 2.0, 1000, prompt=100, output=1)
    assert found.utilisation == pytest.approx(mean.utilisation, rel=WITHIN)
    assert mean.largest_rate > 2.0


def test_what_cannot_be() -> None:
    with pytest.raises(BadInput):
        mean_field(TIMES, Limits(n_blocks=9), 0, 1, 1.0)
