"""Means of an engine under steady traffic of identical requests (a mean-field model). Book §8.

B sequences decode at once; each request has P prompt tokens and G output tokens. On average B / G
sequences finish in a pass and as many prompts take their places, so that every output token carries
a share of the time of prefill.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.arrays import Num, ceil_div, maximum, minimum, where
from shardwise.estimate.serving.engine import Engine
from shardwise.estimate.serving.extra_traffic import batch_shards
from shardwise.estimate.serving.load import Load
from shardwise.formulas.inference import speculative_token_s
from shardwise.workload import Serve

# Share of a pass's tokens that prefill always gets, no matter how many sequences decode.
MIN_CHUNK = 0.125
# Utilization at which queueing time stops growing in the estimate; it would be infinite at 1.
MAX_UTILISATION = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """Means over the requests of one engine.

    Args:
        batch: sequences that decode at once.
        pass_s: seconds per output token if there were no prefill.
        tpot_s: seconds per output token.
        prefill_s: seconds to prefill a prompt on an idle engine.
        ttft_s: seconds to the first token, including queueing.
        tokens_per_s: output tokens per second.
        requests_per_s: finished requests per second; 0 if the job states no output length.
        busy: fraction of the time that is spent on prefill.
    """

    batch: Num
    pass_s: Num
    tpot_s: Num
    prefill_s: Num
    ttft_s: Num
    tokens_per_s: Num
    requests_per_s: Num
    busy: Num


def in_flight(engine: Engine, batch: Num) -> Num:
    """Sequences of one pass, when an engine holds `batch` sequences.

    A pipeline divides them into one batch per stage.
    """
    return ceil_div(batch, engine.layout.sizes["pipe"])


def requested_rate(job: Serve, ttft_s: Num, tpot_s: Num) -> Num | None:
    """Requests per second at these mean latencies; None if the job states no load.

    Users in a closed loop make their rate by Little's law: N / (TTFT + (output - 1) x TPOT).

    >>> requested_rate(Serve(prompt=1000, output=101, users=64), 0.5, 0.02)
    25.6
    """
    if job.users:
        return job.users / (ttft_s + ((job.output or 1) - 1) * tpot_s)
    return job.rate


def prompts_per_pass(engine: Engine) -> Num:
    """Number of prompts that an engine prefills at once: one for each shard of its batch."""
    return batch_shards(engine.layout, engine.layout.sizes)


def max_pass_tokens(engine: Engine) -> Num:
    """Largest number of tokens in one pass; the software's limit is per shard of the batch."""
    return engine.rates.overhead.max_tokens * prompts_per_pass(engine)


def decode_token_s(engine: Engine, job: Serve, batch: Num) -> Num:
    """Seconds per output token of a sequence if there were no prefill.

    With speculative decoding, the time of the draft model's passes and of the pass that verifies
    the drafted tokens, divided by the mean number of tokens that they yield.
    """
    tokens_per_sequence = 1 + job.drafted
    sequences = in_flight(engine, batch)
    pass_s = engine.decode(sequences, job.mean_context, tokens_per_sequence).step_s
    return speculative_token_s(pass_s, job.acceptance, job.drafted, job.draft_cost)


def prompts_s(engine: Engine, n: Num, length: Num, cached: Num = 0) -> Num:
    """Seconds to prefill `n` prompts on an idle engine, whose stages work on chunks at once.

    Arguments are those of `Engine.prefill`.
    """
    stages = engine.layout.sizes["pipe"]
    chunks = maximum(1.0, n * (length - cached) / max_pass_tokens(engine))
    return engine.prefill(n, length, cached).step_s * (chunks + stages - 1) / (chunks * stages)


def _prompt_s(engine: Engine, job: Serve) -> Num:
    """Seconds to prefill a prompt, except for its cached prefix, on an idle engine."""
    cached = job.prompt_tokens - job.fresh_tokens
    return prompts_s(engine, prompts_per_pass(engine), job.prompt_tokens, cached)


