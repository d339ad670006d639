"""Reasons of a serving plan: what limits it at its batch, and what other choices would cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardwise.errors import ShardwiseError
from shardwise.estimate.serving.steady_state import in_flight
from shardwise.formulas import inference
from shardwise.hardware import Switched, System, Torus, legal_slices
from shardwise.models import ModelConfig
from shardwise.plan.losses import largest_increase
from shardwise.plan.schema.common import Loss, Reason
from shardwise.plan.schema.serving import ServingEstimate
from shardwise.plan.schema.serving_reasons import (
    CriticalBatch,
    DecodePass,
    Disaggregation,
    GatheredWeights,
    LongContext,
    NotServed,
    Prompt,
    Speculation,
    TensorLimit,
    TwiceTheChips,
)
from shardwise.plan.serving.time_parts import decode_range, largest, parts
from shardwise.plan.serving.unserved import unserved_layout
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.search.serving.choose import CLEAR_GAIN
from shardwise.search.serving.layouts import engine_machine
from shardwise.search.serving.rank import Ranking, Request, rank
from shardwise.strategy.mesh import Mesh, Placement, place
from shardwise.strategy.serving_layout import ServeLayout
from shardwise.workload import Serve

MESH_ROLES = {"tensor", "context", "expert", "fsdp", "pipe"}


def reasons(request: Request, ranking: Ranking, estimate: ServingEstimate) -> tuple[Reason, ...]:
    """List every reason for the plan.

    Args:
        ranking: the result of the search, the chosen deployment first.
        estimate: the numbers of the chosen deployment.
    """
    chosen = ranking.candidates[0]
    limit = tensor_limit(chosen)
    return (
        _decode_pass(estimate),
        _critical_batch(chosen, estimate),
        *([limit] if limit else []),
        *_gathered(chosen),
        *_twice_the_chips(request, chosen),
        *_disaggregation(request, ranking, chosen),
        *_speculation(chosen),
        _prompt(chosen, estimate),
        *_long_context(request.config, chosen.job),
        *_not_served(chosen),
    )


def _not_served(chosen: Candidate) -> Iterator[Reason]:
    """What the runtime does not serve of the engines."""
    servers = filter(None, (chosen.server, chosen.prefill_server))
    names = [name for server in servers for name in unserved_layout(server)]
    if names:
        yield NotServed(margin=0.0, names=tuple(dict.fromkeys(names)))


def _long_context(config: ModelConfig, job: Serve) -> Iterator[Reason]:
    if config.max_seq and job.context > config.max_seq:
        yield LongContext(
            margin=config.max_seq / job.context, context=job.context, max_seq=config.max_seq
        )


def _decode_pass(estimate: ServingEstimate) -> Reason:
    """Where the time of a decoding pass goes."""
    decode = estimate.decode
    pass_s = decode.step_s.expected
    weights_s = decode.parts.get("weights", 0.0) + decode.parts.get("unembedding", 0.0)
    kv_s = decode.parts.get("kv", 0.0)
    network_s = {role: decode.parts[role] for role in decode.parts if role in MESH_ROLES}
    memory = estimate.memory_bytes_per_chip
    return DecodePass(
        margin=decode.step_s.lower / pass_s,
        pass_s=pass_s,
        weights_s=weights_s,
        weights_bytes=memory.weights,
        kv_s=kv_s,
        kv_bytes=memory.kv_cache,
        network_s=network_s,
        software_s=max(0.0, pass_s - weights_s - kv_s - sum(network_s.values())),
    )


def _critical_batch(chosen: Candidate, estimate: ServingEstimate) -> Reason:
    """Compare the batch with the critical batch, and with the most that fit in memory."""
    decode = estimate.decode
    return CriticalBatch(
        margin=decode.critical_batch / max(decode.in_flight, 1),
        batch=decode.batch,
        max_batch=decode.max_batch,
        in_flight=decode.in_flight,
        critical_batch=decode.critical_batch,
        kv_batch=decode.kv_batch,
    )


def tensor_limit(chosen: Candidate) -> TensorLimit | None:
    """Compare the tensor degree with its limit for a memory-bound pass: Y < F / (B beta).

    None without tensor parallelism, for an MoE, and if the chip has no links. Book §8.
    """
    server = chosen.server
    config = server.config
    tensor = server.layout.mesh.tensor
    if tensor < 2 or config.is_moe:
        return None
    try:
        beta = inference.beta(server.rates.chip)
    except ShardwiseError:
        return None
    rows = int(in_flight(server.engine, chosen.batch))
    n_axes = max(1, len(server.placement.span(("tensor",)).rings))
    limit = float(inference.memory_bound_tensor_limit(config.d_ff, rows, beta, n_axes=n_axes))
    return TensorLimit(
        margin=limit / tensor,
        tensor=tensor,
        limit=limit,
        axes=n_axes,
        d_ff=config.d_ff,
        rows=rows,
        beta=float(beta),
    )


def _gathered(chosen: Candidate) -> Iterator[Reason]:
    """Time of a pass with FSDP as in training, which gathers the weights for every pass."""
    server = chosen.server
    fsdp_server = with_gathered_weights(server)
    if fsdp_server is None:
        return
    gathered_s = float(fsdp_server.decode(chosen.batch).step_s)
    pass_s = float(server.decode(chosen.batch).step_s)
    yield GatheredWeights(
        margin=gathered_s / pass_s,
        fsdp=fsdp_server.layout.mesh.fsdp,
        gathered_s=gathered_s,
        pass_s=pass_s,
    )


def with_gathered_weights(server: Server) -> Server | None:
    """The same chips with FSDP instead of tensor parallelism.

    None if the weights are gathered already, or if FSDP cannot shard them.
    """
    mesh = server.layout.mesh
    n_shards = mesh.tensor * mesh.fsdp
    if n_shards < 2 or server.layout.weights == "gathered" or server.config.d_model % n_shards:
        return None
    fsdp_mesh = replace(mesh, tensor=1, fsdp=n_shards)
    layout = ServeLayout(mesh=fsdp_mesh, weights="gathered", kv="copied")
    return replace(server, layout=layout, placement=_best_placement(server, fsdp_mesh))


def _best_placement(server: Server, mesh: Mesh) -> Placement:
    """The best placement of another mesh on the same chips."""
    return place(*engine_machine(server.system, mesh), best=True)[0]


def _twice_the_chips(request: Request, chosen: Candidate) -> Iterator[Reason]:
    """The same batch on engines with twice the chips."""
    if chosen.prefill_server:
        return
    larger = on_twice_the_chips(request, chosen)
    if larger is None:
        return
    speedup = chosen.tpot_s / larger.tpot_s
    yield TwiceTheChips(
        margin=speedup,
        hardware=larger.server.system.name,
        mesh=larger.server.layout.sizes,
        tpot_s=larger.tpot_s,
        least_s=larger.server.per_token(decode_range(larger.server, larger.batch).lower),
        throughput=speedup / 2,
    )


def on_twice_the_chips(request: Request, chosen: Candidate) -> Candidate | None:
    """The best deployment of as many engines with twice the chips and the same batch, if any."""
    server = chosen.server
    system = machine_of_twice_the_chips(server.system)
    if system is None:
        return None
    mesh = server.layout.mesh
    job = replace(chosen.job.without_load(), batch=chosen.batch * mesh.data)
    fixed = request.fixed.only(
        pipe=mesh.pipe, context=mesh.context, data=mesh.data, weights=server.layout.weights
    )
    larger = replace(request, hardware=system, jobs=[job], fixed=fixed, disaggregate=False)
    try:
        return rank(larger, 0).candidates[0]
    except ShardwiseError:
        return None


def machine_of_twice_the_chips(system: System) -> System | None:
    """The machine of the same chip with twice as many chips, the most compact; None without one."""
    topology = system.topology
    n_chips = 2 * system.n_chips
    if isinstance(topology, Torus):
        slices = [torus for torus in legal_slices(system.chip) if torus.n_chips == n_chips]
        if not slices or system.n_slices > 1:
            return None
        return system.resized(min(slices, key=lambda torus: max(torus.shape)))
    if n_chips > topology.domain and n_chips % topology.domain:
        return None
    return system.resized(Switched(n_gpus=n_chips, domain=topology.domain))


def _disaggregation(request: Request, ranking: Ranking, chosen: Candidate) -> Iterator[Reason]:
    """The best deployment of the other kind, if both kinds were searched.

    The two kinds are deployments with and without separate prefill engines.
    """
    if not request.compares_both_kinds:
        return
    opposite = ranking.other
    disaggregated = chosen.prefill_server is None
    if opposite is None:
        yield Disaggregation(margin=0.0, disaggregated=disaggregated)
        return
    is_handicapped = chosen.job.states_load and disaggregated and opposite.chips == chosen.chips
    yield Disaggregation(
        margin=opposite.chips / chosen.chips,
        disaggregated=disaggregated,
        n_chips=opposite.chips,
        tpot_s=opposite.tpot_s,
        ttft_s=opposite.ttft_s,
        tokens_per_s_per_chip=opposite.tokens_per_s / opposite.chips,
        must_gain=CLEAR_GAIN if is_handicapped else None,
    )


def _speculation(chosen: Candidate) -> Iterator[Reason]:
    """Compare speculative decoding with decoding without drafts."""
    job = chosen.job
    if not job.drafted:
        return
    server = chosen.server
    plain_server = replace(server, job=replace(job, drafted=0))
    without_s = float(plain_server.decode(chosen.batch).step_s)
    tpot_s = server.per_token(float(server.decode(chosen.batch).step_s))
    yield Speculation(
        margin=without_s / tpot_s,
        drafted=job.drafted,
        acceptance=job.acceptance,
        tokens_per_pass=float(inference.speculative_tokens(job.acceptance, job.drafted)),
        tpot_s=tpot_s,
        without_s=without_s,
    )


def _prompt(chosen: Candidate, estimate: ServingEstimate) -> Reason:
    """The prefill, which decides the time to the first token."""
    prefill = estimate.prefill
    return Prompt(
        margin=prefill.step_s.lower / prefill.step_s.expected,
        tokens=chosen.job.prompt_tokens,
        cached=chosen.job.cached,
        step_s=prefill.step_s.expected,
        transfer_s=prefill.transfer_s if chosen.prefill_server else None,
        busy=prefill.busy,
        servers=prefill.servers,
        longest=largest(prefill.parts),
    )


def loses_on(other: Candidate, chosen: Candidate) -> Loss:
    """Why another deployment is worse than the chosen one."""
    if other.job.weights != chosen.job.weights:
        return Loss(kind="dtype")
    chosen_s = parts(chosen.server.decode(chosen.batch))
    part, seconds = largest_increase(chosen_s, parts(other.server.decode(other.batch)))
    if seconds > 0.01 * other.tpot_s:
        return Loss(kind="time", part=part, amount=seconds)
    return Loss(kind="batch" if other.batch < chosen.batch else "none")
