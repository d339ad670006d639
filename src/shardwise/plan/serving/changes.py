"""What would make a deployment faster or cheaper: each change evaluated anew, none estimated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from shardwise.errors import ShardwiseError
from shardwise.models import Attention, ModelConfig
from shardwise.plan.serving.estimate import usd
from shardwise.plan.serving.reasons import gathered, on_twice
from shardwise.plan.serving.refusals import NARROWER
from shardwise.plan.serving.time_parts import usual_compute
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.search.serving.evaluate import batch_unit, min_kv_heads
from shardwise.search.serving.rank import Request
from shardwise.strategy.serving_layout import ServeForm, ServeLayout
from shardwise.units import bytes_per_element
from shardwise.vocabulary import KV_SPLITS
from shardwise.workload import Serve

DRAFTED = 3  # tokens of the row of speculation, at the acceptance and draft cost of the work
CACHED = 0.5  # of prompts, of the row of a prefix cache
WINDOW = 4096  # keys of a sliding window: Mistral 7B, arXiv 2310.06825


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What differs from the deployment itself.

    Args:
        kind: "none"; `dtype` of the weights or the KV cache; half the context; `n` drafted tokens
            of which a `share` is accepted; a prefix cache that has a `share` of prompts; `n` KV
            heads; a window of `n` keys; as many sequences as fit; twice the chips; weights gathered
            by FSDP; or a search of its own.
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
    """A deployment that differs in one thing.

    Args:
        mesh, hardware: of an engine, where they differ too.
        tpot_s, ttft_s: means.
        usd_per_million_output_tokens: None without a public price.
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


def generating(chosen: Candidate) -> Candidate:
    """What generates, without the bounds: with engines for prompts, those beside them alone."""
    job, server = chosen.job, chosen.server
    job = replace(job, rate=None, ttft_s=None, tpot_s=None, batch=None)
    chips = chosen.chips
    if chosen.reader:
        job = replace(job, prompt=None, output=None, context=round(job.mean_context))
        chips = server.count * server.n_chips
    alone = replace(server, job=job, rates=replace(server.rates, job=job))
    return replace(chosen, server=alone, reader=None, busy=0.0, chips=chips, transfer_s=0.0)


def told(differs: Difference, one: Candidate, *, other_engine: bool = False) -> Change:
    """The numbers of one deployment."""
    server = one.server
    hourly = one.server.rates.chip.usd_per_chip_hour
    return Change(
        differs=differs,
        batch=one.batch,
        mesh={**server.layout.sizes, "data": 1} if other_engine else None,
        hardware=server.system.name if other_engine else None,
        tpot_s=one.tpot_s,
        ttft_s=one.ttft_s,
        tokens_per_s_per_chip=one.tokens_per_s / one.chips,
        usd_per_million_output_tokens=usd(one, hourly).output if hourly else None,
        max_batch=one.server.max_batch,
    )


def changes(here: Candidate) -> tuple[Change, ...]:
    """Every change that applies, the deployment itself first.

    Args:
        here: what generates (see `generating`). Batch and mesh stay but where a change is one of
            them; caches are laid over the chips in the best way for each change.
    """
    found = [told(Difference(kind="none"), here)]
    for differs, other in _of_job(here):
        found += _alike(differs, here, here.server.config, other)
    for differs, config in _of_model(here.server.config, here.job):
        found += _alike(differs, here, config, here.job)
    most = here.server.max_batch
    if most > here.batch:
        found.append(told(Difference(kind="full_batch"), replace(here, batch=most)))
    asked = Request(
        config=here.server.config,
        where=here.server.system,
        jobs=[here.job],
        peak=here.server.rates.ideal,
    )
    twice = on_twice(asked, here)
    if twice:
        found.append(told(Difference(kind="twice_the_chips"), twice, other_engine=True))
    mistake = gathered(here.server)
    if mistake:
        gather = Difference(kind="gathered")
        found.append(told(gather, replace(here, server=mistake), other_engine=True))
    return tuple(found)


