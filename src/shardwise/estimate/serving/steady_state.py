"""An engine under steady traffic: the mean-field solution for equal requests. Book §8.

B sequences decode at once, with P prompt and G output tokens. On average B / G of them finish in a
pass, and as many prompts arrive: the time of prefill is amortised over the output tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.arrays import Num, ceil_div, maximum, minimum, where
from shardwise.estimate.serving.engine import Engine
from shardwise.estimate.serving.extra_traffic import batch_shards
from shardwise.estimate.serving.load import Load
from shardwise.formulas.inference import speculative_token_s
from shardwise.workload import Serve

MIN_CHUNK = 0.125  # of a pass, which prefill gets however many sequences decode
MAX_UTILISATION = 0.95  # of prefill: above it the queue is taken as overloaded


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """Means over the requests of one engine.

    Args:
        batch: sequences that decode at once.
        pass_s: seconds of a decoding step without prefill.
        tpot_s: time per output token.
        prefill_s: seconds of a prompt on an idle engine.
        ttft_s: time to first token, queueing included.
        tokens_per_s: output tokens.
        requests_per_s: finished requests; 0 where the job states no output length.
        busy: share of the time that is spent on prefill.
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
    """Sequences of one pass: a pipeline has as many batches in flight as stages."""
    return ceil_div(batch, engine.layout.sizes["pipe"])


def prompts_per_pass(engine: Engine) -> Num:
    """Prompts that an engine prefills at once: one for each shard of its batch."""
    return batch_shards(engine.layout, engine.layout.sizes)


def max_pass_tokens(engine: Engine) -> Num:
    """Largest number of tokens of one pass: the engine's limit holds for each rank of the batch."""
    return engine.rates.overhead.max_tokens * prompts_per_pass(engine)


def decode_token_s(engine: Engine, job: Serve, batch: Num) -> Num:
    """Seconds per output token without prefill.

    With speculative decoding: passes of the draft model and the pass that verifies the drafted
    tokens, divided by the accepted ones.
    """
    tokens_per_sequence = 1 + job.drafted
    sequences = in_flight(engine, batch)
    pass_s = engine.decode(sequences, job.mean_context, tokens_per_sequence).step_s
    return speculative_token_s(pass_s, job.acceptance, job.drafted, job.draft_cost)


def _prompt_s(engine: Engine, job: Serve) -> Num:
    """Seconds of a prompt on an idle engine, without its cached prefix."""
    cached = job.prompt_tokens - job.fresh_tokens
    return engine.prefill(prompts_per_pass(engine), job.prompt_tokens, cached).step_s


def _prefill_delay_s(engine: Engine, job: Serve, batch: Num) -> Num:
    """Seconds by which the prefill of one prompt delays the decoding sequences.

    In passes that mix both, weights are read once for the two; otherwise a prompt has passes of its
    own. Several short prompts share a pass where enough of them arrive. A pipeline works on other
    batches meanwhile: the delay is the time of one stage.
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
    """Steady state of an engine that prefills and decodes, `batch` sequences at all times."""
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
        busy: share of its time that it works.
    """
    prompt_s = _prompt_s(engine, job)
    interval_s = prompt_s / (engine.layout.sizes["pipe"] * prompts_per_pass(engine))
    return busy / interval_s, prompt_s + _queueing_s(busy, interval_s)


def _requests_per_s(job: Serve, batch: Num, tpot_s: Num) -> Num:
    """Finished requests per second; 0 where the job states no output length."""
    return batch / tpot_s / job.output if job.output else 0.0 * batch


def _queueing_s(busy: Num, service_s: Num) -> Num:
    """Mean wait in an M/D/1 queue: busy s / (2 (1 - busy)) (Pollaczek-Khinchine)."""
    utilisation = minimum(busy, MAX_UTILISATION)
    return where(busy > 0, utilisation * service_s / (2 * (1 - utilisation)), 0.0)
