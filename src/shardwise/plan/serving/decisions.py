"""The decisions that lead to a serving plan, in the order of section 8 of the book."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.errors import ShardwiseError
from shardwise.estimate.chip_memory import capacity_bytes
from shardwise.estimate.serving.pass_time import active_experts
from shardwise.estimate.serving.steady_state import in_flight
from shardwise.formulas import inference, thresholds
from shardwise.models import count
from shardwise.plan.decisions import (
    Batch,
    Caches,
    Decision,
    Experts,
    Machine,
    OneChip,
    PrefillEngines,
    ServingTensor,
    comparison,
)
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.serving.reasons import tensor_limit
from shardwise.plan.serving.time_parts import critical_batch
from shardwise.search import fit
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.search.serving.runtime_limits import min_kv_heads


def decision_path(chosen: Candidate, plan: ServingPlan) -> tuple[Decision, ...]:
    """All decisions that apply to the model and the machine, in order."""
    return (
        _chip(chosen),
        *_machine(chosen),
        *_tensor(chosen),
        *_caches(chosen),
        *_experts(chosen),
        _batch(chosen, plan),
        *_context(chosen),
        *_prefill_engines(chosen, plan),
    )


def kv_context(server: Server) -> float | None:
    """Context above which reading KV caches takes longer than FLOPs, at every batch. Book §8.

    S > 2 P W / (C kv) at peak rates: P are the active parameters, W is the HBM bandwidth, C the
    peak FLOP/s and kv the bytes of KV cache per token. None if no cache grows with the context.
    """
    chip = server.rates.chip
    kv_bytes = float(count.kv_bytes_per_token(server.config, server.job.kv))
    if not kv_bytes:
        return None
    return float(
        inference.kv_bound_context(
            count.parameters(server.config).active,
            kv_bytes,
            hbm_bytes_per_s=chip.need("hbm.bandwidth"),
            flops_per_s=chip.peak(server.rates.dtype(head=False)),
        )
    )


def _chip(chosen: Candidate) -> Decision:
    """Whether weights and one sequence fit in the memory of one chip."""
    server = chosen.server
    job = chosen.job
    n_parameters = count.parameters(server.config).total
    weights_bytes = n_parameters * units.bytes_per_element(job.weights)
    cache_bytes = float(count.kv_cache_bytes(server.config, job.context, job.kv))
    capacity = capacity_bytes(server.rates.chip)
    return OneChip(
        **comparison("chip", weights_bytes + cache_bytes, capacity, "B"),
        dtype=job.weights,
        weights_bytes=weights_bytes,
        cache_bytes=cache_bytes,
    )


def _machine(chosen: Candidate) -> Iterator[Decision]:
    """Compare the chips of an engine with the smallest machine that fits."""
    server = chosen.server
    try:
        smallest = fit.fit(server.config, server.rates.chip, chosen.job, ideal=server.rates.ideal)
    except ShardwiseError:
        return
    yield Machine(
        **comparison("machine", server.n_chips, smallest.n_chips, "chips", server.count),
        smallest=smallest.system,
        sequences=smallest.sequences,
    )


def _tensor(chosen: Candidate) -> Iterator[Decision]:
    """Compare the tensor degree with its limits, if compute-bound and if memory-bound."""
    rates = chosen.server.rates
    bound = tensor_limit(chosen)
    if bound is None:
        return
    try:
        network = "ici" if rates.chip.ici else "node"
        alpha = thresholds.alpha(rates.chip, network, rates.dtype(head=False))
    except ShardwiseError:
        return
    compute_limit = thresholds.tensor_limit(bound.d_ff, alpha, n_axes=bound.axes)
    yield ServingTensor(
        **comparison("tensor", bound.tensor, bound.limit, "chips", bound.tensor),
        compute_limit=float(compute_limit),
        axes=bound.axes,
        rows=bound.rows,
    )


def _caches(chosen: Candidate) -> Iterator[Decision]:
    """Compare the tensor degree with the KV heads; beyond them, caches need another sharding."""
    server = chosen.server
    tensor = server.layout.mesh.tensor
    attentions = server.config.attentions
    if attentions and tensor > 1:
        yield Caches(
            **comparison("kv", tensor, min_kv_heads(server.config), "heads", tensor),
            kv=server.layout.kv,
            latent=any(attention.mla for attention, _ in attentions),
        )


def _experts(chosen: Candidate) -> Iterator[Decision]:
    """The expert parallelism, and how many experts a pass reads."""
    server = chosen.server
    for moe, _ in server.config.moes[:1]:
        rows = float(in_flight(server.engine, chosen.batch))
        share = active_experts(server.engine, moe.n_experts, moe.experts_per_token, rows)
        n_read = moe.n_experts * share
        fields = comparison("expert", n_read, moe.n_experts, "experts", server.layout.mesh.expert)
        fields["met"] = n_read > moe.n_experts / 2
        yield Experts(**fields, rows=rows, experts_per_token=moe.experts_per_token)


def _batch(chosen: Candidate, plan: ServingPlan) -> Decision:
    """Compare the batch with the critical batch."""
    decode = plan.estimate.decode
    critical = critical_batch(chosen.server.config, chosen.server)
    return Batch(
        **comparison("batch", decode.in_flight, critical, "sequences", decode.batch, at_least=True),
        kv_batch=decode.kv_batch,
        max_batch=decode.max_batch,
    )


def _context(chosen: Candidate) -> Iterator[Decision]:
    """Compare the mean context with the one above which KV caches bound every batch."""
    limit = kv_context(chosen.server)
    if limit is not None:
        yield Decision(**comparison("context", chosen.job.mean_context, limit, "tokens"))


def _prefill_engines(chosen: Candidate, plan: ServingPlan) -> Iterator[Decision]:
    """The number of prefill engines that keep one decode engine busy."""
    prefill = plan.estimate.prefill
    at_mfu = prefill.at_mfu
    if prefill.servers is None or at_mfu.servers is None:
        return
    n_engines = chosen.prefill_server.count if chosen.prefill_server else None
    yield PrefillEngines(
        **comparison("prompts", prefill.servers, 1.0, "engines", n_engines),
        step_s=prefill.step_s.expected,
        mfu=at_mfu.mfu,
        at_mfu_step_s=at_mfu.step_s,
        at_mfu_servers=at_mfu.servers,
    )
