"""Reasons: what binds the plan, by how much, and what the other strategies lose on."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.estimate.training import HIDDEN_ROLES
from shardwise.hardware import System, Torus
from shardwise.models import ModelConfig
from shardwise.plan.value import Alternative, Range, Reason
from shardwise.search.train import Candidate
from shardwise.workload import Train

ms = units.show_seconds


def bound(candidate: Candidate) -> str:
    """What the lower bound is made of: `compute`, `hbm` or `communication`."""
    cost = candidate.cost
    if cost.lower > cost.roofline_s:
        return "communication"
    return "compute" if cost.compute_s >= cost.hbm_s else "hbm"


def slowest_role(candidate: Candidate) -> tuple[str, float]:
    """The role whose collectives take longest, and their seconds."""
    comm = candidate.cost.comm_s or {"no": 0.0}
    role = max(comm, key=lambda r: comm[r])
    return role, float(comm[role])


def reasons(
    model: ModelConfig, job: Train, system: System, chosen: Candidate, ranked: list[Candidate]
) -> tuple[Reason, ...]:
    """Every reason with its margin (above 1: the constraint is met with room)."""
    return (
        *_communication(chosen),
        *_tensor(chosen, ranked),
        *_tokens_per_chip(model, job, system, chosen),
        *_notes(model, job, chosen),
        _memory(chosen),
    )


def _communication(chosen: Candidate) -> Iterator[Reason]:
    """The slowest role against the work on the chip; one chip has nothing to send."""
    cost = chosen.cost
    times = {r: float(t) for r, t in cost.comm_s.items() if t > 0}
    role, slowest = slowest_role(chosen)
    if not times:
        return
    margin = float(cost.roofline_s) / slowest
    if margin >= 1:
        hides = _listed({r: t for r, t in times.items() if r in HIDDEN_ROLES})
        waits = _listed({r: t for r, t in times.items() if r not in HIDDEN_ROLES})
        under = f"under {ms(float(cost.roofline_s))} on the chip"
        text = f"{hides} of traffic can hide {under}" if hides else "No traffic is in the way"
        text += f"; layers wait for {waits}." if waits else "."
    else:
        text = (
            f"{role} traffic takes {ms(slowest)} against {ms(float(cost.roofline_s))} on the "
            f"chip: communication-bound x{1 / margin:.1f}."
        )
    yield Reason(constraint="communication", margin=margin, text=text)


def _listed(times: dict[str, float]) -> str:
    """`293 ms fsdp and 22.7 ms data`."""
    return " and ".join(f"{ms(t)} {role}" for role, t in times.items())


def _tensor(chosen: Candidate, ranked: list[Candidate]) -> Iterator[Reason]:
    """The same machine without tensor parallelism, or why the plan has none."""
    split = chosen.mesh.tensor > 1
    others = [c for c in ranked if (c.mesh.tensor > 1) != split]
    if not others:
        return
    other = others[0]
    role, slowest = slowest_role(other)
    on_chip = float(other.cost.roofline_s)
    name = f"With tensor {other.mesh.tensor}"
    if split:
        cut = f", sequences cut {other.mesh.context} ways" if other.mesh.context > 1 else ""
        name = f"Pure data sharding{cut}"
    if slowest > on_chip:
        needs = "gathers and reductions" if role == "fsdp" else "traffic"
        told = f"has {ms(slowest)} of {role} {needs} for {ms(on_chip)} on the chip: "
        told += f"communication-bound x{slowest / on_chip:.1f}"
    else:
        told = f"has {loses_on(other, chosen)}"
    yield Reason(
        constraint="tensor" if split else "data",
        margin=float(other.cost.expected / chosen.cost.expected),
        text=(
            f"{name} ({other.mesh}) {told}; "
            f"expected {ms(float(other.cost.expected))}, here {ms(float(chosen.cost.expected))}."
        ),
    )


def _tokens_per_chip(
    model: ModelConfig, job: Train, system: System, chosen: Candidate
) -> Iterator[Reason]:
    """The book's threshold for pure data sharding: tokens per chip against C / W. §5, §12.

    Weights are gathered for every microbatch; an MoE gathers E experts for the k that it uses.
    """
    if system.n_chips == 1:
        return
    per_chip = job.tokens_per_step / system.n_chips / chosen.n_microbatches
    rate, over = _gather_rate(system)
    needed = system.chip.peak(job.compute) / rate
    if model.is_moe:
        needed *= model.n_experts / model.experts_per_token
        over += f", times E/k = {model.n_experts}/{model.experts_per_token}"
    side = "below" if per_chip < needed else "above"
    each = "chip" if chosen.n_microbatches == 1 else "chip and microbatch"
    yield Reason(
        constraint="tokens_per_chip",
        margin=per_chip / needed,
        text=(
            f"{per_chip:,.0f} tokens per {each}, {side} the {needed:,.0f} (peak over {over}) "
            "from which pure data sharding hides."
        ),
    )


def _gather_rate(system: System) -> tuple[float, str]:
    """Bytes/s at which each chip's share of the machine takes in gathered weights, and its name."""
    chip, topology = system.chip, system.topology
    if isinstance(topology, Torus):
        used = [w for n, w in zip(topology.shape, topology.wrapped, strict=True) if n > 1]
        rate = chip.need("ici.link_bytes_per_s_one_way") * sum(2 if w else 1 for w in used)
        return rate, f"{units.show_rate(rate, 'B/s')} of {len(used)} ICI axes"
    if topology.n_nodes > 1:
        rate = chip.need("scale_out.bytes_per_s_per_gpu_one_way") * topology.domain
        return rate, f"{units.show_rate(rate, 'B/s')} of a node"
    rate = chip.need("node.bytes_per_s_per_gpu_one_way")
    return rate, f"{units.show_rate(rate, 'B/s')} of the node's links"


