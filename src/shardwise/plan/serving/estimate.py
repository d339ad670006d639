"""The numbers of a deployment as a plan has them."""

from __future__ import annotations

from shardwise import units
from shardwise.estimate.serving.steady_state import at_once, in_flight
from shardwise.formulas import cost, inference
from shardwise.formulas.flops import REFERENCE_MFU, forward_flops, mfu
from shardwise.models import ModelConfig, count
from shardwise.plan.machine import memory_bytes
from shardwise.plan.schema import serving
from shardwise.plan.schema.common import RatesUsed
from shardwise.plan.serving.time_parts import (
    bound,
    critical_batch,
    decode_range,
    kv_batch,
    parts,
    prefill_range,
)
from shardwise.search.serving.candidate import Candidate, Server


def estimate(config: ModelConfig, chosen: Candidate) -> serving.ServingEstimate:
    """Every number that the plan predicts."""
    server, shares = chosen.server, chosen.server.rates.shares
    output = chosen.job.output
    most = chosen.most_requests_per_s if output else None
    hourly = server.rates.chip.usd_per_chip_hour
    decoding = _decode(config, chosen)
    return serving.ServingEstimate(
        bound=decoding.bound,
        prefill=_prefill(config, chosen),
        decode=decoding,
        ttft_s=chosen.ttft_s,
        tpot_s=chosen.tpot_s,
        tokens_per_s=chosen.tokens_per_s,
        tokens_per_s_per_chip=chosen.tokens_per_s / chosen.chips,
        requests_per_s=chosen.requests_per_s if output else None,
        most_requests_per_s=most,
        utilisation=chosen.job.rate / most if chosen.job.rate and most else 1.0,
        usd_per_million_tokens=usd(chosen, hourly) if hourly else None,
        usd_per_hour=chosen.chips * hourly if hourly else None,
        memory_bytes_per_chip=memory_bytes(server.memory(chosen.batch)),
        prefill_memory_bytes_per_chip=memory_bytes(
            chosen.reader.memory(at_least_one(chosen.reader))
        )
        if chosen.reader
        else None,
        rates=RatesUsed(
            name=shares.name, as_of=shares.as_of, source=shares.source, spread=shares.spread
        ),
    )


def at_least_one(reader: Server) -> int:
    """Sequences whose prompts an engine reads at once."""
    return int(at_once(reader.engine))


def _decode(config: ModelConfig, chosen: Candidate) -> serving.Decode:
    server, job, batch = chosen.server, chosen.job, chosen.batch
    pass_, found = server.decode(batch), parts(server.decode(batch))
    here = int(in_flight(server.engine, batch))
    critical = critical_batch(config, server)
    return serving.Decode(
        step_s=decode_range(server, batch),
        batch=batch,
        in_flight=here,
        context=job.mean_context,
        parts=found,
        bound=bound(pass_, flops=here > critical),
        kv_bytes_per_token=float(count.kv_bytes_per_token(config, job.kv)),
        kv_bytes_per_sequence=float(count.kv_cache_bytes(config, job.context, job.kv)),
        max_batch=server.max_batch,
        critical_batch=critical,
        kv_batch=kv_batch(server),
        tokens_per_pass=inference.speculative_tokens(job.acceptance, job.drafted),
    )


def _prefill(config: ModelConfig, chosen: Candidate) -> serving.Prefill:
    job, server = chosen.job, chosen.reader or chosen.server
    time, n = server.prefill(), at_least_one(server)
    active = count.parameters(config).active
    peak = server.rates.chip.peak(server.rates.dtype(head=False))
    tokens = float(job.fresh_tokens)
    flops = forward_flops(active, tokens) * n
    reference = inference.prefill_s(
        active, tokens, n_chips=server.n_chips, flops_per_s=peak, mfu=REFERENCE_MFU
    )
    same_size = server.n_chips / chosen.server.n_chips
    return serving.Prefill(
        step_s=prefill_range(server),
        tokens=tokens,
        prompts=n,
        parts=parts(time),
        bound=bound(time, flops=float(time.weights) > 0),
        mfu=mfu(flops, float(time.step_s), server.n_chips, peak),
        busy=chosen.busy if chosen.reader else float(chosen.steady.busy),
        transfer_s=chosen.transfer_s,
        servers=_ratio(chosen, float(time.step_s) / n * same_size),
        at_mfu=serving.PrefillAtMfu(
            mfu=REFERENCE_MFU,
            step_s=float(reference),
            servers=_ratio(chosen, float(reference) * same_size),
        ),
    )


def _ratio(chosen: Candidate, prompt_s: float) -> float | None:
    """Engines for prompts to one that generates and is full. Book §8."""
    job = chosen.job
    if not job.output:
        return None
    token_s = chosen.server.per_token(float(chosen.server.decode(chosen.batch).step_s))
    return float(inference.prefill_servers(prompt_s, token_s, chosen.batch, job.output))


def usd(chosen: Candidate, hourly: float) -> serving.UsdPerMillion:
    """Input and output share the hour as they share the chips: by engines, or by their time."""
    job, chips = chosen.job, chosen.chips
    if not job.output:
        server = chosen.server
        read = job.prompt_tokens * at_least_one(server) / float(server.prefill().step_s)
        reads = cost.usd_per_million_tokens(read / server.n_chips, hourly)
        generates = cost.usd_per_million_tokens(chosen.tokens_per_s / chips, hourly)
        return serving.UsdPerMillion(input=float(reads), output=float(generates))
    if chosen.reader:
        used = chosen.reader.count * chosen.reader.n_chips
        share = used / (used + chosen.server.count * chosen.server.n_chips)
    else:
        share = float(chosen.steady.busy)
    per_s = chips * hourly / units.HOUR
    return serving.UsdPerMillion(
        input=1e6 * share * per_s / (chosen.requests_per_s * job.prompt_tokens),
        output=1e6 * (1 - share) * per_s / chosen.tokens_per_s,
    )
