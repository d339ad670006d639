"""Reasons: what binds the plan, by how much, and what the other strategies lose on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from shardwise.hardware import System, Torus
from shardwise.models import ModelConfig
from shardwise.plan.schema.common import Loss, Operation, Range, Reason
from shardwise.plan.schema.training import Alternative
from shardwise.plan.schema.training_reasons import (
    Bubble,
    Communication,
    KvHeads,
    MaxSeq,
    MemoryRoom,
    Overlap,
    Padding,
    TensorSplit,
    TokensPerChip,
    TokensPerSlice,
)
from shardwise.plan.training.operations import is_hidden
from shardwise.search.training.rank import Candidate
from shardwise.strategy.stages import stages
from shardwise.workload import Train

NO_BUBBLE = 1e-3  # shares of a step below it are none
CARRIED = 0.05  # a plan rests on an overlap that hides more than this share of its step


def step_range(candidate: Candidate) -> Range:
    """The three step times of a candidate, seconds."""
    return Range(
        lower=float(candidate.roofline.lower_s),
        expected=float(candidate.time.step_s),
        upper=float(candidate.time.upper_s),
    )


def bound(candidate: Candidate, works: Sequence[Operation]) -> str:
    """What the lower bound is made of: `compute`, `hbm` or `communication`."""
    roofline = candidate.roofline
    if roofline.lower_s > roofline.on_chip_s:
        return "communication"
    return "compute" if sum(o.math_s for o in works) >= sum(o.hbm_s for o in works) else "hbm"


def slowest_role(candidate: Candidate) -> tuple[str, float]:
    """The role whose collectives take longest, and their seconds at peak rates."""
    comm = candidate.roofline.traffic_s or {"no": 0.0}
    role = max(comm, key=lambda r: comm[r])
    return role, float(comm[role])


def reasons(
    model: ModelConfig, system: System, job: Train, chosen: Candidate, ranked: list[Candidate]
) -> tuple[Reason, ...]:
    """Every reason with its margin (above 1: the constraint is met with room)."""
    return (
        *_communication(chosen),
        *_tensor(chosen, ranked),
        *_tokens_per_chip(model, system, job, chosen),
        *_across_slices(system, job, chosen),
        *_bubble(model, chosen),
        *_assumption(chosen, ranked),
        *_notes(model, job, chosen),
        _memory(chosen),
    )


def _communication(chosen: Candidate) -> Iterator[Reason]:
    """The slowest role against the work on the chip; one chip has nothing to send."""
    roofline = chosen.roofline
    times = {role: float(t) for role, t in roofline.traffic_s.items() if t > 0}
    if not times:
        return
    on_chip = float(roofline.on_chip_s)
    yield Communication(
        margin=on_chip / slowest_role(chosen)[1],
        on_chip_s=on_chip,
        traffic_s=times,
        hidden=tuple(role for role in times if is_hidden(chosen, role)),
    )


def _bubble(model: ModelConfig, chosen: Candidate) -> Iterator[Reason]:
    """What the pipeline waits for, and layers that do not divide over it."""
    layout, time = chosen.layout, chosen.time
    if not layout.is_pipelined:
        return
    stage = stages(model.n_layers, layout)
    idle = float(time.bubble_s / time.step_s)
    yield Bubble(
        margin=1 / max(idle, NO_BUBBLE),
        share=idle,
        schedule=layout.schedule,
        n_microbatches=layout.n_microbatches,
        micro_batch=layout.micro_batch,
        stages=layout.mesh.pipe,
        chunks=stage.chunks,
        spare=stage.spare,
    )


def _assumption(chosen: Candidate, ranked: list[Candidate]) -> Iterator[Reason]:
    """The overlap that the plan rests on, and what would be best without any."""
    time = chosen.time
    hidden = {r: float(t - time.comm_s.get(r, 0.0)) for r, t in time.traffic_s.items()}
    hidden = {r: t for r, t in hidden.items() if t > CARRIED * float(time.step_s)}
    if not hidden:
        return
    safe = min((c for c in ranked if c.fits), key=lambda c: float(c.time.upper_s), default=chosen)
    yield Overlap(
        margin=float(time.step_s / time.upper_s),
        hidden_s=hidden,
        without_s=float(time.upper_s),
        best_mesh=None if safe is chosen else safe.mesh.sizes,
        best_s=float(safe.time.upper_s),
    )


def _tensor(chosen: Candidate, ranked: list[Candidate]) -> Iterator[Reason]:
    """The same machine without tensor parallelism, or why the plan has none."""
    split = chosen.mesh.tensor > 1
    others = [c for c in ranked if (c.mesh.tensor > 1) != split]
    if not others:
        return
    other = others[0]
    role, slowest = slowest_role(other)
    yield TensorSplit(
        constraint="tensor" if split else "data",
        margin=float(other.time.step_s / chosen.time.step_s),
        mesh=other.mesh.sizes,
        fits=other.fits,
        step_s=float(other.time.step_s),
        role=role,
        traffic_s=slowest,
        on_chip_s=float(other.roofline.on_chip_s),
        loses_on=loses_on(other, chosen),
    )


def _tokens_per_chip(
    model: ModelConfig, system: System, job: Train, chosen: Candidate
) -> Iterator[Reason]:
    """The book's threshold for pure data sharding: tokens per chip against C / W. §5, §12.

    Weights are gathered for every microbatch; an MoE gathers E experts for the k that it uses.
    """
    if system.n_chips == 1:
        return
    per_chip = job.tokens_per_step / system.n_chips / chosen.layout.n_microbatches
    rate, network, axes = _gather_rate(system)
    experts = (model.n_experts, model.experts_per_token) if model.is_moe else (1, 1)
    needed = system.chip.peak(job.compute) / rate
    if model.is_moe:
        needed *= model.n_experts / model.experts_per_token
    yield TokensPerChip(
        margin=per_chip / needed,
        tokens=per_chip,
        needed=needed,
        bytes_per_s=rate,
        network=network,
        axes=axes,
        n_experts=experts[0],
        experts_per_token=experts[1],
        n_microbatches=chosen.layout.n_microbatches,
    )


def _across_slices(system: System, job: Train, chosen: Candidate) -> Iterator[Reason]:
    """Tokens of a slice from which sums of gradients over DCN hide: C / W_dcn. Book §5.

    Every chip of a slice sends its shard, so chips cancel out.
    """
    if system.n_slices == 1:
        return
    rate = system.chip.need("dcn_bytes_per_s_per_chip")
    needed, tokens = system.chip.peak(job.compute) / rate, job.tokens_per_step / system.n_slices
    over = [r for r, span in chosen.placement.spans if any(t.name == "dcn" for t in span.tiers)]
    yield TokensPerSlice(
        margin=tokens / needed,
        roles=tuple(over),
        n_slices=system.n_slices,
        tokens=tokens,
        needed=needed,
        bytes_per_s=rate,
    )


def _gather_rate(system: System) -> tuple[float, Literal["ici", "scale_out", "node"], int]:
    """(bytes/s at which each chip's share of the machine takes in gathered weights, the network,
    its axes)."""
    chip, topology = system.chip, system.topology
    if isinstance(topology, Torus):
        used = [w for n, w in zip(topology.shape, topology.wrapped, strict=True) if n > 1]
        rate = chip.need("ici.link_bytes_per_s_one_way") * sum(2 if w else 1 for w in used)
        return rate, "ici", len(used)
    if topology.n_nodes > 1:
        rate = chip.need("scale_out.bytes_per_s_per_gpu_one_way") * topology.domain
        return rate, "scale_out", 1
    return chip.need("node.bytes_per_s_per_gpu_one_way"), "node", 1


def _memory(chosen: Candidate) -> Reason:
    memory = chosen.memory
    total, reserved = float(memory.total), float(memory.margin)
    return MemoryRoom(
        margin=float((memory.capacity - memory.margin) / total),
        total=total,
        capacity=float(memory.capacity),
        reserved=reserved,
        remat=chosen.layout.policy,
        n_microbatches=chosen.layout.n_microbatches,
    )


def _notes(model: ModelConfig, job: Train, chosen: Candidate) -> Iterator[Reason]:
    """What the plan does that was not asked for: padded dims, sequences beyond the model's."""
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


