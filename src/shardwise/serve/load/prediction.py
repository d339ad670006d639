"""The requests that were sent, simulated under a plan of the server."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from shardwise.errors import BadInput
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.serving.arrivals import Arrivals
from shardwise.plan.serving.rebuild import rebuild
from shardwise.plan.serving.simulated_pools import SimulatedPools, SimulatedRun, simulated_pools
from shardwise.search.serving.candidate import Candidate
from shardwise.serve.load.reply import Reply
from shardwise.simulate import Pool, Slo, Summary, Traffic, simulate
from shardwise.simulate.planned import mean_field_tpot_s
from shardwise.workload import Serve


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a plan predicts for requests of these arrivals and lengths.

    Args:
        simulated: statistics of the simulated requests.
        means_ttft_s, means_tpot_s: the planner's closed form, for equal requests without queues.
    """

    simulated: Summary
    means_ttft_s: float
    means_tpot_s: float


class Predictor:
    """Predicts measurements from a plan.

    Args:
        plan: the plan by which the server runs.
        slo: bounds of the measurements.

    Raises:
        BadFile: a part of the plan is not a valid model, machine, workload or layout.
    """

    def __init__(self, plan: ServingPlan, slo: Slo) -> None:
        _, self.chosen = rebuild(plan)
        self.slo = slo

    def predict(self, replies: tuple[Reply, ...], users: int = 0) -> Prediction | None:
        """Simulate the answered requests: their times, and lengths as the server counted them.

        Args:
            users: number of users of a closed loop; 0 if requests arrived at their times.

        Returns:
            None if no request was answered.

        Raises:
            BadInput: a request is too long for the engines of the plan.
        """
        answered = [reply for reply in replies if not reply.error]
        if not answered:
            return None
        traffic = _traffic(answered, users)
        pools = self._pools(traffic)
        if users:
            traffic = replace(traffic, think_s=pools.server_overhead_s)
        result = simulate(traffic, pools.pool, pools.decode, pools.transfer_s_per_token)
        summary = SimulatedRun(pools, result, 0.0, math.inf).summary(self.slo)
        rate = len(answered) / max(float(result.columns["arrival_s"].max()), 1e-9)
        tpot_s, ttft_s = self._means(pools, traffic, min(rate, summary.requests_per_s))
        return Prediction(simulated=summary, means_ttft_s=ttft_s, means_tpot_s=tpot_s)

    def _pools(self, traffic: Traffic) -> SimulatedPools:
        """All engines of the deployment, with room for the longest request."""
        chosen = self.chosen
        pools = simulated_pools(chosen, Arrivals(kind="trace", trace=traffic))
        n_engines = chosen.n_prefill or chosen.server.count
        decode = pools.decode
        if decode is not None:
            decode = replace(decode, replicas=chosen.server.count)
        return replace(
            pools,
            pool=replace(pools.pool, replicas=n_engines),
            decode=decode,
            simulated_share=1.0,
        )

    def _means(self, pools: SimulatedPools, traffic: Traffic, rate: float) -> tuple[float, float]:
        """TPOT and TTFT by the closed form, at the batch that `rate` fills by Little's law."""
        chosen = self.chosen
        server = chosen.server
        output = max(1, round(float(traffic.output.mean())))
        job = replace(
            server.job,
            context=0,
            prompt=max(1, round(float(traffic.prompt.mean()))),
            output=output,
            rate=rate,
            users=None,
        )
        pool: Pool = pools.decode_pool
        engine_rate = rate / server.count
        tpot_s = mean_field_tpot_s(
            server.engine,
            job,
            pool.times,
            engine_rate,
            pool.limits.max_sequences,
            prefills=chosen.prefill_server is None,
        )
        batch = min(pool.limits.max_sequences, math.ceil(engine_rate * output * tpot_s))
        return tpot_s, _with_job(chosen, job, max(1, batch)).ttft_s


def _with_job(chosen: Candidate, job: Serve, batch: int) -> Candidate:
    prefill_server = chosen.prefill_server
    if prefill_server is not None:
        prefill_server = replace(prefill_server, job=job)
    server = replace(chosen.server, job=job)
    return replace(chosen, server=server, prefill_server=prefill_server, batch=batch)


def _traffic(answered: list[Reply], users: int) -> Traffic:
    """The requests in the order in which they were sent."""
    import numpy as np

    if any(reply.prompt_tokens < 1 for reply in answered):
        raise BadInput(
            "the server does not count the tokens of prompts (usage), which --plan needs."
        )
    return Traffic(
        prompt=np.array([reply.prompt_tokens for reply in answered]),
        output=np.array([reply.output_tokens for reply in answered]),
        arrival_s=None if users else np.array([reply.send_s for reply in answered]),
        users=users,
    )
