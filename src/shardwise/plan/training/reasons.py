"""Reasons of a training plan: what limits it, by how much, and why alternatives are worse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from shardwise.hardware import System, Torus
from shardwise.models import ModelConfig, stack
from shardwise.plan.losses import largest_increase, nonzero
from shardwise.plan.schema.common import Loss, Operation, Range, Reason
from shardwise.plan.schema.training import Alternative, Bound
from shardwise.plan.schema.training_reasons import (
    Bubble,
    Communication,
    KvHeads,
    MaxSeq,
    MemoryRoom,
    NoPipelines,
    NotInFramework,
    NotTrained,
    Overlap,
    Padding,
    TensorSplit,
    TokensPerChip,
    TokensPerSlice,
)
from shardwise.plan.training.crossovers import tokens_per_chip, torus_axes
from shardwise.plan.training.operations import busiest_stage, is_hidden
from shardwise.search.given import Fixed
from shardwise.search.training.framework_limits import is_known, limit_of
from shardwise.search.training.rank import Candidate
from shardwise.search.training.runtime_limits import limits
from shardwise.strategy.stages import stages
from shardwise.workload import Train

MIN_BUBBLE = 1e-3  # a smaller bubble counts as this share of a step, for a finite margin
UNMET = 1e-3  # margin of a constraint that is not met, and has no ratio
MIN_TRAFFIC_SHARE = 0.01  # smallest share of the step that a role's traffic is told from
MIN_HIDDEN_SHARE = 0.05  # of a step; smaller overlaps are not reported


def step_range(candidate: Candidate) -> Range:
    """The lower, expected and upper step time of a candidate, seconds."""
    return Range(
        lower=float(candidate.roofline.lower_s),
        expected=float(candidate.time.step_s),
        upper=float(candidate.time.upper_s),
    )


def step_parts(candidate: Candidate) -> dict[str, float]:
    """Part of the expected step -> its seconds; `ends` are the embedding and the head."""
    time = candidate.time
    seconds = {"layers": time.compute_s, "ends": time.head_s, "bubble": time.bubble_s}
    seconds |= {"update": time.update_s, **time.comm_s}
    return nonzero(seconds)


def strategy_fields(candidate: Candidate) -> dict[str, Any]:
    """Mesh and choices of a strategy, as the fields that alternatives and fronts share."""
    layout = candidate.layout
    return {
        "mesh": candidate.mesh.sizes,
        "schedule": layout.schedule,
        "zero": layout.zero,
        "remat": layout.policy,
        "n_microbatches": layout.n_microbatches,
    }


def bound(model: ModelConfig, candidate: Candidate, operations: Sequence[Operation]) -> Bound:
    """What sets the lower bound of the step: `compute`, `hbm` or `communication`."""
    roofline = candidate.roofline
    if roofline.lower_s > roofline.on_chip_s:
        return "communication"
    stages = (operations, model.n_layers, candidate.layout)
    if busiest_stage(*stages, lambda op: op.math_s) >= busiest_stage(*stages, lambda op: op.hbm_s):
        return "compute"
    return "hbm"


def slowest_role(candidate: Candidate) -> tuple[str, float]:
    """The role whose collectives take longest, and their seconds at peak rates."""
    traffic_s = candidate.roofline.traffic_s or {"no": 0.0}
    role = max(traffic_s, key=lambda name: traffic_s[name])
    return role, float(traffic_s[role])


def reasons(
    model: ModelConfig,
    system: System,
    job: Train,
    chosen: Candidate,
    candidates: list[Candidate],
    searched: Fixed | None = None,
) -> tuple[Reason, ...]:
    """List every reason for the plan.

    Args:
        chosen: the strategy of the plan.
        candidates: all ranked strategies, best first.
        searched: what the search had to keep; None if the layout was given.
    """
    return (
        *_communication(chosen),
        *_tensor(chosen, candidates),
        *_tokens_per_chip(model, system, job, chosen),
        *_tokens_per_slice(system, job, chosen),
        *_bubble(model, chosen),
        *_overlap(chosen, candidates),
        *_side_effects(model, job, chosen),
        *_not_trained(model, system, job, chosen),
        *_not_searched(model, system, job, chosen, searched),
        _memory(chosen),
    )


def _not_trained(
    model: ModelConfig, system: System, job: Train, chosen: Candidate
) -> Iterator[Reason]:
    """What the framework of the job, and the trainer, do not run of the plan."""
    beyond = limit_of(job.framework, model, system.chip, chosen.layout)
    if beyond:
        yield NotInFramework(
            margin=UNMET, framework=job.framework, asked=beyond.asked, has=beyond.has
        )
    for limit in limits(model, job, chosen.layout, system.chip):
        yield NotTrained(margin=UNMET, limit=limit)


def _not_searched(
    model: ModelConfig, system: System, job: Train, chosen: Candidate, searched: Fixed | None
) -> Iterator[Reason]:
    """What the search left out, although something faster may be there."""
    if searched is None or searched.any_layout or system.n_chips == 1:
        return
    n_groups = len(stack(model))
    gives_pipe = "pipe" in {*searched, *dict(searched.max_sizes)}
    is_trained = not limits(model, job, chosen.layout, system.chip)
    if n_groups > 1 and is_trained and not gives_pipe and not is_known(job.framework):
        yield NoPipelines(margin=UNMET, n_groups=n_groups)


def _communication(chosen: Candidate) -> Iterator[Reason]:
    """Compare the slowest role's collectives with all other work; nothing on a single chip."""
    roofline = chosen.roofline
    on_chip_s = float(roofline.on_chip_s)
    traffic_s = {}
    for role, seconds in nonzero(roofline.traffic_s).items():
        if seconds >= MIN_TRAFFIC_SHARE * float(roofline.step_s):
            traffic_s[role] = seconds
    if not traffic_s:
        return
    yield Communication(
        margin=on_chip_s / slowest_role(chosen)[1],
        on_chip_s=on_chip_s,
        traffic_s=traffic_s,
        hidden=tuple(role for role in traffic_s if is_hidden(chosen, role)),
    )