def alternatives(chosen: Candidate, ranked: list[Candidate], n: int = 3) -> tuple[Alternative, ...]:
    """The best candidates of other tensor sizes, best first; without tensor always."""
    seen = {chosen.mesh.tensor}
    found = []
    for other in ranked:
        if other.mesh.tensor in seen:
            continue
        seen.add(other.mesh.tensor)
        found.append(
            Alternative(
                mesh=other.mesh.sizes,
                schedule=other.layout.schedule,
                zero=other.layout.zero,
                remat=other.layout.policy,
                n_microbatches=other.layout.n_microbatches,
                step_s=step_range(other),
                memory_bytes_per_chip=float(other.memory.total),
                fits=other.fits,
                loses_on=loses_on(other, chosen),
            )
        )
    shown = found[:n]
    shown += [a for a in found[n:] if a.mesh["tensor"] == 1]  # what pure data sharding would take
    return tuple(shown)


def loses_on(other: Candidate, chosen: Candidate) -> Loss:
    """What a candidate spends more of than the chosen one."""
    if not other.fits:
        memory = other.memory
        return Loss(kind="memory", amount=float(memory.total / (memory.capacity - memory.margin)))
    mine, its = parts_of(chosen), parts_of(other)
    more = {name: its.get(name, 0.0) - mine.get(name, 0.0) for name in {*mine, *its}}
    worst = max(sorted(more), key=lambda name: more[name])
    if more[worst] <= 0:
        return Loss(kind="none")
    policy = other.layout.policy
    remat = None if policy == chosen.layout.policy else policy
    return Loss(kind="time", part=worst, amount=more[worst], remat=remat)


def parts_of(candidate: Candidate) -> dict[str, float]:
    """The expected step by what spends it, seconds."""
    time = candidate.time
    parts = {"layers": time.compute_s, "ends": time.head_s, "bubble": time.bubble_s}
    parts |= {"update": time.update_s, **time.comm_s}
    return {name: float(seconds) for name, seconds in parts.items() if seconds > 0}
