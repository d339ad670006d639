"""Why a deployment is this one: what binds it at its batch, and what other choices would take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardwise import units
from shardwise.errors import ShardwiseError
from shardwise.estimate.decode import memory_bound_tensor_limit, speculative_tokens
from shardwise.estimate.serving.steady_state import in_flight
from shardwise.hardware import Switched, System, Torus, legal_slices
from shardwise.models import ModelConfig
from shardwise.plan.schema.serving import ServingEstimate
from shardwise.plan.schema.training import Reason
from shardwise.plan.serving.time_parts import critical_batch, decode_range, link_beta, parts
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.search.serving.rank import Ranking, Request, rank
from shardwise.strategy.mesh import Mesh, Placement, place
from shardwise.strategy.serving_layout import ServeLayout

ms = units.show_seconds
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
    memory, took = told.memory_bytes_per_chip, told.decode.parts
    read, kv = took.get("weights", 0.0) + took.get("unembedding", 0.0), took.get("kv", 0.0)
    sent = {role: s for role, s in took.items() if role in ROLES}
    text = f"A pass takes {ms(read)} for {units.show_bytes(memory.weights)} of weights a chip"
    if kv:
        text += f" and {ms(kv)} for {units.show_bytes(memory.kv_cache)} of caches"
    total = sum(sent.values())
    if total:
        listed = ", ".join(f"{role} {ms(s)}" for role, s in sent.items())
        text += f"; it waits {ms(total)} for the network ({listed})"
    rest = told.decode.step_s.expected - read - kv - total
    if rest > 0.01 * told.decode.step_s.expected:
        text += f", {ms(rest)} for kernels and host"
    margin = told.decode.step_s.lower / told.decode.step_s.expected
    return Reason(constraint="decode", margin=margin, text=text + ".")


def _batch(config: ModelConfig, chosen: Candidate, told: ServingEstimate) -> Iterator[Reason]:
    """Where the batch stands: caches against weights, FLOPs against HBM, memory."""
    decode = told.decode
    critical = critical_batch(config, chosen.server)
    here = decode.in_flight
    text = f"{decode.batch:,} sequence{'s' * (decode.batch > 1)} an engine, "
    text += f"{decode.max_batch:,} fit."
    if decode.kv_batch:
        text += f" Caches outweigh weights from {decode.kv_batch:,.0f};"
    text += " products" if decode.kv_batch else " Products"
    text += f" turn compute-bound at {critical:,.0f} in a pass (here {here:,})."
    yield Reason(constraint="batch", margin=critical / max(here, 1), text=text)


def _tensor(config: ModelConfig, chosen: Candidate) -> Iterator[Reason]:
    """The book's limit of tensor parallelism that is bound by memory: Y < F / (B beta)."""
    layout = chosen.server.layout
    if layout.mesh.tensor < 2 or config.is_moe:
        return
    try:
        beta = link_beta(chosen.server.rates.chip)
    except ShardwiseError:
        return
    rows = int(in_flight(chosen.server.engine, chosen.batch))
    spans = chosen.server.placement.span(("tensor",)).rings
    limit = float(memory_bound_tensor_limit(config.d_ff, rows, beta, n_axes=max(1, len(spans))))
    axes = f"{len(spans)} axes × " if len(spans) > 1 else ""
    yield Reason(
        constraint="tensor",
        margin=limit / layout.mesh.tensor,
        text=(
            f"While HBM binds, links are fast enough up to tensor {limit:,.0f} ({axes}F "
            f"{config.d_ff:,} / (batch {rows:,} × β {beta:.1f}), latency aside); here "
            f"{layout.mesh.tensor}."
        ),
    )


