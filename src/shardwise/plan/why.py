"""Reasons: what binds the plan, by how much, and what the other strategies lose on."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
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
        *_tokens_per_chip(job, system),
        _memory(chosen),
    )


def _communication(chosen: Candidate) -> Iterator[Reason]:
    """The slowest role against the work on the chip; one chip has nothing to send."""
    cost = chosen.cost
    parts = " and ".join(f"{ms(float(t))} of {r}" for r, t in cost.comm_s.items() if t > 0)
    role, slowest = slowest_role(chosen)
    if not parts:
        return
    margin = float(cost.roofline_s) / slowest
    if margin >= 1:
        text = f"{parts} traffic: each can hide under {ms(float(cost.roofline_s))} on the chip."
    else:
        text = (
            f"{role} traffic takes {ms(slowest)} against {ms(float(cost.roofline_s))} on the "
            f"chip: communication-bound x{1 / margin:.1f}."
        )
    yield Reason(constraint="communication", margin=margin, text=text)


def _tensor(chosen: Candidate, ranked: list[Candidate]) -> Iterator[Reason]:
    """The same machine without tensor parallelism, or why the plan has none."""
    split = chosen.mesh.tensor > 1
    others = [c for c in ranked if (c.mesh.tensor > 1) != split]
    if not others:
        return
    other = others[0]
    role, slowest = slowest_role(other)
    on_chip = float(other.cost.roofline_s)
    name = "Pure data sharding" if split else f"With tensor {other.mesh.tensor}"
    gap = f"x{slowest / on_chip:.1f}" if slowest > on_chip else "hidden at best"
    needs = "gathers and reductions" if role == "fsdp" else "traffic"
    yield Reason(
        constraint="tensor" if split else "data",
        margin=float(other.cost.expected / chosen.cost.expected),
        text=(
            f"{name} ({other.mesh}) has {ms(slowest)} of {role} {needs} for {ms(on_chip)} on the "
            f"chip: {'communication-bound ' if slowest > on_chip else ''}{gap}; "
            f"expected {ms(float(other.cost.expected))}, here {ms(float(chosen.cost.expected))}."
        ),
    )


def _tokens_per_chip(job: Train, system: System) -> Iterator[Reason]:
    """The book's threshold for pure data sharding: tokens per chip against C / W. §5, §12."""
    if system.n_chips == 1:
        return
    per_chip = job.tokens_per_step / system.n_chips
    rate, over = _gather_rate(system)
    needed = system.chip.peak(job.compute) / rate
    side = "below" if per_chip < needed else "above"
    yield Reason(
        constraint="tokens_per_chip",
        margin=per_chip / needed,
        text=(
            f"{per_chip:,.0f} tokens per chip, {side} the {needed:,.0f} (peak over {over}) "
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
    return rate, f"{units.show_rate(rate, 'B/s')} of NVLink"


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


def in_microbatches(n: int) -> str:
    """How the batch is cut, where it is."""
    return f", in {n} microbatches" if n > 1 else ""


def alternatives(chosen: Candidate, ranked: list[Candidate], n: int = 4) -> tuple[Alternative, ...]:
    """The best candidate of each other tensor size, best first."""
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
                step_s=Range(
                    lower=float(cost.lower), expected=float(cost.expected), upper=float(cost.upper)
                ),
                memory_bytes_per_chip=float(cost.memory.total),
                fits=other.fits,
                text=_loses_on(other, chosen),
            )
        )
    return tuple(found[:n])


def _loses_on(other: Candidate, chosen: Candidate) -> str:
    if not other.fits:
        over = float(other.cost.memory.total) / other.cost.memory.capacity
        return f"does not fit: x{over:.1f} of the memory"
    roles = {*other.cost.comm_s, *chosen.cost.comm_s}
    more = {r: float(other.cost.comm_s.get(r, 0.0) - chosen.cost.comm_s.get(r, 0.0)) for r in roles}
    if not more:
        return "equal"
    worst = max(more, key=lambda r: more[r])
    if more[worst] <= 0:
        return "more work on the chip"
    return f"{ms(more[worst])} more {worst} traffic"