def _bubble(model: ModelConfig, chosen: Candidate) -> Iterator[Reason]:
    """The pipeline bubble, and the layer slots that stay empty on some stages."""
    layout = chosen.layout
    if not layout.is_pipelined:
        return
    stage = stages(model.n_layers, layout)
    share = float(chosen.time.bubble_s / chosen.time.step_s)
    yield Bubble(
        margin=1 / max(share, MIN_BUBBLE),
        share=share,
        schedule=layout.schedule,
        n_microbatches=layout.n_microbatches,
        micro_batch=layout.micro_batch,
        stages=layout.mesh.pipe,
        chunks=stage.chunks,
        spare=stage.spare,
    )


def _overlap(chosen: Candidate, candidates: list[Candidate]) -> Iterator[Reason]:
    """The overlap that the plan relies on, and the best mesh without overlap."""
    time = chosen.time
    hidden_s = {}
    for role, traffic_s in time.traffic_s.items():
        seconds = float(traffic_s - time.comm_s.get(role, 0.0))
        if seconds > MIN_HIDDEN_SHARE * float(time.step_s):
            hidden_s[role] = seconds
    if not hidden_s:
        return
    fitting = [candidate for candidate in candidates if candidate.fits]
    best = min(fitting, key=lambda candidate: float(candidate.time.upper_s), default=chosen)
    yield Overlap(
        margin=float(time.step_s / time.upper_s),
        hidden_s=hidden_s,
        without_s=float(time.upper_s),
        best_mesh=None if best is chosen else best.mesh.sizes,
        best_s=float(best.time.upper_s),
    )


def _tensor(chosen: Candidate, candidates: list[Candidate]) -> Iterator[Reason]:
    """The best mesh without tensor parallelism, or with it if the plan has none."""
    has_tensor = chosen.mesh.tensor > 1
    opposites = [c for c in candidates if (c.mesh.tensor > 1) != has_tensor]
    if not opposites:
        return
    best = opposites[0]
    role, traffic_s = slowest_role(best)
    yield TensorSplit(
        constraint="tensor" if has_tensor else "data",
        margin=float(best.time.step_s / chosen.time.step_s),
        mesh=best.mesh.sizes,
        fits=best.fits,
        step_s=float(best.time.step_s),
        role=role,
        traffic_s=traffic_s,
        on_chip_s=float(best.roofline.on_chip_s),
        loses_on=loses_on(best, chosen),
    )


def _tokens_per_chip(
    model: ModelConfig, system: System, job: Train, chosen: Candidate
) -> Iterator[Reason]:
    """Compare tokens per chip with the threshold C / W for pure data sharding. Book §5, §12.

    Weights are gathered for every microbatch. The threshold of an MoE is E / k times as high: it
    gathers E experts and uses k of them.
    """
    if system.n_chips == 1:
        return
    n_microbatches = chosen.layout.n_microbatches
    tokens = tokens_per_chip(job, chosen.layout)
    bytes_per_s, network, n_axes = _gather_bandwidth(system)
    needed = system.chip.peak(job.compute) / bytes_per_s
    n_experts = 1
    experts_per_token = 1
    if model.is_moe:
        n_experts = model.n_experts
        experts_per_token = model.experts_per_token
        needed *= n_experts / experts_per_token
    yield TokensPerChip(
        margin=tokens / needed,
        tokens=tokens,
        needed=needed,
        bytes_per_s=bytes_per_s,
        network=network,
        axes=n_axes,
        n_experts=n_experts,
        experts_per_token=experts_per_token,
        n_microbatches=n_microbatches,
    )


