"""Legality of meshes and layouts for a model, a batch and a machine, with reasons if not legal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from shardwise.arrays import Num
from shardwise.hardware import System
from shardwise.models import ModelConfig
from shardwise.models.checks import near_divisors
from shardwise.search.model_sizes import (
    divisors,
    expert_problems,
    kv_heads_divide,
    n_experts,
    tensor_problems,
    tensor_widths,
    worth_sharding,
)
from shardwise.strategy.layout import Form, Layout, Layouts, data_shards, expert_degree
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.schedules import find
from shardwise.strategy.stages import MIN_FILLED_SHARE, fills_stages
from shardwise.workload import Train


def problems(
    config: ModelConfig, system: System, job: Train, sizes: Mapping[str, int], *, whole: bool
) -> list[str]:
    """Messages about sizes of mesh roles that are not legal, with sizes that are.

    Args:
        sizes: mesh role -> size; a missing role counts as 1.
        whole: whether the sizes are a complete mesh. Otherwise a search chooses the missing roles.
    """
    all_sizes = {**Mesh().sizes, **sizes}
    return [
        *_chip_problems(system, sizes, whole=whole),
        *tensor_problems(config, all_sizes["tensor"]),
        *_stage_problems(config, all_sizes["pipe"]),
        *expert_problems(config, all_sizes["expert"]),
        *_batch_problems(config, job, all_sizes),
    ]


def _chip_problems(system: System, sizes: Mapping[str, int], *, whole: bool) -> Iterator[str]:
    """Messages about a mesh whose number of chips is not, or does not divide, the machine's."""
    chips = system.n_chips
    used = math.prod(sizes.values())
    mesh = _product_text(sizes) or "one chip"
    if whole and used == 1 != chips:
        yield f"the mesh has no axis of several chips; {system.name} has {chips:,}: data={chips}."
    elif whole and used != chips:
        yield f"{mesh} is {used:,} chips; {system.name} has {chips:,}."
    elif chips % used:
        yield (
            f"{mesh} leaves {chips:,} / {used:,} = {chips / used:.2f} chips for the other axes, "
            f"not a whole number. Products that divide: {near_divisors(chips, used)}."
        )


def _product_text(sizes: Mapping[str, int]) -> str:
    """Mesh roles with their sizes as text, `tensor 8 x pipe 4`, without roles of size 1."""
    return " x ".join(f"{role} {size}" for role, size in sizes.items() if size > 1)


