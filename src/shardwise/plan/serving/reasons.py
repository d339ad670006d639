"""Why a deployment is this one: what binds it at its batch, and what other choices would take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardwise.errors import ShardwiseError
from shardwise.estimate.serving.steady_state import in_flight
from shardwise.formulas import inference
from shardwise.hardware import Switched, System, Torus, legal_slices
from shardwise.models import ModelConfig
from shardwise.plan.schema.common import Loss, Reason
from shardwise.plan.schema.serving import ServingEstimate
from shardwise.plan.schema.serving_reasons import (
    CriticalBatch,
    DecodePass,
    Disaggregation,
    GatheredWeights,
    Prompt,
    Speculation,
    TensorLimit,
    TwiceTheChips,
)
from shardwise.plan.serving.time_parts import critical_batch, decode_range, parts
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.search.serving.rank import Ranking, Request, rank
from shardwise.strategy.mesh import Mesh, Placement, place
from shardwise.strategy.serving_layout import ServeLayout

ROLES = {"tensor", "context", "expert", "fsdp", "pipe"}


def reasons(asked: Request, found: Ranking, told: ServingEstimate) -> tuple[Reason, ...]:
    """Every reason with its margin (above 1: the constraint is met with room)."""
    chosen = found.candidates[0]
    return (
        _reads(chosen, told),
        *_batch(asked.config, chosen, told),
        *_tensor(asked.config, chosen),
        *_gathered(chosen),
        *_larger(asked, chosen),
        *_kinds(asked, found, chosen),
        *_drafted(chosen),
        _prompts(chosen, told),
    )


def _reads(chosen: Candidate, told: ServingEstimate) -> Reason:
    """What one pass reads, and what it waits for."""
    took = told.decode.parts
    read, kv = took.get("weights", 0.0) + took.get("unembedding", 0.0), took.get("kv", 0.0)
    sent = {role: s for role, s in took.items() if role in ROLES}
    return DecodePass(
        margin=told.decode.step_s.lower / told.decode.step_s.expected,
        pass_s=told.decode.step_s.expected,
        weights_s=read,
        weights_bytes=told.memory_bytes_per_chip.weights,
        kv_s=kv,
        kv_bytes=told.memory_bytes_per_chip.kv_cache,
        network_s=sent,
        software_s=told.decode.step_s.expected - read - kv - sum(sent.values()),
    )


def _batch(config: ModelConfig, chosen: Candidate, told: ServingEstimate) -> Iterator[Reason]:
    """Where the batch stands: caches against weights, FLOPs against HBM, memory."""
    decode = told.decode
    critical = critical_batch(config, chosen.server)
    here = decode.in_flight
    yield CriticalBatch(
        margin=critical / max(here, 1),
        batch=decode.batch,
        max_batch=decode.max_batch,
        in_flight=here,
        critical_batch=critical,
        kv_batch=decode.kv_batch,
    )


def _tensor(config: ModelConfig, chosen: Candidate) -> Iterator[Reason]:
    """The book's limit of tensor parallelism that is bound by memory: Y < F / (B beta)."""
    layout = chosen.server.layout
    if layout.mesh.tensor < 2 or config.is_moe:
        return
    try:
        beta = inference.beta(chosen.server.rates.chip)
    except ShardwiseError:
        return
    rows = int(in_flight(chosen.server.engine, chosen.batch))
    spans = chosen.server.placement.span(("tensor",)).rings
    limit = float(
        inference.memory_bound_tensor_limit(config.d_ff, rows, beta, n_axes=max(1, len(spans)))
    )
    yield TensorLimit(
        margin=limit / layout.mesh.tensor,
        tensor=layout.mesh.tensor,
        limit=limit,
        axes=max(1, len(spans)),
        d_ff=config.d_ff,
        rows=rows,
        beta=float(beta),
    )


def _gathered(chosen: Candidate) -> Iterator[Reason]:
    """The mistake of serving as one trains: weights are gathered for every pass."""
    server = chosen.server
    alike = gathered(server)
    if alike is None:
        return
    theirs, ours = (float(s.decode(chosen.batch).step_s) for s in (alike, server))
    yield GatheredWeights(
        margin=theirs / ours, fsdp=alike.layout.mesh.fsdp, gathered_s=theirs, pass_s=ours
    )


def gathered(server: Server) -> Server | None:
    """The same chips under FSDP, where it can split the weights."""
    mesh = server.layout.mesh
    split = mesh.tensor * mesh.fsdp
    if split < 2 or server.layout.weights == "gathered" or server.config.d_model % split:
        return None
    other = ServeLayout(mesh=replace(mesh, tensor=1, fsdp=split), weights="gathered", kv="copied")
    return replace(server, layout=other, placement=_laid(server, other.mesh))


