"""The predicted numbers of a deployment, in the form of a serving plan."""

from __future__ import annotations

from dataclasses import replace

from shardwise import units
from shardwise.estimate.serving.chip_rates import ServeRates
from shardwise.estimate.serving.spread import spread
from shardwise.estimate.serving.steady_state import in_flight, prompts_per_pass
from shardwise.formulas import cost, inference
from shardwise.formulas.flops import REFERENCE_MFU, forward_flops, mfu
from shardwise.models import ModelConfig, count
from shardwise.plan.machine import memory_bytes, rates_used
from shardwise.plan.schema import serving
from shardwise.plan.schema.common import RatesUsed
from shardwise.plan.schema.traffic import TrafficEstimate
from shardwise.plan.serving.time_parts import (
    bound,
    critical_batch,
    decode_range,
    is_compute_bound,
    kv_batch,
    parts,
    prefill_range,
    tpot_parts,
)
from shardwise.search.serving.candidate import Candidate, Server


def estimate(config: ModelConfig, chosen: Candidate) -> serving.ServingEstimate:
    """Make the estimate of a plan from the deployment that the search chose."""
    server = chosen.server
    job = chosen.job
    requests_per_s = None
    most_requests_per_s = None
    utilisation = 1.0
    if job.output:
        requests_per_s = chosen.requests_per_s
        most_requests_per_s = chosen.most_requests_per_s
        if job.states_load and most_requests_per_s:
            utilisation = chosen.requests_per_s / most_requests_per_s
    prefill_memory = None
    if chosen.prefill_server:
        prefill_memory = memory_bytes(
            chosen.prefill_server.memory(prompts_at_once(chosen.prefill_server))
        )
    price = server.rates.chip.usd_per_chip_hour
    decode = _decode(config, chosen)
    return serving.ServingEstimate(
        bound=decode.bound,
        prefill=_prefill(config, chosen),
        decode=decode,
        ttft_s=chosen.ttft_s,
        tpot_s=chosen.tpot_s,
        tokens_per_s=chosen.tokens_per_s,
        tokens_per_s_per_chip=chosen.tokens_per_s / chosen.chips,
        requests_per_s=requests_per_s,
        most_requests_per_s=most_requests_per_s,
        utilisation=utilisation,
        usd_per_million_tokens=usd_per_million(chosen),
        usd_per_hour=chosen.chips * price if price else None,
        memory_bytes_per_chip=memory_bytes(server.memory(chosen.batch)),
        prefill_memory_bytes_per_chip=prefill_memory,
        rates=_rates(server.rates),
        tpot_parts=tpot_parts(
            server, decode.in_flight, chosen.tpot_s, prefills=not chosen.prefill_server
        ),
    )


def with_traffic(
    estimate: serving.ServingEstimate, chosen: Candidate, traffic: TrafficEstimate
) -> serving.ServingEstimate:
    """The estimate with metrics of simulated requests, of which the parts of TPOT are then, too."""
    simulated = tpot_parts(
        chosen.server,
        traffic.decoding,
        traffic.tpot_s.mean,
        prefills=not chosen.prefill_server,
    )
    return replace(estimate, traffic=traffic, tpot_parts=simulated)


def _rates(rates: ServeRates) -> RatesUsed:
    """The entry of the rates in a plan, with the spread of its TPOT."""
    shares = rates.efficiency
    if not (rates.ideal or rates.measured):
        shares = replace(shares, spread=spread("decode", rates.overhead.name))
    return rates_used(shares)


def prompts_at_once(server: Server) -> int:
    """Number of prompts that an engine prefills in one pass."""
    return int(prompts_per_pass(server.engine))


def _decode(config: ModelConfig, chosen: Candidate) -> serving.Decode:
    server = chosen.server
    job = chosen.job
    batch = chosen.batch
    time = server.decode(batch)
    return serving.Decode(
        step_s=decode_range(server, batch),
        batch=batch,
        in_flight=int(in_flight(server.engine, batch)),
        context=job.mean_context,
        parts=parts(time),
        bound=bound(time, compute_bound=is_compute_bound(server, batch)),
        kv_bytes_per_token=float(count.kv_bytes_per_token(config, job.kv)),
        kv_bytes_per_sequence=float(count.kv_cache_bytes(config, job.context, job.kv)),
        max_batch=server.max_batch,
        critical_batch=critical_batch(config, server),
        kv_batch=kv_batch(server),
        tokens_per_pass=inference.speculative_tokens(job.acceptance, job.drafted),
    )


