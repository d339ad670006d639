"""Statistics of replies whose times are given."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwise.serve.load.measurement import Measurement, measure, pareto
from shardwise.serve.load.reply import Reply
from shardwise.serve.load.schedule import Replies
from shardwise.simulate import Slo


def reply(send_s: float, first_s: float, gaps: tuple[float, ...] = (), **fields: object) -> Reply:
    """A reply whose first token comes `first_s` after the sending, and others after `gaps`."""
    token_s = [send_s + first_s]
    for gap in gaps:
        token_s.append(token_s[-1] + gap)
    settings: dict[str, object] = {
        "send_s": send_s,
        "token_s": tuple(token_s),
        "end_s": token_s[-1],
        "prompt_tokens": 10,
        "output_tokens": len(token_s),
        "expected_tokens": len(token_s),
        **fields,
    }
    return Reply(**settings)  # type: ignore[arg-type]


FAILED = Reply(send_s=3.0, end_s=3.5, expected_tokens=4, error="HTTP 503", message="overloaded")
REPLIES = Replies(
    replies=(
        reply(0.0, 0.25, (0.5, 0.25, 0.75)),
        reply(1.0, 0.75),
        reply(2.0, 0.5, (1.0, 1.0), expected_tokens=4),
        FAILED,
    ),
    late_s=(0.0, 0.125),
    lag_s=(0.25,),
)


def test_latencies_and_rates() -> None:
    row = measure(REPLIES, Slo(ttft_s=0.5, tpot_s=0.75), rate=1.0)
    assert (row.requests, row.errors, row.n_errors) == (3, {"HTTP 503": 1}, 1)
    assert row.messages == {"HTTP 503": "overloaded"}
    assert (row.ttft_s.mean, row.ttft_s.p50) == (0.5, 0.5)
    # Means of a request after its first token: 1.5 s of 3 tokens, and 2 s of 2.
    assert (row.tpot_s.mean, row.tpot_s.p50) == (0.75, 0.75)
    assert row.itl_s.mean == pytest.approx(3.5 / 5)
    assert row.latency_s.mean == pytest.approx((1.75 + 0.75 + 2.5) / 3)
    assert row.duration_s == 4.5
    assert (row.prompt_tokens, row.output_tokens) == (30, 8)
    assert row.requests_per_s == pytest.approx(3 / 4.5)
    assert row.output_tokens_per_s == pytest.approx(8 / 4.5)
    assert row.total_tokens_per_s == pytest.approx(38 / 4.5)
    assert row.achieved_rate == pytest.approx(4 / 3.0)
    assert row.short_outputs == 1
    assert (row.late_s.p50, row.lag_s.p99) == (0.0625, 0.25)


def test_a_failed_request_is_within_no_bound() -> None:
    row = measure(REPLIES, Slo())
    assert row.within == 3 / 4
    assert row.goodput == pytest.approx(3 / 4.5)
    # The second is too late, the third too slow.
    assert measure(REPLIES, Slo(ttft_s=0.5, tpot_s=0.75)).within == 1 / 4


def test_tokens_that_come_together_count_by_usage() -> None:
    row = measure(replace(REPLIES, replies=(reply(0.0, 0.5, (0.5,), output_tokens=6),)), Slo())
    assert row.tpot_s.mean == pytest.approx(0.1)
    assert row.itl_s.mean == 0.5


def test_no_answer_at_all() -> None:
    row = measure(replace(REPLIES, replies=(FAILED,)), Slo())
    assert (row.requests, row.within, row.ttft_s.p99) == (0, 0.0, 0.0)


def test_the_pareto_front() -> None:
    base = measure(REPLIES, Slo())

    def row(tpot_s: float, tokens_per_s: float) -> Measurement:
        spread = replace(base.tpot_s, p50=tpot_s)
        return replace(base, tpot_s=spread, output_tokens_per_s=tokens_per_s)

    fast, full, beaten, equal = row(1, 10), row(3, 30), row(2, 9), row(3, 25)
    assert pareto([full, beaten, fast, equal]) == [fast, full]
    assert pareto([replace(fast, requests=0)]) == []
