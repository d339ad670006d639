"""Predictions of published serving measurements, by the planner's formulas and simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwise import units
from shardwise.errors import DoesNotFit
from shardwise.estimate.chip_memory import capacity_bytes
from shardwise.estimate.collective_cost import CollectiveCost
from shardwise.estimate.serving.chip_rates import ServeRates
from shardwise.estimate.serving.efficiency import ServingEfficiency, serving_efficiency
from shardwise.estimate.serving.engine import Engine
from shardwise.estimate.serving.memory import (
    cache_bytes,
    engine_memory,
    max_batch,
    weights_bytes,
)
from shardwise.estimate.serving.overhead import EngineOverhead, published_engine
from shardwise.estimate.serving.spread import spread
from shardwise.estimate.serving.steady_state import colocated, prompts_s
from shardwise.models.count import parameters
from shardwise.simulate import Pool, Summary, Traffic, simulate
from shardwise.simulate.planned import engine_limits, pass_times
from shardwise.simulate.traffic import uniform
from shardwise.strategy.mesh import place
from shardwise.strategy.serving_layout import ServeLayout
from shardwise.validate.serving.kinds import kind_of
from shardwise.validate.serving.runs import MEAN_LENGTH_RATIO, ServeRun
from shardwise.workload import Serve

# InferenceX sends ten times as many requests as run at the same time, with lengths drawn uniformly
# from 0.8 to 1 times the nominal length (RANDOM_RANGE_RATIO).
REQUESTS_PER_USER = 10
MIN_LENGTH_RATIO = 0.8
# Lengths that a source states as equal are varied by this share up and down: requests that start
# together also end together, and their users' next prompts queue again, for many rounds but not for
# ever. Of 0 to 0.02 the value at which each group was nearest that is fitted with equal lengths.
LENGTH_VARIATION = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedFigure:
    """A predicted metric in the unit of `ServeRun.measured`.

    Args:
        expected: Expected value.
        lower, upper: Interval that should contain four of five measured values.
    """

    lower: float
    expected: float
    upper: float


def predict(run: ServeRun) -> Mapping[str, PredictedFigure]:
    """Predict those metrics of `run.measured` that the formulas give.

    Raises:
        ShardwiseError: the formulas do not support something in the run.
    """
    return predict_with(run, serving_efficiency(run.system.chip.name, run.system.chip.kind))


def predict_with(
    run: ServeRun, efficiency: ServingEfficiency, overhead: EngineOverhead | None = None
) -> Mapping[str, PredictedFigure]:
    """Predict as `predict` does, with given efficiencies.

    Args:
        efficiency: Shares of the chip's peak rates that an engine reaches.
        overhead: Time that the serving engine adds; None for that of the run's framework.
    """
    engine = engine_of(run, efficiency, _as_started(run, overhead))
    job = job_of(run)
    _refuse_too_large(run, job)
    if run.phase == "decode":
        metrics = _decode(run, engine)
    elif run.phase == "prefill":
        metrics = {"prefill_s": float(prompts_s(engine, run.batch or 1, run.prompt_tokens))}
    elif run.batch:
        metrics = _fixed_batch(run, engine, job)
    elif run.concurrency:
        metrics = _closed_loop(run, engine, job)
    else:
        metrics = _saturated(run, engine, job)
    word = engine.rates.overhead.name
    figures = {}
    for metric, value in metrics.items():
        if metric not in run.measured:
            continue
        width = 1 + spread(kind_of(run, metric), word)
        figures[metric] = PredictedFigure(lower=value / width, expected=value, upper=value * width)
    return figures


def _as_started(run: ServeRun, overhead: EngineOverhead | None) -> EngineOverhead:
    """The engine of a run with the flags of its server."""
    engine = overhead or published_engine(run.framework)
    users = (run.concurrency or 0) / run.mesh.data
    return run.server.applied_to(engine, users / max(1, run.output_tokens))


def _refuse_too_large(run: ServeRun, job: Serve) -> None:
    """Refuse a run whose weights leave no room for the cache of one sequence.

    Raises:
        DoesNotFit: the weights and one sequence need more than the whole memory of a chip.
    """
    sizes = run.mesh.sizes
    layout = ServeLayout(mesh=run.mesh, expert_tensor=run.expert_tensor)
    weights = float(weights_bytes(run.config, layout, sizes, job))
    if run.weight_bytes:
        nominal = parameters(run.config).total * units.bytes_per_element(job.weights)
        weights *= run.weight_bytes / nominal
    sequence = float(cache_bytes(run.config, layout, sizes, job))
    capacity = capacity_bytes(run.system.chip)
    if weights + sequence > capacity:
        raise DoesNotFit(
            f"weights of {units.show_bytes(weights)} and one sequence of "
            f"{units.show_bytes(sequence)} per chip do not fit in "
            f"{units.show_bytes(capacity)} of {run.system.chip.name}."
        )


def engine_of(run: ServeRun, efficiency: ServingEfficiency, overhead: EngineOverhead) -> Engine:
    """Return the engine of a run, on the first placement of its mesh on the machine."""
    layout = ServeLayout(
        mesh=run.mesh, expert_tensor=run.expert_tensor, kv=_kv_sharding(run, overhead)
    )
    parameter_bytes = None
    if run.weight_bytes:
        parameter_bytes = run.weight_bytes / parameters(run.config).total
    return Engine(
        config=run.config,
        layout=layout,
        costs=CollectiveCost(place(run.system, run.mesh.sizes)[:1]),
        rates=ServeRates(
            chip=run.system.chip,
            job=job_of(run),
            efficiency=efficiency,
            overhead=overhead,
            parameter_bytes=parameter_bytes,
        ),
    )


def job_of(run: ServeRun) -> Serve:
    """Return the workload of a run, with its dtypes."""
    lengths: dict[str, Any] = {}
    if run.prompt_tokens and run.output_tokens:
        lengths = {"prompt": run.prompt_tokens, "output": run.output_tokens}
    return Serve(
        context=max(1, run.prompt_tokens + run.output_tokens),
        weights=run.weights,
        kv=run.kv,
        compute=run.compute,
        engine=published_engine(run.framework).name,
        **lengths,
    )


def _kv_sharding(run: ServeRun, overhead: EngineOverhead) -> str:
    """Return how KV caches are sharded over chips beyond the KV heads.

    JAX programs shard the batch (arXiv 2211.05102), other engines copy the cache.
    """
    return "batch" if overhead.overlaps else "copied"


def _decode(run: ServeRun, engine: Engine) -> dict[str, float]:
    batch = run.batch or 1
    context = run.prompt_tokens + run.output_tokens / 2
    step_s = float(engine.decode(batch / run.mesh.data, context).step_s)
    return {
        "tpot_s": step_s,
        "tokens_per_s": batch / step_s,
        "tokens_per_s_per_user": 1 / step_s,
    }


def _fixed_batch(run: ServeRun, engine: Engine, job: Serve) -> dict[str, float]:
    """Predict a batch that starts together, from prefill to the last token.

    A pipeline runs as many microbatches as it has stages.
    """
    batch = (run.batch or 1) / run.mesh.data
    stages = run.mesh.pipe
    micro_batch = max(1.0, batch / stages)
    n_microbatches = batch / micro_batch
    prefill_s = float(engine.prefill(micro_batch, run.prompt_tokens).step_s)
    context = run.prompt_tokens + run.output_tokens / 2
    step_s = float(engine.decode(micro_batch, context).step_s)
    ttft_s = prefill_s * (1 + (n_microbatches - 1) / stages)
    latency_s = ttft_s + (run.output_tokens - 1) * step_s
    capacity = capacity_bytes(run.system.chip)
    memory = engine_memory(run.config, engine.layout, run.mesh.sizes, job, batch, capacity)
    return {
        "latency_s": latency_s,
        "total_tokens_per_s": batch
        * (run.prompt_tokens + run.output_tokens)
        / latency_s
        * run.mesh.data,
        "tokens_per_s": batch * run.output_tokens / latency_s * run.mesh.data,
        "memory_bytes": float(memory.total),
    }


def _closed_loop(run: ServeRun, engine: Engine, job: Serve) -> dict[str, float]:
    """Predict a fixed number of users, each with one request at a time, by simulation."""
    summary = simulated(run, engine, job)
    tpot_s = summary.tpot_s.mean
    users = (run.concurrency or 1) / run.mesh.data
    server_s = float(engine.rates.overhead.first_token_s(tpot_s, users, run.mesh.expert))
    return {
        "ttft_s": summary.ttft_s.mean + server_s,
        "tpot_s": tpot_s,
        "tokens_per_s": summary.output_tokens_per_s * run.mesh.data,
    }


def simulated(run: ServeRun, engine: Engine, job: Serve) -> Summary:
    """Simulate one of the engines of a run, with its share of the requests."""
    import numpy as np

    users = max(1, round((run.concurrency or 1) / run.mesh.data))
    low = 1 - LENGTH_VARIATION
    high = 1 + LENGTH_VARIATION
    if "lengths" in run.assumed:
        low = MIN_LENGTH_RATIO / MEAN_LENGTH_RATIO
        high = 1 / MEAN_LENGTH_RATIO
    rng = np.random.default_rng(0)
    n = users * REQUESTS_PER_USER
    prompt, output = (
        uniform(n, max(1, round(low * mean)), max(1, round(high * mean)), rng)
        for mean in (run.prompt_tokens, run.output_tokens)
    )
    max_context = round(high * (run.prompt_tokens + run.output_tokens)) + 2
    limits = engine_limits(engine, job, users, max_context=max_context, prefix_cache=False)
    times = pass_times(engine, job, max_context, users)
    traffic = Traffic(prompt=prompt, output=output, users=users)
    return simulate(traffic, Pool(times=times, limits=limits)).summary()


def _saturated(run: ServeRun, engine: Engine, job: Serve) -> dict[str, float]:
    """Predict the rates when all requests are in the queue at the start and as many run as fit."""
    capacity = capacity_bytes(run.system.chip)
    max_sequences = max_batch(run.config, engine.layout, run.mesh.sizes, job, capacity)
    # `max_sequences` assumes that all contexts have full length, but engines allocate blocks as
    # contexts grow: there is room for sequences of mean length.
    growth = job.context / job.mean_context
    limit = engine.rates.overhead.max_sequences * run.mesh.expert
    batch = min(float(max_sequences) * growth, float(limit))
    estimate = colocated(engine, job, max(1.0, batch))
    rate = float(estimate.tokens_per_s) * run.mesh.data
    return {"tokens_per_s": rate, "total_tokens_per_s": rate * job.context / run.output_tokens}
