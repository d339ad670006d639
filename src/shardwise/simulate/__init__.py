"""Serving in simulated time: the scheduler and block manager of an engine, driven by a clock.

In: traffic (who asks what, when), seconds of a pass, limits of an engine. Out: latencies,
throughput, use of the KV cache, the largest rate that keeps promises. Layer 6. `Scheduler` and
`Blocks` know nothing of simulation: an engine calls `schedule`, runs the pass, calls `advance`.

>>> import numpy as np
>>> pool = Pool(times=AffineTimes(fixed_s=8e-3, prefill_s=2e-5), limits=Limits(n_blocks=4096))
>>> arrival_s = traffic.poisson(100, 5.0, np.random.default_rng(0))
>>> prompt, output = traffic.fixed(100, 512), traffic.fixed(100, 64)
>>> asked = Traffic(arrival_s=arrival_s, prompt=prompt, output=output)
>>> found = simulate(asked, pool).summary(Slo(ttft_s=0.5, tpot_s=0.03))
>>> found.requests, round(found.ttft_s.p50, 3), round(found.tpot_s.p50, 4), found.within
(100, 0.022, 0.0083, 1.0)
"""

from __future__ import annotations

from shardwise.simulate import traffic
from shardwise.simulate.blocks import Blocks
from shardwise.simulate.capacity import Capacity, capacity
from shardwise.simulate.deployment import Pool, simulate
from shardwise.simulate.engine import Engine, Tally
from shardwise.simulate.limits import Limits
from shardwise.simulate.mean_field import MeanField, mean_field
from shardwise.simulate.metrics import Result, Slo, Spread, Summary
from shardwise.simulate.passes import Advanced, Chunk, Pass
from shardwise.simulate.request import Live, Request
from shardwise.simulate.scheduler import Scheduler
from shardwise.simulate.times import AffineTimes, Times
from shardwise.simulate.trace import read_trace
from shardwise.simulate.traffic import Traffic

__all__ = [
    "Advanced",
    "AffineTimes",
    "Blocks",
    "Capacity",
    "Chunk",
    "Engine",
    "Limits",
    "Live",
    "MeanField",
    "Pass",
    "Pool",
    "Request",
    "Result",
    "Scheduler",
    "Slo",
    "Spread",
    "Summary",
    "Tally",
    "Times",
    "Traffic",
    "capacity",
    "mean_field",
    "read_trace",
    "simulate",
    "traffic",
]