def _laid(server: Server, mesh: Mesh) -> Placement:
    """Where a mesh of the same chips lies."""
    from shardwise.search.serving.layouts import on

    return place(*on(server.system, mesh), best=True)[0]


def _larger(asked: Request, chosen: Candidate) -> Iterator[Reason]:
    """The same batch on engines of twice the chips."""
    other = None if chosen.reader else on_twice(asked, chosen)
    if other is None:
        return
    gain = chosen.tpot_s / other.tpot_s
    yield TwiceTheChips(
        margin=gain,
        hardware=other.server.system.name,
        mesh=other.server.layout.sizes,
        tpot_s=other.tpot_s,
        least_s=other.server.per_token(_hidden(other)),
        throughput=gain / 2,
    )


def on_twice(asked: Request, chosen: Candidate) -> Candidate | None:
    """As many engines of one kind with twice the chips and the same batch, or None."""
    server = chosen.server
    larger = twice(server.system)
    if larger is None:
        return None
    engines = server.layout.mesh.data
    job = replace(chosen.job, batch=chosen.batch * engines, rate=None, ttft_s=None, tpot_s=None)
    sizes = server.layout.sizes
    fixed = asked.fixed.only(
        pipe=sizes["pipe"],
        context=sizes["context"],
        data=engines,
        weights=server.layout.weights,
    )
    try:
        best = rank(replace(asked, where=larger, jobs=[job], fixed=fixed, disaggregate=False), 0)
    except ShardwiseError:
        return None
    return best.candidates[0]


def _hidden(other: Candidate) -> float:
    return decode_range(other.server, other.batch).lower


def twice(system: System) -> System | None:
    """The machine of the same chip with twice the chips, of a compact shape."""
    topology, n = system.topology, 2 * system.n_chips
    if isinstance(topology, Torus):
        found = [s for s in legal_slices(system.chip) if s.n_chips == n]
        if not found or system.n_slices > 1:
            return None
        best = min(found, key=lambda s: max(s.shape))
        return replace(system, name=f"{system.chip.name}:{best}", topology=best)
    if n > topology.domain and n % topology.domain:
        return None
    larger = Switched(n_gpus=n, domain=topology.domain)
    return replace(system, name=f"{system.chip.name}:{n}", topology=larger)


def _kinds(asked: Request, found: Ranking, chosen: Candidate) -> Iterator[Reason]:
    """Engines of one kind against engines of two, where both were looked at."""
    if not asked.looks_at_both:
        return
    other, disaggregated = found.other, chosen.reader is None
    if other is None:
        yield Disaggregation(margin=0.0, disaggregated=disaggregated)
        return
    yield Disaggregation(
        margin=other.chips / chosen.chips,
        disaggregated=disaggregated,
        n_chips=other.chips,
        tpot_s=other.tpot_s,
        ttft_s=other.ttft_s,
        tokens_per_s_per_chip=other.tokens_per_s / other.chips,
    )


def _drafted(chosen: Candidate) -> Iterator[Reason]:
    job = chosen.job
    if not job.drafted:
        return
    plain = replace(job, drafted=0)
    server = replace(chosen.server, job=plain)
    alone = float(server.decode(chosen.batch).step_s)
    drafted = chosen.server.per_token(float(chosen.server.decode(chosen.batch).step_s))
    yield Speculation(
        margin=alone / drafted,
        drafted=job.drafted,
        acceptance=job.acceptance,
        tokens_per_pass=float(inference.speculative_tokens(job.acceptance, job.drafted)),
        tpot_s=drafted,
        without_s=alone,
    )


def _prompts(chosen: Candidate, told: ServingEstimate) -> Reason:
    """What the first token waits for."""
    prefill, job = told.prefill, chosen.job
    return Prompt(
        margin=prefill.step_s.lower / prefill.step_s.expected,
        tokens=job.prompt_tokens,
        cached=job.cached,
        step_s=prefill.step_s.expected,
        transfer_s=prefill.transfer_s if chosen.reader else None,
        busy=prefill.busy,
        servers=prefill.servers,
        longest=max(prefill.parts, key=lambda name: prefill.parts[name]),
    )


def loses_on(other: Candidate, chosen: Candidate) -> Loss:
    """What another deployment spends more of."""
    mine, its = (parts(c.server.decode(c.batch)) for c in (chosen, other))
    more = {name: its.get(name, 0.0) - mine.get(name, 0.0) for name in {*mine, *its}}
    worst = max(sorted(more), key=lambda name: more[name])
    if other.job.weights != chosen.job.weights:
        return Loss(kind="dtype")
    if more[worst] > 0.01 * other.tpot_s:
        return Loss(kind="time", part=worst, amount=more[worst])
    return Loss(kind="batch" if other.batch < chosen.batch else "none")
