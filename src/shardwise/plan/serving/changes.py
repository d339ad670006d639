"""What would make a deployment faster or cheaper: each change evaluated anew, none estimated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from shardwise.errors import ShardwiseError
from shardwise.models import Attention, ModelConfig
from shardwise.plan.serving.estimate import usd
from shardwise.plan.serving.reasons import gathered, on_twice
from shardwise.plan.serving.refusals import NARROWER
from shardwise.plan.serving.time_parts import usual_compute
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.search.serving.evaluate import fewest_heads, whole
from shardwise.search.serving.rank import Request
from shardwise.strategy.serving_layout import ServeForm, ServeLayout
from shardwise.units import bytes_per_element
from shardwise.vocabulary import KV_SPLITS
from shardwise.workload import Serve

DRAFTED = 3  # tokens of the row of speculation, at the acceptance and draft cost of the work
CACHED = 0.5  # of prompts, of the row of a prefix cache
WINDOW = 4096  # keys of a sliding window: Mistral 7B, arXiv 2310.06825


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A deployment that differs in one thing.

    Args:
        name: what differs.
        engine: its mesh on its machine, where that differs too.
        tpot_s, ttft_s: means.
        usd_per_million_output_tokens: None without a public price.
        max_batch: sequences that fit in one engine.
    """

    name: str
    batch: int
    engine: str | None
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


def told(name: str, one: Candidate, engine: str | None = None) -> Change:
    """The numbers of one deployment."""
    hourly = one.server.rates.chip.usd_per_chip_hour
    return Change(
        name=name,
        batch=one.batch,
        engine=engine,
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
    found = [told("as it is", here)]
    for name, other in _of_job(here):
        found += _alike(name, here, here.server.config, other)
    for name, config in _of_model(here.server.config, here.job):
        found += _alike(name, here, config, here.job)
    most = here.server.max_batch
    if most > here.batch:
        found.append(told("as many sequences as fit", replace(here, batch=most)))
    asked = Request(
        config=here.server.config,
        where=here.server.system,
        jobs=[here.job],
        peak=here.server.rates.ideal,
    )
    twice = on_twice(asked, here)
    if twice:
        found.append(told("twice the chips", twice, engine_of(twice.server)))
    mistake = gathered(here.server)
    if mistake:
        engine = f"fsdp {mistake.layout.mesh.fsdp}"
        found.append(told("FSDP, as in training", replace(here, server=mistake), engine))
    return tuple(found)


def engine_of(server: Server) -> str:
    """`tensor 32, v5e:4x8`."""
    sizes = {role: n for role, n in server.layout.sizes.items() if n > 1 and role != "data"}
    mesh = " × ".join(f"{role} {n}" for role, n in sizes.items()) or "one chip"
    return f"{mesh}, {server.system.name}"


def _of_job(here: Candidate) -> Iterator[tuple[str, Serve]]:
    """Dtypes, lengths, and what engines do beside."""
    job, chip = here.job, here.server.rates.chip
    for dtype in NARROWER[chip.kind]:
        if bytes_per_element(dtype) < bytes_per_element(job.weights):
            compute = usual_compute(dtype, chip)
            yield f"{dtype} weights", replace(job, weights=dtype, compute=compute)
    for dtype in NARROWER[chip.kind]:
        if bytes_per_element(dtype) < bytes_per_element(job.kv) and here.server.config.attentions:
            yield f"{dtype} KV cache", replace(job, kv=dtype)
    yield "half the context", _shorter(job)
    if not job.drafted:
        yield f"{DRAFTED} drafted tokens, {job.acceptance:.0%} kept", replace(job, drafted=DRAFTED)
    if job.output and job.cached < CACHED:
        yield f"prefix cache of {CACHED:.0%}", replace(job, cached=CACHED)


def _shorter(job: Serve) -> Serve:
    if job.prompt is None or job.output is None:
        return replace(job, context=max(1, job.context // 2))
    prompt, output = max(1, job.prompt // 2), max(1, job.output // 2)
    return replace(job, context=0, prompt=prompt, output=output)


def _of_model(config: ModelConfig, job: Serve) -> Iterator[tuple[str, ModelConfig]]:
    """Fewer heads of keys and values, and a window: other models of the same widths."""
    heads = max((a.n_kv_heads for a, _ in config.attentions if not a.mla), default=1)
    for n in dict.fromkeys((heads // 2, 1)):
        if 1 <= n < heads:
            yield f"{n} KV head{'s' * (n > 1)}", _with(config, partial(_grouped, n=n))
    if job.context > WINDOW and any(a.window is None for a, _ in config.attentions):
        yield f"window of {WINDOW:,} keys", _with(config, _windowed)


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


def _alike(name: str, here: Candidate, config: ModelConfig, job: Serve) -> list[Change]:
    """The same mesh and batch, its caches laid in the best of the legal ways; or nothing."""
    server = here.server
    found = []
    for form in forms(server, config):
        if here.batch % whole(config, form, form.sizes):
            continue
        try:
            rates = replace(server.rates, job=job)
            alike = replace(server, config=config, job=job, rates=rates, layout=form)
            found.append(told(name, replace(here, server=alike)))
        except ShardwiseError:  # a peak that the chip does not have
            continue
    return [min(found, key=lambda change: change.tpot_s)] if found else []


def forms(server: Server, config: ModelConfig) -> Iterator[ServeLayout]:
    """The layout with every way to lay caches over `tensor` that makes sense."""
    mesh, heads = server.layout.mesh, fewest_heads(config)
    for kv in KV_SPLITS if mesh.tensor > heads else ("copied",):
        words = {f: getattr(server.layout, f) for f in ServeForm.__dataclass_fields__}
        yield ServeLayout(**{**words, "kv": kv}, mesh=mesh)
