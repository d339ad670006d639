"""Changes that would make a deployment faster or cheaper, each with its predicted numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from shardwise.errors import ShardwiseError
from shardwise.models import Attention, ModelConfig
from shardwise.plan.serving.estimate import output_usd
from shardwise.plan.serving.reasons import on_twice_the_chips, with_gathered_weights
from shardwise.plan.serving.refusals import NARROW_DTYPES
from shardwise.plan.serving.time_parts import usual_compute
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.search.serving.legal import batch_unit
from shardwise.search.serving.rank import Request
from shardwise.search.serving.runtime_limits import min_kv_heads
from shardwise.strategy.serving_layout import ServeLayout
from shardwise.units import bytes_per_element
from shardwise.vocabulary import KV_SPLITS
from shardwise.workload import Serve

N_DRAFTED = 3  # draft tokens per pass of the change to speculative decoding
CACHED_SHARE = 0.5  # share of prompt tokens that hit, in the change to a prefix cache
WINDOW_KEYS = 4096  # keys in the change to a sliding window, as in Mistral 7B, arXiv 2310.06825


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How a deployment differs from the plan's.

    Args:
        kind: "none" for the plan itself; "weights" or "kv" in another `dtype`; half the context;
            `n` "drafted" tokens a pass, of which a `share` is accepted; a "prefix_cache" that a
            `share` of prompt tokens hits; `n` "kv_heads"; a sliding "window" of `n` keys; the
            largest batch that fits; twice the chips; weights "gathered" by FSDP; or "searched" for
            the best deployment of a new search.
    """

    kind: Literal[
        "none", "weights", "kv", "half_context", "drafted", "prefix_cache", "kv_heads", "window",
        "full_batch", "twice_the_chips", "gathered", "searched",
    ]  # fmt: skip
    dtype: str = ""
    n: int = 0
    share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The predicted numbers of a deployment that differs from the plan's in one respect.

    Args:
        mesh, hardware: mesh and machine of an engine, if they differ from the plan's.
        tpot_s, ttft_s: mean seconds per output token, and to the first token.
        usd_per_million_output_tokens: None if the chip has no public price.
        max_batch: sequences that fit in one engine.
    """

    differs: Difference
    batch: int
    mesh: dict[str, int] | None
    hardware: str | None
    tpot_s: float
    ttft_s: float
    tokens_per_s_per_chip: float
    usd_per_million_output_tokens: float | None
    max_batch: int


def decode_engines_alone(chosen: Candidate) -> Candidate:
    """The deployment without bounds on rate and latency, and without separate prefill engines."""
    server = chosen.server
    job = replace(chosen.job.without_load(), batch=None)
    n_chips = chosen.chips
    if chosen.prefill_server:
        job = replace(job, prompt=None, output=None, context=round(job.mean_context))
        n_chips = server.count * server.n_chips
    server = replace(server, job=job, rates=replace(server.rates, job=job))
    return replace(
        chosen, server=server, prefill_server=None, prefill_busy=0.0, chips=n_chips, transfer_s=0.0
    )


def make_change(
    difference: Difference, candidate: Candidate, *, other_engine: bool = False
) -> Change:
    """Make the `Change` with the numbers of a changed deployment.

    Args:
        other_engine: whether its engines have another mesh or machine than the plan's.
    """
    server = candidate.server
    mesh = None
    hardware = None
    if other_engine:
        mesh = {**server.layout.sizes, "data": 1}
        hardware = server.system.name
    return Change(
        differs=difference,
        batch=candidate.batch,
        mesh=mesh,
        hardware=hardware,
        tpot_s=candidate.tpot_s,
        ttft_s=candidate.ttft_s,
        tokens_per_s_per_chip=candidate.tokens_per_s / candidate.chips,
        usd_per_million_output_tokens=output_usd(candidate),
        max_batch=server.max_batch,
    )


def changes(chosen: Candidate) -> tuple[Change, ...]:
    """Evaluate all changes that apply; the unchanged deployment comes first.

    A change keeps batch and mesh unless it is a change of these. Each uses its best sharding of KV
    caches.

    Args:
        chosen: the decode engines, from `decode_engines_alone`.
    """
    server = chosen.server
    rows = [make_change(Difference(kind="none"), chosen)]
    for difference, job in _job_changes(chosen):
        rows += _best_change(difference, chosen, server.config, job)
    for difference, config in _model_changes(server.config, chosen.job):
        rows += _best_change(difference, chosen, config, chosen.job)
    if server.max_batch > chosen.batch:
        full = replace(chosen, batch=server.max_batch)
        rows.append(make_change(Difference(kind="full_batch"), full))
    request = Request(
        config=server.config, hardware=server.system, jobs=[chosen.job], peak=server.rates.ideal
    )
    larger = on_twice_the_chips(request, chosen)
    if larger:
        rows.append(make_change(Difference(kind="twice_the_chips"), larger, other_engine=True))
    fsdp_server = with_gathered_weights(server)
    if fsdp_server:
        fsdp = replace(chosen, server=fsdp_server)
        rows.append(make_change(Difference(kind="gathered"), fsdp, other_engine=True))
    return tuple(rows)


def _job_changes(chosen: Candidate) -> Iterator[tuple[Difference, Serve]]:
    """Narrower dtypes, shorter requests, speculative decoding, a prefix cache."""
    job = chosen.job
    chip = chosen.server.rates.chip
    for dtype in NARROW_DTYPES[chip.kind]:
        if bytes_per_element(dtype) < bytes_per_element(job.weights):
            compute = usual_compute(dtype, chip)
            narrow = replace(job, weights=dtype, compute=compute)
            yield Difference(kind="weights", dtype=dtype), narrow
    if chosen.server.config.attentions:
        for dtype in NARROW_DTYPES[chip.kind]:
            if bytes_per_element(dtype) < bytes_per_element(job.kv):
                yield Difference(kind="kv", dtype=dtype), replace(job, kv=dtype)
    yield Difference(kind="half_context"), _half_context(job)
    if not job.drafted:
        speculation = Difference(kind="drafted", n=N_DRAFTED, share=job.acceptance)
        yield speculation, replace(job, drafted=N_DRAFTED)
    if job.output and job.cached < CACHED_SHARE:
        yield Difference(kind="prefix_cache", share=CACHED_SHARE), replace(job, cached=CACHED_SHARE)


def _half_context(job: Serve) -> Serve:
    if job.prompt is None or job.output is None:
        return replace(job, context=max(1, job.context // 2))
    return replace(job, context=0, prompt=max(1, job.prompt // 2), output=max(1, job.output // 2))


def _model_changes(config: ModelConfig, job: Serve) -> Iterator[tuple[Difference, ModelConfig]]:
    """The same model with fewer KV heads, or with a sliding window."""
    attentions = [attention for attention, _ in config.attentions]
    heads = max((a.n_kv_heads for a in attentions if not a.mla), default=1)
    for n_heads in dict.fromkeys((heads // 2, 1)):
        if 1 <= n_heads < heads:
            grouped = partial(_with_kv_heads, n_heads=n_heads)
            yield Difference(kind="kv_heads", n=n_heads), _with_attention(config, grouped)
    if job.context > WINDOW_KEYS and any(attention.window is None for attention in attentions):
        yield Difference(kind="window", n=WINDOW_KEYS), _with_attention(config, _with_window)


def _with_kv_heads(attention: Attention, n_heads: int) -> Attention:
    if attention.mla or attention.n_kv_heads <= n_heads or attention.n_heads % n_heads:
        return attention
    return replace(attention, n_kv_heads=n_heads)


def _with_window(attention: Attention) -> Attention:
    if attention.window is not None:
        return attention
    return replace(attention, window=WINDOW_KEYS)


def _with_attention(config: ModelConfig, change: Callable[[Attention], Attention]) -> ModelConfig:
    """Copy of the model with `change` applied to the attention of every layer."""
    groups = []
    for group in config.groups:
        if group.layer.attention:
            layer = replace(group.layer, attention=change(group.layer.attention))
            group = replace(group, layer=layer)
        groups.append(group)
    return replace(config, groups=tuple(groups))


def _best_change(
    difference: Difference, chosen: Candidate, config: ModelConfig, job: Serve
) -> list[Change]:
    """Evaluate a change on the same mesh and batch, with its best legal sharding of KV caches.

    Returns a list of one `Change`; empty if no sharding of KV caches is legal.
    """
    server = chosen.server
    rates = replace(server.rates, job=job)
    rows = []
    for layout in kv_layouts(server, config):
        if chosen.batch % batch_unit(config, layout, layout.sizes):
            continue
        changed = replace(server, config=config, job=job, rates=rates, layout=layout)
        try:
            rows.append(make_change(difference, replace(chosen, server=changed)))
        except ShardwiseError:  # the chip has no peak rate for the dtype
            continue
    return [min(rows, key=lambda change: change.tpot_s)] if rows else []


def kv_layouts(server: Server, config: ModelConfig) -> Iterator[ServeLayout]:
    """The layout of the engines with every sensible sharding of KV caches over `tensor`."""
    layout = server.layout
    splits: tuple[str, ...] = ("copied",)
    if layout.mesh.tensor > min_kv_heads(config):
        splits = KV_SPLITS
    for kv in splits:
        yield replace(layout, kv=kv)