def _memory(chosen: Candidate) -> Reason:
    memory = chosen.cost.memory
    total = float(memory.total)
    return Reason(
        constraint="memory",
        margin=memory.capacity / total,
        text=(
            f"{units.show_gib(total)} of {units.show_gib(memory.capacity)} HBM, "
            f"remat {chosen.remat}{in_microbatches(chosen.n_microbatches)}."
        ),
    )


def _notes(model: ModelConfig, job: Train, chosen: Candidate) -> Iterator[Reason]:
    """What the plan does that was not asked for: padded dims, sequences beyond the model's."""
    tensor = chosen.mesh.tensor
    if model.vocab % tensor:
        padded = -(-model.vocab // tensor) * tensor
        yield Reason(
            constraint="padding",
            margin=model.vocab / padded,
            text=(
                f"vocab {model.vocab:,} does not divide over tensor {tensor}: padded to {padded:,}."
            ),
        )
    if tensor > model.n_kv_heads and not model.main_layer.attention.mla:
        copies = tensor // model.n_kv_heads
        yield Reason(
            constraint="kv_heads",
            margin=model.n_kv_heads / tensor,
            text=f"Each of {model.n_kv_heads} key/value heads is held by {copies} chips.",
        )
    if model.max_seq and job.seq > model.max_seq:
        yield Reason(
            constraint="max_seq",
            margin=model.max_seq / job.seq,
            text=f"{job.seq:,} tokens a sequence: the model's authors state {model.max_seq:,}.",
        )


def in_microbatches(n: int) -> str:
    """How the batch is cut, where it is."""
    return f", in {n} microbatches" if n > 1 else ""


def alternatives(chosen: Candidate, ranked: list[Candidate], n: int = 3) -> tuple[Alternative, ...]:
    """The best candidates of other tensor sizes, best first; without tensor always."""
    seen = {chosen.mesh.tensor}
    found = []
    for other in ranked:
        if other.mesh.tensor in seen:
            continue
        seen.add(other.mesh.tensor)
        cost = other.cost
        found.append(
            Alternative(
                mesh=other.mesh.sizes,
                remat=other.remat,
                n_microbatches=other.n_microbatches,
                step_s=Range(
                    lower=float(cost.lower), expected=float(cost.expected), upper=float(cost.upper)
                ),
                memory_bytes_per_chip=float(cost.memory.total),
                fits=other.fits,
                text=loses_on(other, chosen),
            )
        )
    shown = found[:n]
    shown += [a for a in found[n:] if a.mesh["tensor"] == 1]  # what pure data sharding would take
    return tuple(shown)


def loses_on(other: Candidate, chosen: Candidate) -> str:
    """What a candidate spends more of than the chosen one."""
    if not other.fits:
        over = float(other.cost.memory.total) / other.cost.memory.capacity
        return f"does not fit: x{over:.1f} of the memory"
    roles = {*other.cost.comm_s, *chosen.cost.comm_s}
    more = {r: float(other.cost.comm_s.get(r, 0.0) - chosen.cost.comm_s.get(r, 0.0)) for r in roles}
    if not more:
        return "equal"
    worst = max(more, key=lambda r: more[r])
    if more[worst] <= 0:
        again = f"remat {other.remat}" if other.remat != chosen.remat else "padding"
        return f"more work on the chip ({again})"
    return f"{ms(more[worst])} more {worst} traffic"