def _gathered(chosen: Candidate) -> Iterator[Reason]:
    """The mistake of serving as one trains: weights are gathered for every pass."""
    server = chosen.server
    alike = gathered(server)
    if alike is None:
        return
    theirs, ours = (float(s.decode(chosen.batch).step_s) for s in (alike, server))
    yield Reason(
        constraint="gathered",
        margin=theirs / ours,
        text=(
            f"FSDP, as in training, would gather all weights for every token: fsdp "
            f"{alike.layout.mesh.fsdp} takes {ms(theirs)} a pass, not {ms(ours)}."
        ),
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
    per_chip, least = gain / 2, other.server.per_token(_hidden(other))
    yield Reason(
        constraint="chips",
        margin=gain,
        text=(
            f"Twice the chips ({other.server.system.name}, {_mesh(other)}) for the same batch: "
            f"{ms(other.tpot_s)} a token ({ms(least)} with communication hidden), "
            f"×{per_chip:.2f} the tokens/s/chip."
        ),
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


def _mesh(candidate: Candidate) -> str:
    sizes = candidate.server.layout.sizes
    return " × ".join(f"{r} {n}" for r, n in sizes.items() if n > 1) or "one chip"


def _kinds(asked: Request, found: Ranking, chosen: Candidate) -> Iterator[Reason]:
    """Engines of one kind against engines of two, where both were looked at."""
    if not asked.looks_at_both:
        return
    kind = "One kind of engines for both" if chosen.reader else "Engines of their own for prompts"
    other = found.other
    if other is None:
        yield Reason(
            constraint="disaggregation",
            margin=0.0,
            text=f"{kind}: none on these chips within the bounds.",
        )
        return
    yield Reason(
        constraint="disaggregation",
        margin=other.chips / chosen.chips,
        text=(
            f"{kind}: {other.chips:,} chips, {ms(other.tpot_s)} a token, first after "
            f"{ms(other.ttft_s)}, {other.tokens_per_s / other.chips:,.0f} tokens/s/chip."
        ),
    )


def _drafted(chosen: Candidate) -> Iterator[Reason]:
    job = chosen.job
    if not job.drafted:
        return
    plain = replace(job, drafted=0)
    server = replace(chosen.server, job=plain)
    alone = float(server.decode(chosen.batch).step_s)
    kept = speculative_tokens(job.acceptance, job.drafted)
    drafted = chosen.server.per_token(float(chosen.server.decode(chosen.batch).step_s))
    yield Reason(
        constraint="speculation",
        margin=alone / drafted,
        text=(
            f"{job.drafted} drafted tokens at {job.acceptance:.0%} acceptance: {kept:.2f} tokens a "
            f"pass, {ms(drafted)} a token, {ms(alone)} without."
        ),
    )


def _prompts(chosen: Candidate, told: ServingEstimate) -> Reason:
    """What the first token waits for."""
    prefill, job = told.prefill, chosen.job
    text = f"A prompt of {job.prompt_tokens:,} tokens takes {ms(prefill.step_s.expected)}"
    if job.cached:
        text += f", {job.cached:.0%} of it cached"
    if chosen.reader:
        text += f", its caches {ms(prefill.transfer_s)} to the other engine"
    if prefill.busy:
        text += f"; prompts take {prefill.busy:.0%} of the time"
    if prefill.servers and not chosen.reader:
        text += f"; {prefill.servers:.2g} engines for prompts alone would feed one that generates"
    longest = max(prefill.parts, key=lambda name: prefill.parts[name])
    text += f"; most of it for {longest}."
    return Reason(
        constraint="prefill", margin=prefill.step_s.lower / prefill.step_s.expected, text=text
    )


def loses_on(other: Candidate, chosen: Candidate) -> str:
    """What another deployment spends more of."""
    mine, its = (parts(c.server.decode(c.batch)) for c in (chosen, other))
    more = {name: its.get(name, 0.0) - mine.get(name, 0.0) for name in {*mine, *its}}
    worst = max(sorted(more), key=lambda name: more[name])
    if other.job.weights != chosen.job.weights:
        return f"{other.job.weights} weights"
    if more[worst] > 0.01 * other.tpot_s:
        return f"{ms(more[worst])} more {worst} a pass"
    if other.batch < chosen.batch:
        return f"{other.batch:,} sequences an engine"
    return "equal"
