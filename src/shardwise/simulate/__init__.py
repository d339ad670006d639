"""Discrete-event simulation of LLM serving: scheduler, paged KV cache, routers, metrics. Layer 6.

A pass is one forward pass of an engine: sequences decode in it, prompts are computed, or both.
Inputs are traffic (requests and their arrivals), the time of a pass, and the limits of an engine.
Results are latencies, throughput, use of the KV cache, and the highest request rate that meets an
SLO. `Scheduler` and `BlockManager` do not depend on the simulation: a real engine also calls
`schedule`, runs the pass, and calls `advance`.

>>> import numpy as np
>>> pool = Pool(times=AffineTimes(fixed_s=8e-3, prefill_s=2e-5), limits=Limits(n_blocks=4096))
>>> arrival_s = traffic.poisson(100, 5.0, np.random.default_rng(0))
>>> prompt, output = traffic.fixed(100, 512), traffic.fixed(100, 64)
>>> requests = Traffic(arrival_s=arrival_s, prompt=prompt, output=output)
>>> summary = simulate(requests, pool).summary(Slo(ttft_s=0.5, tpot_s=0.03))
>>> summary.requests, round(summary.ttft_s.p50, 3), round(summary.tpot_s.p50, 4), summary.within
(100, 0.022, 0.0083, 1.0)
"""

from __future__ import annotations

from shardwise.simulate import traffic
from shardwise.simulate.capacity import capacity
from shardwise.simulate.deployment import Pool, simulate
from shardwise.simulate.limits import Limits
from shardwise.simulate.mean_field import MeanField, mean_field
from shardwise.simulate.metrics import SimulationResult, Slo, Spread, Summary
from shardwise.simulate.passes import Pass
from shardwise.simulate.request import Request, SequenceState
from shardwise.simulate.scheduler import Scheduler
from shardwise.simulate.times import AffineTimes
from shardwise.simulate.trace import read_trace
from shardwise.simulate.traffic import Traffic

__all__ = [
    "AffineTimes",
    "Limits",
    "MeanField",
    "Pass",
    "Pool",
    "Request",
    "Scheduler",
    "SequenceState",
    "SimulationResult",
    "Slo",
    "Spread",
    "Summary",
    "Traffic",
    "capacity",
    "mean_field",
    "read_trace",
    "simulate",
    "traffic",
]