def _prefill(config: ModelConfig, chosen: Candidate) -> serving.Prefill:
    job = chosen.job
    server = chosen.prefill_server or chosen.server
    time = server.prefill()
    pass_s = float(time.step_s)
    # A pass has a prompt for each shard of the batch. It is on one pipeline stage at a time, while
    # the other stages have other prompts.
    n_prompts = prompts_at_once(server)
    n_stages = server.layout.sizes["pipe"]
    stage_chips = server.n_chips / n_stages
    n_active = count.parameters(config).active
    peak = server.rates.chip.peak(server.rates.dtype(head=False))
    tokens = float(job.fresh_tokens)
    flops = forward_flops(n_active, tokens) * n_prompts
    reference_s = inference.prefill_s(
        n_active, tokens * n_prompts, n_chips=stage_chips, flops_per_s=peak, mfu=REFERENCE_MFU
    )

    def prefill_engines(seconds: float) -> float | None:
        """Engines with the chips of a decode engine, if a pass of this one takes `seconds`."""
        same_size = server.n_chips / chosen.server.n_chips
        return _prefill_engines(chosen, seconds / (n_prompts * n_stages) * same_size)

    return serving.Prefill(
        step_s=prefill_range(server),
        tokens=tokens,
        prompts=n_prompts,
        parts=parts(time),
        bound=bound(time, compute_bound=float(time.matmuls) > 0),
        mfu=mfu(flops, pass_s, stage_chips, peak),
        busy=chosen.prefill_busy if chosen.prefill_server else float(chosen.steady.busy),
        transfer_s=chosen.transfer_s,
        servers=prefill_engines(pass_s),
        at_mfu=serving.PrefillAtMfu(
            mfu=REFERENCE_MFU, step_s=reference_s, servers=prefill_engines(reference_s)
        ),
    )


def _prefill_engines(chosen: Candidate, prompt_s: float) -> float | None:
    """Prefill engines that keep one decode engine busy; None without an output. Book §8.

    Args:
        prompt_s: seconds of a prompt on a prefill engine of the size of the decode engine.
    """
    output = chosen.job.output
    if not output:
        return None
    token_s = chosen.server.per_token(float(chosen.server.decode(chosen.batch).step_s))
    return float(inference.prefill_servers(prompt_s, token_s, chosen.batch, output))


def output_usd(chosen: Candidate) -> float | None:
    """Dollars per million output tokens; None if the chip has no public price."""
    usd = usd_per_million(chosen)
    return usd.output if usd else None


def usd_per_million(chosen: Candidate) -> serving.UsdPerMillion | None:
    """Dollars per million input and output tokens; None if the chip has no public price.

    Input tokens bear the price of the prefill engines, output tokens that of the decode engines. If
    the same engines do both, each bears its share of the time.
    """
    server = chosen.server
    job = chosen.job
    price = server.rates.chip.usd_per_chip_hour
    if not price:
        return None
    if not job.output:
        prompt_tokens = job.prompt_tokens * prompts_at_once(server)
        prefill_rate = prompt_tokens / float(server.prefill().step_s) / server.n_chips
        decode_rate = chosen.tokens_per_s / chosen.chips
        return serving.UsdPerMillion(
            input=float(cost.usd_per_million_tokens(prefill_rate, price)),
            output=float(cost.usd_per_million_tokens(decode_rate, price)),
        )
    if chosen.prefill_server:
        prefill_chips = chosen.prefill_server.count * chosen.prefill_server.n_chips
        prefill_share = prefill_chips / (prefill_chips + server.count * server.n_chips)
    else:
        prefill_share = float(chosen.steady.busy)
    usd_per_s = chosen.chips * price / units.HOUR
    prompt_tokens_per_s = chosen.requests_per_s * job.prompt_tokens
    return serving.UsdPerMillion(
        input=1e6 * prefill_share * usd_per_s / prompt_tokens_per_s,
        output=1e6 * (1 - prefill_share) * usd_per_s / chosen.tokens_per_s,
    )