def _tokens_per_slice(system: System, job: Train, chosen: Candidate) -> Iterator[Reason]:
    """Compare tokens per slice with those that hide gradient all-reduces over DCN. Book §5.

    The threshold is C / W_dcn for one chip. It holds for a whole slice, since every chip of the
    slice sends its own shard.
    """
    if system.n_slices == 1:
        return
    bytes_per_s = system.chip.need("dcn_bytes_per_s_per_chip")
    needed = system.chip.peak(job.compute) / bytes_per_s
    tokens = job.tokens_per_step / system.n_slices
    roles = []
    for role, span in chosen.placement.spans:
        if "dcn" in [tier.name for tier in span.tiers]:
            roles.append(role)
    yield TokensPerSlice(
        margin=tokens / needed,
        roles=tuple(roles),
        n_slices=system.n_slices,
        tokens=tokens,
        needed=needed,
        bytes_per_s=bytes_per_s,
    )


def _gather_bandwidth(system: System) -> tuple[float, Literal["ici", "scale_out", "node"], int]:
    """(bytes/s at which a chip receives gathered weights, name of the network, number of axes)."""
    chip = system.chip
    topology = system.topology
    if isinstance(topology, Torus):
        n_rings, n_axes = torus_axes(topology)
        return chip.need("ici.link_bytes_per_s_one_way") * (2 * n_rings), "ici", n_axes
    if topology.n_nodes > 1:
        bandwidth = chip.need("scale_out.bytes_per_s_per_gpu_one_way") * topology.domain
        return bandwidth, "scale_out", 1
    return chip.need("node.bytes_per_s_per_gpu_one_way"), "node", 1


def _memory(chosen: Candidate) -> Reason:
    memory = chosen.memory
    total = float(memory.total)
    return MemoryRoom(
        margin=float((memory.capacity - memory.margin) / total),
        total=total,
        capacity=float(memory.capacity),
        reserved=float(memory.margin),
        remat=chosen.layout.policy,
        n_microbatches=chosen.layout.n_microbatches,
    )


def _side_effects(model: ModelConfig, job: Train, chosen: Candidate) -> Iterator[Reason]:
    """Side effects: a padded vocabulary, replicated KV heads, sequences longer than the model's."""
    tensor = chosen.mesh.tensor
    if model.vocab % tensor:
        padded = -(-model.vocab // tensor) * tensor
        yield Padding(margin=model.vocab / padded, vocab=model.vocab, tensor=tensor, padded=padded)
    attention = model.main_attention
    if attention and tensor > attention.n_kv_heads and not attention.mla:
        yield KvHeads(
            margin=model.n_kv_heads / tensor,
            n_kv_heads=model.n_kv_heads,
            copies=tensor // model.n_kv_heads,
        )
    if model.max_seq and job.seq > model.max_seq:
        yield MaxSeq(margin=model.max_seq / job.seq, seq=job.seq, max_seq=model.max_seq)


def alternatives(
    chosen: Candidate, candidates: list[Candidate], n: int = 3
) -> tuple[Alternative, ...]:
    """The best candidate of each other tensor degree, cut to the `n` best and always tensor 1."""
    best_by_tensor = {chosen.mesh.tensor: chosen}
    for candidate in candidates:
        best_by_tensor.setdefault(candidate.mesh.tensor, candidate)
    del best_by_tensor[chosen.mesh.tensor]
    runners_up = list(best_by_tensor.values())
    shown = runners_up[:n] + [c for c in runners_up[n:] if c.mesh.tensor == 1]
    return tuple(
        Alternative(
            **strategy_fields(candidate),
            step_s=step_range(candidate),
            memory_bytes_per_chip=float(candidate.memory.total),
            fits=candidate.fits,
            loses_on=loses_on(candidate, chosen),
        )
        for candidate in shown
    )


def loses_on(other: Candidate, chosen: Candidate) -> Loss:
    """Why another candidate is worse than the chosen one."""
    if not other.fits:
        memory = other.memory
        return Loss(kind="memory", amount=float(memory.total / (memory.capacity - memory.margin)))
    part, seconds = largest_increase(step_parts(chosen), step_parts(other))
    if seconds <= 0:
        return Loss(kind="none")
    remat = None
    if other.layout.policy != chosen.layout.policy:
        remat = other.layout.policy
    return Loss(kind="time", part=part, amount=seconds, remat=remat)