def _prefill_delay_s(engine: Engine, job: Serve, batch: Num) -> Num:
    """Seconds by which the prefill of one prompt delays the decoding sequences.

    With chunked prefill, a pass computes a chunk of prompts together with the decoding sequences
    and reads the weights once for both; several short prompts share a pass if enough of them
    arrive. Otherwise prompts run in separate passes. In a pipeline, the delay is the time of one
    stage, as the other stages work on other batches.
    """
    stages = engine.layout.sizes["pipe"]
    if not engine.rates.overhead.chunked_prefill:
        return _prompt_s(engine, job) / stages / prompts_per_pass(engine)
    decoding = in_flight(engine, batch)
    fresh = job.fresh_tokens
    cached = job.prompt_tokens - fresh
    budget = max_pass_tokens(engine)
    waiting: Num = fresh
    if job.output:
        waiting = fresh * maximum(1.0, decoding / job.output)
    chunk = minimum(maximum(budget - decoding, budget * MIN_CHUNK), waiting)
    pairs = chunk * cached + chunk * (fresh + 1) / 2
    kv_tokens = decoding * job.mean_context
    decode_s = engine.pass_time(Load(n_decoding=decoding, kv_tokens=kv_tokens)).step_s
    mixed = Load(
        n_decoding=decoding,
        kv_tokens=kv_tokens,
        prefill_tokens=chunk,
        query_key_pairs=pairs,
        n_sampled=decoding + 1,
    )
    return (engine.pass_time(mixed).step_s - decode_s) * fresh / chunk / stages


def colocated(engine: Engine, job: Serve, batch: Num) -> SteadyState:
    """Steady state of an engine that prefills, and always decodes `batch` sequences."""
    pass_s = decode_token_s(engine, job, batch)
    prefill_s = _prompt_s(engine, job)
    delay_s = _prefill_delay_s(engine, job, batch)
    delay_per_token: Num = 0.0
    if job.output is not None:
        delay_per_token = batch / job.output * delay_s
    tpot_s = pass_s + delay_per_token
    busy = delay_per_token / tpot_s
    return SteadyState(
        batch=batch,
        pass_s=pass_s,
        tpot_s=tpot_s,
        prefill_s=prefill_s,
        ttft_s=prefill_s + _queueing_s(busy, delay_s) + tpot_s / 2,
        tokens_per_s=batch / tpot_s,
        requests_per_s=_requests_per_s(job, batch, tpot_s),
        busy=busy,
    )


def decode_only(engine: Engine, job: Serve, batch: Num) -> SteadyState:
    """Steady state of an engine that only decodes: other engines prefill its prompts."""
    pass_s = decode_token_s(engine, job, batch)
    return SteadyState(
        batch=batch,
        pass_s=pass_s,
        tpot_s=pass_s,
        prefill_s=0.0 * pass_s,
        ttft_s=0.0 * pass_s,
        tokens_per_s=batch / pass_s,
        requests_per_s=_requests_per_s(job, batch, pass_s),
        busy=0.0 * pass_s,
    )


def prefill_only(engine: Engine, job: Serve, busy: Num) -> tuple[Num, Num]:
    """(requests per second, seconds of a prompt with queueing) of an engine that only prefills.

    Args:
        engine: the prefill engine.
        job: lengths of the requests.
        busy: utilization: fraction of the time that the engine is working.
    """
    prompt_s = _prompt_s(engine, job)
    interval_s = prompt_s / (engine.layout.sizes["pipe"] * prompts_per_pass(engine))
    return busy / interval_s, prompt_s + _queueing_s(busy, interval_s)


def _requests_per_s(job: Serve, batch: Num, tpot_s: Num) -> Num:
    """Finished requests per second; 0 if the job states no output length."""
    return batch / tpot_s / job.output if job.output else 0.0 * batch


def _queueing_s(busy: Num, service_s: Num) -> Num:
    """Mean seconds of waiting in an M/D/1 queue: busy x service_s / (2 (1 - busy)).

    This is the Pollaczek-Khinchine formula for a server with utilization `busy` whose requests take
    `service_s` seconds each.
    """
    utilisation = minimum(busy, MAX_UTILISATION)
    return where(busy > 0, utilisation * service_s / (2 * (1 - utilisation)), 0.0)
