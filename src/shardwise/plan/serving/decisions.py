"""The decisions of serving in the order of the book's section 8, with the numbers of one plan."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.errors import ShardwiseError
from shardwise.estimate.serving.steady_state import in_flight
from shardwise.formulas import experts, inference, thresholds
from shardwise.models import Moe, count
from shardwise.plan.decisions import (
    Batch,
    Caches,
    Decision,
    Experts,
    Machine,
    OneChip,
    PrefillEngines,
    ServingTensor,
)
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.serving.time_parts import critical_batch
from shardwise.search import fit
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.search.serving.evaluate import min_kv_heads


def path(chosen: Candidate, plan: ServingPlan) -> tuple[Decision, ...]:
    """Every question that the model and the machine lead to, in order."""
    return (
        *_chip(chosen),
        *_machine(chosen),
        *_tensor(chosen),
        *_caches(chosen),
        *_experts(chosen),
        _batch(chosen, plan),
        *_context(chosen),
        *_prompts(chosen, plan),
    )


def kv_context(server: Server) -> float | None:
    """S > 2 P W / (C kv), at peak rates: contexts whose caches outlast FLOPs at every batch.

    Book §8. P are the parameters that a token meets; None without caches that grow.
    """
    chip, job = server.rates.chip, server.job
    each = float(count.kv_bytes_per_token(server.config, job.kv))
    if not each:
        return None
    return float(
        inference.kv_bound_context(
            count.parameters(server.config).active,
            each,
            hbm_bytes_per_s=chip.need("hbm.bandwidth"),
            flops_per_s=chip.peak(server.rates.dtype(head=False)),
        )
    )


def _chip(chosen: Candidate) -> Iterator[Decision]:
    server, job = chosen.server, chosen.job
    weights = count.parameters(server.config).total * units.bytes_per_element(job.weights)
    one = float(count.kv_cache_bytes(server.config, job.context, job.kv))
    hbm = server.rates.chip.need("hbm.capacity")
    met = weights + one <= hbm
    yield OneChip(
        step="chip",
        number=weights + one,
        limit=hbm,
        unit="B",
        met=met,
        degree=None,
        dtype=job.weights,
        weights_bytes=weights,
        cache_bytes=one,
    )


def _machine(chosen: Candidate) -> Iterator[Decision]:
    """The smallest machine, and what was taken."""
    server, job = chosen.server, chosen.job
    try:
        least = fit.fit(server.config, server.rates.chip, job)
    except ShardwiseError:
        return
    n = server.n_chips
    yield Machine(
        step="machine",
        number=n,
        limit=least.n_chips,
        unit="chips",
        met=n <= least.n_chips,
        degree=server.count,
        smallest=least.system,
        sequences=least.sequences,
    )


def _tensor(chosen: Candidate) -> Iterator[Decision]:
    """The limits of tensor parallelism: bound by FLOPs, and beyond it while HBM binds."""
    server = chosen.server
    chip, config = server.rates.chip, server.config
    n = server.layout.mesh.tensor
    if n < 2 or config.is_moe:
        return
    try:
        beta = inference.beta(chip)
        dtype = server.rates.dtype(head=False)
        alpha = thresholds.alpha(chip, "ici" if chip.ici else "node", dtype)
    except ShardwiseError:
        return
    axes = max(1, len(server.placement.span(("tensor",)).rings))
    rows = int(in_flight(server.engine, chosen.batch))
    flops = float(thresholds.tensor_limit(config.d_ff, alpha, n_axes=axes))
    memory = float(inference.memory_bound_tensor_limit(config.d_ff, rows, beta, n_axes=axes))
    yield ServingTensor(
        step="tensor",
        number=n,
        limit=memory,
        unit="chips",
        met=n <= memory,
        degree=n,
        compute_limit=flops,
        axes=axes,
        rows=rows,
    )


def _caches(chosen: Candidate) -> Iterator[Decision]:
    """By heads, then by sequences or along them."""
    server = chosen.server
    tensor, heads = server.layout.mesh.tensor, min_kv_heads(server.config)
    if not server.config.attentions or tensor < 2:
        return
    met, kv = tensor <= heads, server.layout.kv
    yield Caches(
        step="kv",
        number=tensor,
        limit=heads,
        unit="heads",
        met=met,
        degree=tensor,
        kv=kv,
        latent=any(a.mla for a, _ in server.config.attentions),
    )


def _experts(chosen: Candidate) -> Iterator[Decision]:
    """How experts are dealt out, and how many of them a pass reads."""
    server = chosen.server
    moe = next((g.layer.ffn for g in server.config.groups if isinstance(g.layer.ffn, Moe)), None)
    if moe is None:
        return
    rows = float(in_flight(server.engine, chosen.batch))
    hit = moe.n_experts * experts.hit_share(moe.n_experts, moe.experts_per_token, rows)
    n = server.layout.mesh.expert
    yield Experts(
        step="expert",
        number=hit,
        limit=moe.n_experts,
        unit="experts",
        met=hit > moe.n_experts / 2,
        degree=n,
        rows=rows,
        experts_per_token=moe.experts_per_token,
    )


def _batch(chosen: Candidate, plan: ServingPlan) -> Decision:
    """Where the batch stands between reading and FLOPs, and what memory allows."""
    told, server = plan.estimate.decode, chosen.server
    critical = critical_batch(server.config, server)
    here = told.in_flight
    return Batch(
        step="batch",
        number=here,
        limit=critical,
        unit="sequences",
        met=here >= critical,
        degree=told.batch,
        kv_batch=told.kv_batch,
        max_batch=told.max_batch,
    )


def _context(chosen: Candidate) -> Iterator[Decision]:
    limit = kv_context(chosen.server)
    if limit is None:
        return
    here = chosen.job.mean_context
    met = here <= limit
    yield Decision(
        step="context",
        number=here,
        limit=limit,
        unit="tokens",
        met=met,
        degree=None,
    )


def _prompts(chosen: Candidate, plan: ServingPlan) -> Iterator[Decision]:
    """Engines for prompts to one that generates."""
    told = plan.estimate.prefill
    if told.servers is None or told.at_mfu.servers is None:
        return
    yield PrefillEngines(
        step="prompts",
        number=told.servers,
        limit=1.0,
        unit="engines",
        met=told.servers <= 1,
        degree=chosen.reader.count if chosen.reader else None,
        step_s=told.step_s.expected,
        mfu=told.at_mfu.mfu,
        at_mfu_step_s=told.at_mfu.step_s,
        at_mfu_servers=told.at_mfu.servers,
    )
