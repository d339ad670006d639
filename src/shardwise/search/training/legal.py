"""Which meshes a model, a batch and a machine admit, and why others are refused."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from shardwise.arrays import Num
from shardwise.hardware import System
from shardwise.models import ModelConfig
from shardwise.models.checks import near_divisors
from shardwise.search.model_sizes import (
    divisors,
    kv_heads_divide,
    n_experts,
    tensor_widths,
    worth_cutting,
)
from shardwise.strategy.layout import Form, Layout, Layouts, data_shards, expert_degree
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.schedules import find
from shardwise.strategy.stages import FILLED, filled
from shardwise.workload import Train


def problems(
    config: ModelConfig, system: System, job: Train, sizes: Mapping[str, int], *, whole: bool
) -> list[str]:
    """Every reason why sizes of mesh roles are not legal, each with what would be.

    Args:
        sizes: role -> size; a role that is not given counts as 1.
        whole: the sizes are a whole mesh, not a part of one that a search may complete.
    """
    n = {**Mesh().sizes, **sizes}
    found = _chips(system, sizes, whole=whole)
    found += _tensor(config, n["tensor"])
    found += _layers(config, n["pipe"], n["expert"])
    shards = data_shards(n)
    if job.batch % shards:
        split = " x ".join(f"{r} {n[r]}" for r in ("data", "fsdp", "expert") if n[r] > 1)
        found.append(
            f"{job.batch:,} sequences do not divide over {shards:,} shards ({split}). Nearest "
            f"batches that do: {near_multiples(job.batch, shards)}."
        )
    if job.seq % n["context"]:
        found.append(
            f"{job.seq:,} tokens of a sequence do not divide over context {n['context']}. Sizes "
            f"that do: {near_divisors(job.seq, n['context'])}."
        )
    if config.d_model % (n["fsdp"] * n["context"]):
        found.append(
            f"d_model {config.d_model:,} does not divide over fsdp {n['fsdp']} x context "
            f"{n['context']}. Give a part to data."
        )
    return found


def _chips(system: System, sizes: Mapping[str, int], *, whole: bool) -> list[str]:
    """The mesh against the number of chips."""
    chips, used = system.n_chips, math.prod(sizes.values())
    asked = " x ".join(f"{r} {n}" for r, n in sizes.items() if n > 1) or "one chip"
    if whole and used != chips:
        return [f"{asked} is {used:,} chips; {system.name} has {chips:,}."]
    if chips % used:
        return [
            f"{asked} leaves {chips:,} / {used:,} = {chips / used:.2f} chips for the other axes, "
            f"not a whole number. Whole here: {near_divisors(chips, used)}."
        ]
    return []


def _tensor(config: ModelConfig, tensor: int) -> list[str]:
    """The widths that tensor parallelism splits."""
    widths = tensor_widths(config)
    bad = [f"{k} {v:,} (/{tensor} = {v / tensor:.1f})" for k, v in widths.items() if v % tensor]
    if bad:
        works = near_divisors(math.gcd(*widths.values()), tensor)
        return [f"tensor {tensor} does not divide: {', '.join(bad)}. Sizes that do: {works}."]
    if not kv_heads_divide(config, tensor):
        return [f"tensor {tensor} and n_kv_heads {config.n_kv_heads}: neither divides the other."]
    return []


def _layers(config: ModelConfig, pipe: int, expert: int) -> Iterator[str]:
    """What pipeline stages and expert parallelism deal out."""
    if not _stages_fill(config, pipe):
        places = -(-config.n_layers // pipe) * pipe
        fits = [n for n in range(1, config.n_layers + 1) if _stages_fill(config, n)]
        near = sorted(sorted(fits, key=lambda n: abs(n - pipe))[:6])
        yield (
            f"pipe {pipe}: {config.n_layers} layers leave {places - config.n_layers} of {places} "
            f"places in equal stages empty. Sizes that fill them: {', '.join(map(str, near))}."
        )
    experts = n_experts(config)
    if expert > 1 and experts == 1:
        yield f"expert {expert}: {config.name} has no experts to deal out; leave it at 1."
    elif experts % expert:
        yield (
            f"expert {expert} does not divide {experts} experts. Sizes that do: "
            f"{near_divisors(experts, expert)}."
        )


def _stages_fill(config: ModelConfig, pipe: int) -> bool:
    """Whether every stage has a layer, and the stages are about equal."""
    return pipe <= config.n_layers and bool(filled(config.n_layers, pipe))


def near_multiples(n: int, of: int) -> str:
    """The multiples of `of` below and above n."""
    below, above = n // of * of, -(-n // of) * of
    return f"{below:,}, {above:,}" if below else f"{above:,}"


def legal_meshes(
    config: ModelConfig, system: System, job: Train, fixed: Mapping[str, int]
) -> Iterator[Mesh]:
    """Every mesh that divides evenly; layers need only fill the stages of `pipe`.

    Args:
        fixed: roles whose size is given.
    """
    chips = system.n_chips
    widths = math.gcd(*tensor_widths(config).values())
    experts = n_experts(config)
    for tensor in _sizes(widths, "tensor", fixed):
        if chips % tensor or not kv_heads_divide(config, tensor):
            continue
        for context in _sizes(math.gcd(chips // tensor, job.seq), "context", fixed):
            rest = chips // tensor // context
            if config.d_model % context:
                continue
            for pipe in _sizes(rest, "pipe", fixed):
                shards = rest // pipe
                if job.batch % shards or not _stages_fill(config, pipe):
                    continue
                for expert in _sizes(math.gcd(experts, shards), "expert", fixed):
                    ranks = shards // expert
                    whole = math.gcd(ranks, config.d_model // context)
                    for fsdp in _sizes(whole, "fsdp", fixed):
                        data = ranks // fsdp
                        if fixed.get("data", data) == data:
                            yield Mesh(
                                data=data,
                                fsdp=fsdp,
                                tensor=tensor,
                                context=context,
                                expert=expert,
                                pipe=pipe,
                            )


def _sizes(n: int, role: str, fixed: Mapping[str, int]) -> list[int]:
    """Divisors of n, or the one size that was asked for when it is one of them."""
    if role in fixed:
        return [fixed[role]] if n % fixed[role] == 0 else []
    return divisors(n)


def batch_shards(config: ModelConfig, seq: int, system: System) -> list[int]:
    """Over how many shards a search splits a batch on all chips without a pipeline."""
    found = set()
    widths = math.gcd(*tensor_widths(config).values())
    for tensor in divisors(widths):
        if system.n_chips % tensor or not kv_heads_divide(config, tensor):
            continue
        rest = system.n_chips // tensor
        for context in divisors(math.gcd(rest, seq)):
            if config.d_model % context == 0 and worth_cutting(seq, context):
                found.add(rest // context)
    return sorted(found)


def context_fits(config: ModelConfig, form: Form, sizes: Mapping[str, Num]) -> Num:
    """Whether heads can be exchanged for tokens: each chip needs whole ones. True elsewhere."""
    split = sizes["tensor"] * sizes["context"]
    fits = split > 0
    if form.context_kind != "ulysses":
        return fits
    for a, _ in config.attentions:
        fits = fits & (a.n_heads % split == 0)
        if not a.mla:
            fits = fits & ((a.n_kv_heads % split == 0) | (split % a.n_kv_heads == 0))
    return fits


def experts_fit(config: ModelConfig, form: Form, sizes: Mapping[str, Num]) -> Num:
    """Whether each chip has as many experts where whole ones lie on chips of `tensor` too."""
    degree = expert_degree(form, sizes)
    return (n_experts(config) % degree == 0) | (degree == sizes["expert"])


def chunks_fit(split: Layout | Layouts, seq: int) -> Num:
    """Whether chunks of the loss are of as many tokens each."""
    return split.micro_batch * seq // split.sizes["context"] % split.loss_chunks == 0


def chunk_problems(layout: Layout, seq: int) -> list[str]:
    """Why there are no such chunks of the loss."""
    if chunks_fit(layout, seq):
        return []
    tokens = layout.micro_batch * seq // layout.mesh.context
    near = max(n for n in divisors(tokens) if n <= layout.loss_chunks)
    return [
        f"loss_chunks {layout.loss_chunks} does not divide the {tokens:,} tokens of a chip "
        f"(micro_batch {layout.micro_batch} x {seq:,} over context {layout.mesh.context}). "
        f"{near} does."
    ]


def layout_problems(config: ModelConfig, layout: Layout, seq: int) -> list[str]:
    """What of a layout's words does not go with its mesh: schedule, heads for tokens, experts,
    chunks of the loss.

    Raises:
        BadShape: numbers that the schedule cannot have.
    """
    found = []
    if not context_fits(config, layout, layout.sizes):
        found.append(
            f"ulysses deals {config.n_heads} heads out over tensor {layout.mesh.tensor} x context "
            f"{layout.mesh.context}: each chip needs whole ones. Take context_kind ring."
        )
    if not experts_fit(config, layout, layout.sizes):
        found.append(
            f"expert_tensor {layout.expert_tensor} deals {n_experts(config)} experts out over "
            f"{layout.expert_degree} chips of tensor and expert. Take fewer of either."
        )
    found += chunk_problems(layout, seq)
    if not layout.is_pipelined:
        return found
    schedule, stages = find(layout.schedule), layout.mesh.pipe
    chunks = schedule.chunks or layout.virtual
    schedule.check(stages, layout.n_microbatches, chunks)
    if not filled(config.n_layers, schedule.parts(stages, chunks)):
        found.append(
            f"{config.n_layers} layers fill less than {FILLED:.0%} of the places in {stages} "
            f"stages of {chunks} chunks. Take fewer chunks."
        )
    return found