def _of_job(here: Candidate) -> Iterator[tuple[Difference, Serve]]:
    """Dtypes, lengths, and what engines do beside."""
    job, chip = here.job, here.server.rates.chip
    for dtype in NARROWER[chip.kind]:
        if bytes_per_element(dtype) < bytes_per_element(job.weights):
            compute = usual_compute(dtype, chip)
            narrow = Difference(kind="weights", dtype=dtype)
            yield narrow, replace(job, weights=dtype, compute=compute)
    for dtype in NARROWER[chip.kind]:
        if bytes_per_element(dtype) < bytes_per_element(job.kv) and here.server.config.attentions:
            yield Difference(kind="kv", dtype=dtype), replace(job, kv=dtype)
    yield Difference(kind="half_context"), _shorter(job)
    if not job.drafted:
        drafts = Difference(kind="drafted", n=DRAFTED, share=job.acceptance)
        yield drafts, replace(job, drafted=DRAFTED)
    if job.output and job.cached < CACHED:
        yield Difference(kind="prefix_cache", share=CACHED), replace(job, cached=CACHED)


def _shorter(job: Serve) -> Serve:
    if job.prompt is None or job.output is None:
        return replace(job, context=max(1, job.context // 2))
    prompt, output = max(1, job.prompt // 2), max(1, job.output // 2)
    return replace(job, context=0, prompt=prompt, output=output)


def _of_model(config: ModelConfig, job: Serve) -> Iterator[tuple[Difference, ModelConfig]]:
    """Fewer heads of keys and values, and a window: other models of the same widths."""
    heads = max((a.n_kv_heads for a, _ in config.attentions if not a.mla), default=1)
    for n in dict.fromkeys((heads // 2, 1)):
        if 1 <= n < heads:
            yield Difference(kind="kv_heads", n=n), _with(config, partial(_grouped, n=n))
    if job.context > WINDOW and any(a.window is None for a, _ in config.attentions):
        yield Difference(kind="window", n=WINDOW), _with(config, _windowed)


def _grouped(a: Attention, n: int) -> Attention:
    fewer = not a.mla and a.n_kv_heads > n and a.n_heads % n == 0
    return replace(a, n_kv_heads=n) if fewer else a


def _windowed(a: Attention) -> Attention:
    return replace(a, window=WINDOW) if a.window is None else a


def _with(config: ModelConfig, change: Callable[[Attention], Attention]) -> ModelConfig:
    """The model with every attention changed."""
    groups = tuple(
        replace(g, layer=replace(g.layer, attention=change(g.layer.attention)))
        if g.layer.attention
        else g
        for g in config.groups
    )
    return replace(config, groups=groups)


def _alike(differs: Difference, here: Candidate, config: ModelConfig, job: Serve) -> list[Change]:
    """The same mesh and batch, its caches laid in the best of the legal ways; or nothing."""
    server = here.server
    found = []
    for form in forms(server, config):
        if here.batch % batch_unit(config, form, form.sizes):
            continue
        try:
            rates = replace(server.rates, job=job)
            alike = replace(server, config=config, job=job, rates=rates, layout=form)
            found.append(told(differs, replace(here, server=alike)))
        except ShardwiseError:  # a peak that the chip does not have
            continue
    return [min(found, key=lambda change: change.tpot_s)] if found else []


def forms(server: Server, config: ModelConfig) -> Iterator[ServeLayout]:
    """The layout with every way to lay caches over `tensor` that makes sense."""
    mesh, heads = server.layout.mesh, min_kv_heads(config)
    for kv in KV_SPLITS if mesh.tensor > heads else ("copied",):
        words = {f: getattr(server.layout, f) for f in ServeForm.__dataclass_fields__}
        yield ServeLayout(**{**words, "kv": kv}, mesh=mesh)
