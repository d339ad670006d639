"""A published serving run -> what the planner's formulas give for each of its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.estimate.collective_cost import CollectiveCost
from shardwise.estimate.serving.chip_rates import ServeRates
from shardwise.estimate.serving.efficiency import ServingEfficiency, serving_efficiency
from shardwise.estimate.serving.engine import Engine
from shardwise.estimate.serving.memory import engine_memory, max_batch
from shardwise.estimate.serving.overhead import EngineOverhead, engine_overhead
from shardwise.estimate.serving.steady_state import colocated
from shardwise.models.count import parameters
from shardwise.simulate import Pool, Summary, Traffic, simulate
from shardwise.simulate.planned import LARGEST_BATCH, limits_of, pass_times
from shardwise.simulate.traffic import uniform
from shardwise.strategy.mesh import place
from shardwise.strategy.serving_layout import ServeLayout
from shardwise.validate.serving.runs import DRAWN, ServeRun
from shardwise.workload import Serve

# Requests for each one in flight: InferenceX asks ten times its concurrency in all, the first of
# them at once, with lengths drawn from 0.8 to 1 times the nominal one (RANDOM_RANGE_RATIO).
ROUNDS = 10
SHORTEST = 0.8
VARIED = 0.1  # of lengths that are stated as equal: real ones vary, and requests come apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """One metric in the unit of `ServeRun.measured`.

    Args:
        expected: The prediction.
        lower, upper: Between them four figures of five are expected.
    """

    lower: float
    expected: float
    upper: float


def predict(run: ServeRun) -> Mapping[str, Predicted]:
    """Metric -> prediction, for each metric of `run.measured` that the formulas know.

    Raises:
        ShardwiseError: what of the run the formulas do not know.
    """
    return predicted_with(run, serving_efficiency(run.system.chip.name, run.system.chip.kind))


def predicted_with(
    run: ServeRun, reached: ServingEfficiency, software: EngineOverhead | None = None
) -> Mapping[str, Predicted]:
    """The same with given shares of the chip, and habits of the engine."""
    engine = engine_of(run, reached, software or engine_overhead(run.framework))
    job = job_of(run)
    if run.phase == "decode":
        found = _decoding(run, engine)
    elif run.phase == "prefill":
        found = {"prefill_s": float(engine.prefill(run.batch or 1, run.prompt).step_s)}
    elif run.batch:
        found = _batch(run, engine, job)
    elif run.concurrency:
        found = _closed_loop(run, engine, job)
    else:
        found = _saturated(run, engine, job)
    width = 1 + reached.spread
    return {
        metric: Predicted(lower=value / width, expected=value, upper=value * width)
        for metric, value in found.items()
        if metric in run.measured
    }


def engine_of(run: ServeRun, reached: ServingEfficiency, software: EngineOverhead) -> Engine:
    """The engine of a run on the first of its placements."""
    layout = ServeLayout(
        mesh=run.mesh, expert_tensor=run.expert_tensor, kv=_cache_split(run, software)
    )
    each = run.weight_bytes / parameters(run.config).total if run.weight_bytes else None
    return Engine(
        config=run.config,
        layout=layout,
        costs=CollectiveCost(place(run.system, run.mesh.sizes)[:1]),
        rates=ServeRates(
            chip=run.system.chip,
            job=job_of(run),
            efficiency=reached,
            overhead=software,
            parameter_bytes=each,
        ),
    )


def job_of(run: ServeRun) -> Serve:
    """The requests of a run."""
    lengths = {"prompt": run.prompt, "output": run.output} if run.prompt and run.output else {}
    return Serve(
        context=max(1, run.prompt + run.output),
        weights=run.weights,
        kv=run.kv,
        compute=run.compute,
        **lengths,
    )


def _cache_split(run: ServeRun, software: EngineOverhead) -> str:
    """JAX programs shard caches over the batch where heads do not suffice (arXiv 2211.05102)."""
    return "batch" if software.overlaps else "copied"


def _decoding(run: ServeRun, engine: Engine) -> dict[str, float]:
    each = (run.batch or 1) / run.mesh.data
    step = float(engine.decode(each, run.prompt + run.output / 2).step_s)
    return {
        "tpot_s": step,
        "tokens_per_s": (run.batch or 1) / step,
        "tokens_per_s_per_user": 1 / step,
    }


def _batch(run: ServeRun, engine: Engine, job: Serve) -> dict[str, float]:
    """One batch from prompts to the last token; on a pipeline in as many parts as stages."""
    batch, stages = (run.batch or 1) / run.mesh.data, run.mesh.pipe
    part = max(1.0, batch / stages)
    in_flight = batch / part
    first = float(engine.prefill(part, run.prompt).step_s) * (1 + (in_flight - 1) / stages)
    step = float(engine.decode(part, run.prompt + run.output / 2).step_s)
    latency = first + (run.output - 1) * step
    capacity = run.system.chip.need("hbm_bytes")
    memory = engine_memory(run.config, engine.layout, run.mesh.sizes, job, batch, capacity)
    return {
        "latency_s": latency,
        "total_tokens_per_s": batch * (run.prompt + run.output) / latency * run.mesh.data,
        "tokens_per_s": batch * run.output / latency * run.mesh.data,
        "memory_bytes": float(memory.total),
    }


def _closed_loop(run: ServeRun, engine: Engine, job: Serve) -> dict[str, float]:
    """So many users, each with one request after the other."""
    found = simulated(run, engine, job)
    server = engine.rates.overhead.request_s
    return {
        "ttft_s": found.ttft_s.mean + server,
        "tpot_s": found.tpot_s.mean,
        "tokens_per_s": found.output_tokens_per_s * run.mesh.data,
    }


def simulated(run: ServeRun, engine: Engine, job: Serve) -> Summary:
    """The run's requests on one of its engines, in simulated time."""
    import numpy as np

    users = max(1, round((run.concurrency or 1) / run.mesh.data))
    drawn = "lengths" in run.assumed
    rng, n = np.random.default_rng(0), users * ROUNDS
    low, high = (SHORTEST / DRAWN, 1 / DRAWN) if drawn else (1 - VARIED, 1 + VARIED)
    prompt, output = (
        uniform(n, max(1, round(low * mean)), max(1, round(high * mean)), rng)
        for mean in (run.prompt, run.output)
    )
    longest = round(high * (run.prompt + run.output)) + 2
    limits = limits_of(engine, job, users, longest=longest, prefix_cache=False)
    table = pass_times(engine, job, longest, users)
    traffic = Traffic(prompt=prompt, output=output, users=users)
    return simulate(traffic, Pool(times=table, limits=limits)).summary()


def _saturated(run: ServeRun, engine: Engine, job: Serve) -> dict[str, float]:
    """All requests wait: as many run as fit."""
    capacity = run.system.chip.need("hbm_bytes")
    most = max_batch(run.config, engine.layout, run.mesh.sizes, job, capacity)
    # Contexts are half grown in the mean, and blocks are taken as they grow.
    mean = job.context / job.mean_context
    batch = min(float(most) * mean, LARGEST_BATCH * float(run.mesh.expert))
    found = colocated(engine, job, max(1.0, batch))
    rate = float(found.tokens_per_s) * run.mesh.data
    return {"tokens_per_s": rate, "total_tokens_per_s": rate * job.context / run.output}