def _stage_problems(config: ModelConfig, pipe: int) -> Iterator[str]:
    """Messages about layers that do not fill the stages of a pipeline."""
    if _stages_fill(config, pipe):
        return
    slots = -(-config.n_layers // pipe) * pipe
    legal = [n for n in range(1, config.n_layers + 1) if _stages_fill(config, n)]
    nearest = sorted(legal, key=lambda n: abs(n - pipe))[:6]
    yield (
        f"pipe {pipe}: {config.n_layers} layers leave {slots - config.n_layers} of {slots} "
        f"places in equal stages empty. Sizes that fill them: "
        f"{', '.join(map(str, sorted(nearest)))}."
    )


def _batch_problems(config: ModelConfig, job: Train, sizes: Mapping[str, int]) -> Iterator[str]:
    """Messages about sequences, tokens or d_model that are not divisible by their shards."""
    shards = data_shards(sizes)
    if job.batch % shards:
        mesh = _product_text({role: sizes[role] for role in ("data", "fsdp", "expert")})
        yield (
            f"{job.batch:,} sequences do not divide over {shards:,} shards ({mesh}). Nearest "
            f"batches that do: {near_multiples(job.batch, shards)}."
        )
    context = sizes["context"]
    if job.seq % context:
        yield (
            f"{job.seq:,} tokens of a sequence do not divide over context {context}. Sizes "
            f"that do: {near_divisors(job.seq, context)}."
        )
    fsdp = sizes["fsdp"]
    if config.d_model % (fsdp * context):
        yield (
            f"d_model {config.d_model:,} does not divide over fsdp {fsdp} x context {context}. "
            "Move a factor of fsdp to data."
        )


def _stages_fill(config: ModelConfig, pipe: int) -> bool:
    """Whether every stage has a layer, and the stages are about equal."""
    return pipe <= config.n_layers and bool(fills_stages(config.n_layers, pipe))


def near_multiples(n: int, factor: int) -> str:
    """Text with the positive multiples of `factor` just below and above n: "8, 12"."""
    below = n // factor * factor
    above = -(-n // factor) * factor
    if not below:
        return f"{above:,}"
    return f"{below:,}, {above:,}"


def legal_meshes(
    config: ModelConfig, n_chips: int, job: Train, fixed: Mapping[str, int]
) -> Iterator[Mesh]:
    """Every mesh of `n_chips` whose sizes divide the model and the batch.

    Only `pipe` need not divide: the number of layers may leave a few places in its stages empty.

    Args:
        fixed: mesh role -> size, for the roles that the user fixed.
    """
    for tensor, context, shards in _tensor_and_context(config, job.seq, n_chips, fixed):
        for pipe in _sizes(shards, "pipe", fixed):
            data_parallel = shards // pipe
            if job.batch % data_parallel or not _stages_fill(config, pipe):
                continue
            for expert in _sizes(math.gcd(n_experts(config), data_parallel), "expert", fixed):
                ranks = data_parallel // expert
                max_fsdp = math.gcd(ranks, config.d_model // context)
                for fsdp in _sizes(max_fsdp, "fsdp", fixed):
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


def _tensor_and_context(
    config: ModelConfig, seq: int, chips: int, fixed: Mapping[str, int]
) -> Iterator[tuple[int, int, int]]:
    """(tensor, context, chips / tensor / context) for legal sizes of `tensor` and `context`."""
    common_width = math.gcd(*tensor_widths(config).values())
    for tensor in _sizes(common_width, "tensor", fixed):
        if chips % tensor or not kv_heads_divide(config, tensor):
            continue
        for context in _sizes(math.gcd(chips // tensor, seq), "context", fixed):
            if config.d_model % context == 0:
                yield tensor, context, chips // tensor // context


def _sizes(n: int, role: str, fixed: Mapping[str, int]) -> list[int]:
    """The divisors of n; if the role is fixed, its size alone, or nothing if that is no divisor."""
    if role not in fixed:
        return divisors(n)
    if n % fixed[role]:
        return []
    return [fixed[role]]


def batch_shards(config: ModelConfig, seq: int, system: System) -> list[int]:
    """The possible numbers of batch shards in a search on all chips without a pipeline."""
    numbers = set()
    for _, context, shards in _tensor_and_context(config, seq, system.n_chips, {}):
        if worth_sharding(seq, context):
            numbers.add(shards)
    return sorted(numbers)


def context_fits(config: ModelConfig, form: Form, sizes: Mapping[str, Num]) -> Num:
    """Whether `tensor` x `context` chips can share the heads, which only "ulysses" requires."""
    shards = sizes["tensor"] * sizes["context"]
    fits = shards > 0
    if form.context_kind != "ulysses":
        return fits
    for attention, _ in config.attentions:
        fits = fits & (attention.n_heads % shards == 0)
    return fits & kv_heads_divide(config, shards)


def experts_fit(config: ModelConfig, form: Form, sizes: Mapping[str, Num]) -> Num:
    """Whether the number of chips that experts are divided over divides the number of experts.

    With `expert_tensor`, these are chips of `expert` and of `tensor`; sizes of `expert` alone are
    always legal here, as `legal_meshes` has checked them.
    """
    degree = expert_degree(form.expert_tensor, sizes)
    return (n_experts(config) % degree == 0) | (degree == sizes["expert"])


def chunks_fit(layout: Layout | Layouts, seq: int) -> Num:
    """Whether all chunks of the loss have the same number of tokens."""
    return layout.micro_batch * seq // layout.sizes["context"] % layout.loss_chunks == 0


def is_legal(config: ModelConfig, job: Train, layouts: Layouts) -> Num:
    """Whether each of the layouts, whose meshes are legal, has none of `layout_problems`."""
    sizes = layouts.sizes
    legal = context_fits(config, layouts, sizes) & chunks_fit(layouts, job.seq)
    if layouts.expert_tensor:
        legal = legal & (sizes["tensor"] > 1) & experts_fit(config, layouts, sizes)
    if not layouts.is_pipelined:
        return legal
    schedule = find(layouts.schedule)
    chunks = schedule.chunks or layouts.virtual
    even = fills_stages(config.n_layers, schedule.parts(sizes["pipe"], chunks))
    return legal & even & schedule.legal(sizes["pipe"], layouts.n_microbatches, chunks)


def chunk_problems(layout: Layout, seq: int) -> list[str]:
    """Messages about tokens of a chip that do not divide into equal chunks of the loss."""
    if chunks_fit(layout, seq):
        return []
    context = layout.mesh.context
    tokens = layout.micro_batch * seq // context
    largest = max(n for n in divisors(tokens) if n <= layout.loss_chunks)
    return [
        f"loss_chunks {layout.loss_chunks} does not divide the {tokens:,} tokens of a chip "
        f"(micro_batch {layout.micro_batch} x {seq:,} over context {context}). {largest} does."
    ]


def layout_problems(config: ModelConfig, layout: Layout, seq: int) -> list[str]:
    """Messages about a layout's schedule, attention, experts and loss that its mesh does not allow.

    Raises:
        BadShape: the schedule does not allow these numbers of stages, microbatches and chunks.
    """
    reasons = []
    if not context_fits(config, layout, layout.sizes):
        reasons.append(
            f"ulysses shards {config.n_heads} heads over tensor {layout.mesh.tensor} x context "
            f"{layout.mesh.context}, which does not divide them. Use context_kind ring."
        )
    if not experts_fit(config, layout, layout.sizes):
        reasons.append(
            f"expert_tensor {layout.expert_tensor} shards {n_experts(config)} experts over "
            f"{layout.expert_degree} chips of tensor and expert, which does not divide them. Use "
            "fewer of either."
        )
    reasons += chunk_problems(layout, seq)
    if not layout.is_pipelined:
        return reasons
    schedule = find(layout.schedule)
    stages = layout.mesh.pipe
    chunks = schedule.chunks or layout.virtual
    schedule.check(stages, layout.n_microbatches, chunks)
    if not fills_stages(config.n_layers, schedule.parts(stages, chunks)):
        reasons.append(
            f"{config.n_layers} layers fill less than {MIN_FILLED_SHARE:.0%} of the places in "
            f"{stages} stages of {chunks} chunks. Use fewer chunks."
        )
    return reasons
