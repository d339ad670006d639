"""An engine under steady traffic: the mean-field answer for equal requests. Book §8.

B sequences decode at once, P tokens of a prompt, G of an answer. In the mean B / G of them end in a
pass, and as many prompts come in: what prompts take is shared out over the tokens of answers.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.arrays import Num, ceil_div, maximum, minimum, where
from shardwise.estimate.serving.engine import Engine
from shardwise.estimate.serving.extra_traffic import batch_shards
from shardwise.estimate.serving.load import Load
from shardwise.formulas.inference import speculative_token_s
from shardwise.workload import Serve

LEAST_CHUNK = 0.125  # of a pass that prompts get, however many sequences generate
BUSY = 0.95  # above this share of its time an engine of prompts is taken as overrun


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """Means over requests, of one engine.

    Args:
        batch: sequences that decode at once.
        pass_s: seconds of a decoding pass without prompts.
        tpot_s: seconds between two tokens of a request.
        prefill_s: seconds of a prompt on an idle engine.
        ttft_s: seconds to its first token, with waiting.
        tokens_per_s: generated.
        requests_per_s: that end; 0 where no length of answers is stated.
        busy: share of the time that goes to prompts.
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


def decode_s(engine: Engine, job: Serve, batch: Num) -> Num:
    """Seconds between two tokens of a sequence when no prompt comes in between.

    With drafted tokens: the pass that scores them, the small model's passes before it, over the
    tokens that are kept.
    """
    drafted = 1 + job.drafted
    pass_s = engine.decode(in_flight(engine, batch), job.mean_context, drafted).step_s
    return speculative_token_s(pass_s, job.acceptance, job.drafted, job.draft_cost)


def at_once(engine: Engine) -> Num:
    """Prompts that an engine reads at once: one on each part of its batch."""
    return batch_shards(engine.layout, engine.layout.sizes)


def pass_tokens(engine: Engine) -> Num:
    """Tokens of one pass at most: the software's limit holds for each rank of the batch."""
    return engine.rates.engine.chunk * at_once(engine)


def prompt_s(engine: Engine, job: Serve) -> Num:
    """Seconds of a prompt on an idle engine, its known prefix left out."""
    fresh = job.fresh_tokens
    return engine.prefill(at_once(engine), job.prompt_tokens, job.prompt_tokens - fresh).step_s


def beside_s(engine: Engine, job: Serve, batch: Num) -> Num:
    """Seconds by which one prompt delays the sequences that decode.

    In passes that mix both, weights are read once for the two; else a prompt has its own passes.
    Several short prompts share a pass where so many come in.
    A pipeline works on other batches meanwhile: it delays by what one stage takes.
    """
    stages = engine.layout.sizes["pipe"]
    software = engine.rates.engine
    if not software.mixes:
        return prompt_s(engine, job) / stages / at_once(engine)
    here, fresh = in_flight(engine, batch), job.fresh_tokens
    known = job.prompt_tokens - fresh
    budget = pass_tokens(engine)
    waiting = fresh * maximum(1.0, here / job.output) if job.output else fresh
    chunk = minimum(maximum(budget - here, budget * LEAST_CHUNK), waiting)
    pairs = chunk * known + chunk * (fresh + 1) / 2
    keys = here * job.mean_context
    plain = engine.pass_time(Load(decode=here, kv_tokens=keys)).step_s
    mixed = Load(decode=here, kv_tokens=keys, prefill=chunk, pairs=pairs, sampled=here + 1)
    return (engine.pass_time(mixed).step_s - plain) * fresh / chunk / stages


def aggregated(engine: Engine, job: Serve, batch: Num) -> Steady:
    """An engine that reads prompts and generates: `batch` sequences at all times."""
    pass_s = decode_s(engine, job, batch)
    prefill_s, added_s = prompt_s(engine, job), beside_s(engine, job, batch)
    if job.output is None:
        per_token: Num = 0.0
    else:
        per_token = batch / job.output * added_s
    tpot_s = pass_s + per_token
    busy = per_token / tpot_s
    return Steady(
        batch=batch,
        pass_s=pass_s,
        tpot_s=tpot_s,
        prefill_s=prefill_s,
        ttft_s=prefill_s + _wait_s(busy, added_s) + tpot_s / 2,
        tokens_per_s=batch / tpot_s,
        requests_per_s=batch / tpot_s / job.output if job.output else 0.0 * batch,
        busy=busy,
    )


def decoding_only(engine: Engine, job: Serve, batch: Num) -> Steady:
    """An engine that only generates: others read its prompts."""
    pass_s = decode_s(engine, job, batch)
    return Steady(
        batch=batch,
        pass_s=pass_s,
        tpot_s=pass_s,
        prefill_s=0.0 * pass_s,
        ttft_s=0.0 * pass_s,
        tokens_per_s=batch / pass_s,
        requests_per_s=batch / pass_s / job.output if job.output else 0.0 * batch,
        busy=0.0 * pass_s,
    )


def _wait_s(busy: Num, service_s: Num) -> Num:
    """Mean wait for the prompts before: M/D/1, busy s / (2 (1 - busy)) (Pollaczek-Khinchine)."""
    held = minimum(busy, BUSY)
    return where(busy > 0, held * service_s / (2 * (1 - held)), 0.0)


def reading_only(engine: Engine, job: Serve, busy: Num) -> tuple[Num, Num]:
    """(requests per second, seconds to read one with waiting) of an engine of prompts.

    Args:
        busy: share of its time that it reads.
    """
    service = prompt_s(engine, job)
    apart = service / (engine.layout.sizes["pipe"] * at_once(engine))  # seconds from end to end
    return busy / apart, service + _wait_s(busy, apart)
