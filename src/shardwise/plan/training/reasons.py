"""Reasons: what binds the plan, by how much, and what the other strategies lose on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardwise import units
from shardwise.hardware import System, Torus
from shardwise.models import ModelConfig
from shardwise.plan.schema.training import Alternative, Operation, Range, Reason
from shardwise.plan.training.operations import is_hidden
from shardwise.search.training.rank import Candidate
from shardwise.strategy.stages import stages
from shardwise.workload import Train

ms = units.show_seconds
NO_BUBBLE = 1e-3  # shares of a step below it are none
CARRIED = 0.05  # a plan rests on an overlap that hides more than this share of its step
# Parts of a step that no collective spends, in words.
ON_CHIP = {
    "layers": "work on the chip",
    "ends": "work at the embedding and the head",
    "bubble": "bubble",
    "update": "work of the optimizer",
}


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
    times = {r: float(t) for r, t in roofline.traffic_s.items() if t > 0}
    role, slowest = slowest_role(chosen)
    if not times:
        return
    on_chip = float(roofline.on_chip_s)
    margin = on_chip / slowest
    if margin >= 1:
        hides = _listed({r: t for r, t in times.items() if is_hidden(chosen, r)})
        waits = _listed({r: t for r, t in times.items() if not is_hidden(chosen, r)})
        text = (
            f"At peak {hides} of traffic can hide under {ms(on_chip)} on the chip"
            if hides
            else "No traffic is hidden"
        )
        text += f"; layers wait for {waits}." if waits else "."
    else:
        text = (
            f"At peak {role} traffic takes {ms(slowest)} against {ms(on_chip)} on the "
            f"chip: communication-bound x{1 / margin:.1f}."
        )
    yield Reason(constraint="communication", margin=margin, text=text)


def _bubble(model: ModelConfig, chosen: Candidate) -> Iterator[Reason]:
    """What the pipeline waits for, and layers that do not divide over it."""
    layout, time = chosen.layout, chosen.time
    if layout.schedule == "none":
        return
    stage = stages(model.n_layers, layout)
    idle = float(time.bubble_s / time.step_s)
    chunks = f" of {stage.chunks} chunks" if stage.chunks > 1 else ""
    empty = (
        "1 place for a layer stays" if stage.spare == 1 else f"{stage.spare} places for layers stay"
    )
    uneven = f", {empty} empty" if stage.spare else ""
    yield Reason(
        constraint="bubble",
        margin=1 / max(idle, NO_BUBBLE),
        text=(
            f"{layout.n_microbatches} microbatches of {layout.micro_batch} through "
            f"{layout.mesh.pipe} stages{chunks} ({layout.schedule}): {idle:.1%} of the step is "
            f"bubble{uneven}."
        ),
    )


def _assumption(chosen: Candidate, ranked: list[Candidate]) -> Iterator[Reason]:
    """The overlap that the plan rests on, and what would be best without any."""
    time = chosen.time
    hidden = {r: float(t - time.comm_s.get(r, 0.0)) for r, t in time.traffic_s.items()}
    hidden = {r: t for r, t in hidden.items() if t > CARRIED * float(time.step_s)}
    if not hidden:
        return
    safe = min((c for c in ranked if c.fits), key=lambda c: float(c.time.upper_s), default=chosen)
    without = f"with nothing hidden the step takes {ms(float(time.upper_s))}"
    if safe is not chosen:
        without += f", and {safe.mesh} {ms(float(safe.time.upper_s))}"
    yield Reason(
        constraint="overlap",
        margin=float(time.step_s / time.upper_s),
        text=f"Rests on hiding {_listed(hidden)} beside other work: {without}.",
    )


def _listed(times: dict[str, float]) -> str:
    """`293 ms fsdp and 22.7 ms data`."""
    return listed([f"{ms(t)} {role}" for role, t in times.items()])


def listed(words: Sequence[str]) -> str:
    """`data`, `data and fsdp`, `data, fsdp and pipe`."""
    *some, last = words or [""]
    return f"{', '.join(some)} and {last}" if some else last


def _tensor(chosen: Candidate, ranked: list[Candidate]) -> Iterator[Reason]:
    """The same machine without tensor parallelism, or why the plan has none."""
    split = chosen.mesh.tensor > 1
    others = [c for c in ranked if (c.mesh.tensor > 1) != split]
    if not others:
        return
    other = others[0]
    role, slowest = slowest_role(other)
    on_chip = float(other.roofline.on_chip_s)
    name = "Without tensor" if split else f"With tensor {other.mesh.tensor}"
    if slowest > on_chip:
        needs = "gathers and reductions" if role == "fsdp" else "traffic"
        told = f"has at peak {ms(slowest)} of {role} {needs} for {ms(on_chip)} on the chip: "
        told += f"communication-bound x{slowest / on_chip:.1f}"
    elif not other.fits:
        told = loses_on(other, chosen)
    else:
        told = f"has {loses_on(other, chosen)}"
    expected = ""
    if other.fits:
        here = ms(float(chosen.time.step_s))
        expected = f"; expected {ms(float(other.time.step_s))}, here {here}"
    yield Reason(
        constraint="tensor" if split else "data",
        margin=float(other.time.step_s / chosen.time.step_s),
        text=f"{name} ({other.mesh}) {told}{expected}.",
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
    rate, over = _gather_rate(system)
    needed = system.chip.peak(job.compute) / rate
    if model.is_moe:
        needed *= model.n_experts / model.experts_per_token
        over += f", times E/k = {model.n_experts}/{model.experts_per_token}"
    side = "below" if per_chip < needed else "above"
    each = "chip" if chosen.layout.n_microbatches == 1 else "chip and microbatch"
    yield Reason(
        constraint="tokens_per_chip",
        margin=per_chip / needed,
        text=(
            f"{per_chip:,.0f} tokens per {each}, {side} the {needed:,.0f} (peak over {over}) "
            "from which pure data sharding hides."
        ),
    )


def _across_slices(system: System, job: Train, chosen: Candidate) -> Iterator[Reason]:
    """Tokens of a slice from which sums of gradients over DCN hide: C / W_dcn. Book §5.

    Every chip of a slice sends its shard, so chips cancel out.
    """
    if system.n_slices == 1:
        return
    rate = system.chip.need("dcn_bytes_per_s_per_chip")
    needed, tokens = system.chip.peak(job.compute) / rate, job.tokens_per_step / system.n_slices
    side = "below" if tokens < needed else "above"
    over = [r for r, span in chosen.placement.spans if any(t.name == "dcn" for t in span.tiers)]
    yield Reason(
        constraint="dcn",
        margin=tokens / needed,
        text=(
            f"{listed(over)} cross{'es' if len(over) == 1 else ''} {system.n_slices} slices: "
            f"{units.show_count(tokens)} tokens per slice, {side} the {needed:,.0f} (peak over "
            f"{units.show_rate(rate, 'B/s')} of DCN) from which gradients over DCN hide."
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
    memory, layout = chosen.memory, chosen.layout
    total = float(memory.total)
    return Reason(
        constraint="memory",
        margin=float((memory.capacity - memory.margin) / total),
        text=(
            f"{units.show_gib(total)} of {units.show_gib(memory.capacity)} HBM"
            f"{_kept_free(float(memory.margin))}, remat {layout.policy}"
            f"{in_microbatches(layout.n_microbatches)}."
        ),
    )


def _kept_free(margin: float) -> str:
    return f" ({units.show_gib(margin)} kept free)" if margin else ""


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
    attention = model.main_attention
    if attention and tensor > attention.n_kv_heads and not attention.mla:
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
                text=loses_on(other, chosen),
            )
        )
    shown = found[:n]
    shown += [a for a in found[n:] if a.mesh["tensor"] == 1]  # what pure data sharding would take
    return tuple(shown)


def loses_on(other: Candidate, chosen: Candidate) -> str:
    """What a candidate spends more of than the chosen one."""
    if not other.fits:
        memory = other.memory
        over = float(memory.total / (memory.capacity - memory.margin))
        return f"does not fit: x{over:.2f} of the memory"
    mine, its = parts_of(chosen), parts_of(other)
    more = {name: its.get(name, 0.0) - mine.get(name, 0.0) for name in {*mine, *its}}
    worst = max(sorted(more), key=lambda name: more[name])
    if more[worst] <= 0:
        return "equal"
    if worst in ON_CHIP:
        again = other.layout.policy != chosen.layout.policy
        with_remat = f", remat {other.layout.policy}" if again else ""
        return f"{ms(more[worst])} more {ON_CHIP[worst]}{with_remat}"
    return f"{ms(more[worst])} more {worst} traffic to wait for"


def parts_of(candidate: Candidate) -> dict[str, float]:
    """The expected step by what spends it, seconds."""
    time = candidate.time
    parts = {"layers": time.compute_s, "ends": time.head_s, "bubble": time.bubble_s}
    parts |= {"update": time.update_s, **time.comm_s}
    return {name: float(seconds) for name, seconds in parts.items() if seconds > 0}
