"""The very requests that were sent, simulated under a plan."""

from __future__ import annotations

import numpy as np
import pytest

import shardwise as sw
from shardwise.errors import BadInput
from shardwise.plan.serving.arrivals import Arrivals
from shardwise.plan.serving.rebuild import rebuild
from shardwise.plan.serving.simulated_pools import simulated_pools
from shardwise.serve.load.measurement import measure
from shardwise.serve.load.prediction import Predictor
from shardwise.serve.load.reply import Reply
from shardwise.serve.load.schedule import Replies
from shardwise.simulate import Slo, Traffic, simulate

ARRIVALS_S = (0.0, 0.01, 0.5, 2.0)


@pytest.fixture(scope="module")
def plan() -> sw.ServingPlan:
    job = sw.Serve(prompt=256, output=16)
    plan = sw.plan(sw.model("llama3.2-1b"), sw.hardware("v5e:1x1"), job)
    assert isinstance(plan, sw.ServingPlan)
    return plan


def reply(send_s: float, prompt_tokens: int = 100) -> Reply:
    return Reply(
        send_s=send_s,
        token_s=(send_s + 0.1,),
        end_s=send_s + 0.2,
        prompt_tokens=prompt_tokens,
        output_tokens=8,
        expected_tokens=8,
    )


def test_times_and_lengths_are_those_that_were_sent(plan: sw.ServingPlan) -> None:
    failed = Reply(send_s=1.0, end_s=1.0, expected_tokens=8, error="HTTP 503")
    replies = (*map(reply, ARRIVALS_S), failed)
    prediction = Predictor(plan, Slo()).predict(replies)
    assert prediction is not None
    _, chosen = rebuild(plan)
    traffic = Traffic(prompt=np.full(4, 100), output=np.full(4, 8), arrival_s=np.array(ARRIVALS_S))
    pools = simulated_pools(chosen, Arrivals(kind="trace", trace=traffic))
    summary = simulate(traffic, pools.pool).summary()
    assert prediction.simulated.requests == 4
    assert prediction.simulated.tpot_s == summary.tpot_s
    assert prediction.simulated.ttft_s.p50 == pytest.approx(
        summary.ttft_s.p50 + pools.server_overhead_s
    )
    row = measure(Replies(replies=replies, late_s=(), lag_s=()), Slo(), 2.0).beside(prediction)
    assert row.ratios is not None
    assert row.ratios.ttft.p50 == pytest.approx(0.1 / prediction.simulated.ttft_s.p50)
    # One sequence at a time by the closed form, and in the simulation nearly so.
    assert prediction.means_tpot_s == pytest.approx(prediction.simulated.tpot_s.p50, rel=0.1)


def test_users(plan: sw.ServingPlan) -> None:
    prediction = Predictor(plan, Slo()).predict(tuple(map(reply, ARRIVALS_S)), users=2)
    assert prediction is not None
    assert prediction.simulated.running <= 2
    assert prediction.simulated.requests == 4


def test_a_server_that_counts_no_prompts(plan: sw.ServingPlan) -> None:
    with pytest.raises(BadInput, match="does not count the tokens of prompts"):
        Predictor(plan, Slo()).predict((reply(0.0, prompt_tokens=0),))


def test_no_answer_no_prediction(plan: sw.ServingPlan) -> None:
    failed = Reply(send_s=1.0, end_s=1.0, expected_tokens=8, error="HTTP 503")
    assert Predictor(plan, Slo()).predict((failed,)) is None


def test_a_disaggregated_plan() -> None:
    job = sw.Serve(prompt=256, output=16)
    plan = sw.plan(sw.model("llama3.2-1b"), sw.hardware("v5e:2x2"), job, disaggregate=True)
    assert isinstance(plan, sw.ServingPlan)
    prediction = Predictor(plan, Slo()).predict(tuple(map(reply, ARRIVALS_S)))
    assert prediction is not None
    _, chosen = rebuild(plan)
    traffic = Traffic(prompt=np.full(4, 100), output=np.full(4, 8), arrival_s=np.array(ARRIVALS_S))
    pools = simulated_pools(chosen, Arrivals(kind="trace", trace=traffic))
    summary = simulate(traffic, pools.pool, pools.decode, pools.transfer_s_per_token).summary()
    assert pools.decode is not None
    assert pools.transfer_s_per_token > 0
    assert prediction.simulated.tpot_s == summary.tpot_s
