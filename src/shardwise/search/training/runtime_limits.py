"""Limits of the runtime: models, jobs and layouts that can be planned, but not trained yet.

A search leaves out layouts beyond them, unless any layout is wanted (`Fixed.any_layout`), or the
job is that of another framework. A plan beyond them says so, and `train` and `check` refuse it.
`plan.training.limit_text` has the sentences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from shardwise.arrays import Num, where
from shardwise.hardware import Chip
from shardwise.models import Layer, ModelConfig, Moe, stack
from shardwise.models.numerics import ACTIVATIONS, ROPE_SCALINGS
from shardwise.search.model_sizes import kv_heads_divide, tensor_widths
from shardwise.strategy.layout import Layout, Layouts
from shardwise.strategy.schedules import find
from shardwise.strategy.stages import stages
from shardwise.workload import Train

TRAINED_DTYPES = ("bf16", "fp16", "fp32")  # narrower ones need scales, which the step does not have
PLANNED_OFFLOADS = ("weights", "gradients")  # what only plans move to host memory

Kind = Literal[
    "activation", "adafactor", "block", "devices", "dtype", "expert_tensor", "int8_rounds",
    "kv_heads", "loss_chunks", "mtp", "offload", "offload_layers", "offload_pipeline", "positions",
    "reduce", "remat_layers", "ring_chunks", "ring_window", "rope_scaling", "schedule", "scores",
    "stages",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeLimit:
    """Something of a model, a job or a layout that the runtime does not support.

    Args:
        kind: which limit it is.
        part: the part of the model, the job or the layout that is beyond it.
        value: its word or number.
        limit: the largest number that is supported, if there is one.
    """

    kind: Kind
    part: str = ""
    value: str | int = ""
    limit: int = 0


def limits(model: ModelConfig, job: Train, layout: Layout, chip: Chip) -> list[RuntimeLimit]:
    """Everything that the runtime does not train: of the model, the job and the layout."""
    return [*dtype_limits(job), *program_limits(model, job, layout, chip)]


def program_limits(
    model: ModelConfig, job: Train, layout: Layout, chip: Chip
) -> list[RuntimeLimit]:
    """Everything that the runtime makes no program of: `limits` but for the dtypes."""
    return [
        *_model_limits(model),
        *_job_limits(model, job),
        *layout_limits(model, job, layout, chip),
    ]


def layout_limits(model: ModelConfig, job: Train, layout: Layout, chip: Chip) -> list[RuntimeLimit]:
    """What the runtime does not run of a layout, which another layout of the job may not have."""
    rules = _layout_rules(model, job, layout, chip)
    return [limit for limit, supported in rules if not supported]


def is_run(model: ModelConfig, job: Train, layouts: Layouts, chip: Chip) -> Num:
    """Whether the runtime runs each of the layouts, if it runs the model and the job at all."""
    runs = layouts.sizes["pipe"] > 0
    for _, supported in _layout_rules(model, job, layouts, chip):
        runs = runs & supported
    return runs


def dtype_limits(job: Train) -> Iterator[RuntimeLimit]:
    """Dtypes in which the runtime does not train, although their programs can be compiled."""
    for role in ("weights", "compute", "gradients", "moments", "master"):
        dtype = getattr(job, role)
        if dtype is not None and dtype not in TRAINED_DTYPES:
            yield RuntimeLimit(kind="dtype", part=role, value=dtype)


def _model_limits(model: ModelConfig) -> Iterator[RuntimeLimit]:
    """Blocks, activations and rope scalings that the runtime does not have."""
    layers = [group.layer for group in model.groups]
    blocks = [layer.ffn for layer in layers if layer.ffn]
    features = {
        "Mamba blocks": bool(model.mambas),
        "experts or latent attention in parallel to another block": any(
            _has_parallel_block(layer) for layer in layers
        ),
        "experts of a latent": any(isinstance(block, Moe) and block.d_latent for block in blocks),
    }
    for feature, has_feature in features.items():
        if has_feature:
            yield RuntimeLimit(kind="block", part=feature)
    for name in sorted({block.activation for block in blocks} - set(ACTIVATIONS.values())):
        yield RuntimeLimit(kind="activation", value=name)
    scalings = {a.rotary.scaling.kind for a, _ in model.attentions if a.rope and a.rotary.scaling}
    for name in sorted(scalings - set(ROPE_SCALINGS)):
        yield RuntimeLimit(kind="rope_scaling", value=name)


def _has_parallel_block(layer: Layer) -> bool:
    """Whether experts or latent attention are in parallel to another block."""
    latent = layer.attention and layer.attention.mla
    return layer.parallel and bool(latent or isinstance(layer.ffn, Moe))


def _job_limits(model: ModelConfig, job: Train) -> Iterator[RuntimeLimit]:
    if model.n_positions and job.seq > model.n_positions:  # a lookup would repeat the last row
        yield RuntimeLimit(kind="positions", value=job.seq, limit=model.n_positions)
    if job.mtp_layers:
        yield RuntimeLimit(kind="mtp", value=job.mtp_layers)
    if job.reduce_bytes < 2:
        yield RuntimeLimit(kind="reduce", value=job.reduce or job.gradients)


def devices_per_chip(chip: Chip) -> int:
    """Number of devices that JAX shows for one chip."""
    if not chip.ici:
        return 1
    return chip.n_devices or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCounts:
    """A layout, or many, as the devices of each chip share it: see `layout.chip_devices`.

    Args:
        n: devices of a chip.
        divide: whether the devices divide the sequences or the heads of a chip.
        micro_batch, n_microbatches, tensor: those of the layout whose mesh counts devices.
    """

    n: int
    divide: Num
    micro_batch: Num
    n_microbatches: Num
    tensor: Num


def device_counts(model: ModelConfig, layout: Layout | Layouts, chip: Chip) -> DeviceCounts:
    """Divide the sequences of a chip among its devices, or else its heads."""
    n = devices_per_chip(chip)
    smaller = layout.micro_batch % n == 0
    fewer = (layout.n_microbatches % n == 0) & (layout.sizes["pipe"] == 1)
    tensor = layout.sizes["tensor"] * n
    return DeviceCounts(
        n=n,
        divide=smaller | fewer | heads_divide(model, tensor),
        micro_batch=where(smaller, layout.micro_batch // n, layout.micro_batch),
        n_microbatches=where(
            fewer & (layout.micro_batch % n != 0), layout.n_microbatches // n, layout.n_microbatches
        ),
        tensor=where(smaller | fewer, layout.sizes["tensor"], tensor),
    )


def heads_divide(model: ModelConfig, tensor: Num) -> Num:
    """Whether heads and widths of all layers divide by the size of `tensor`."""
    divide = kv_heads_divide(model, tensor)
    for width in tensor_widths(model).values():
        divide = divide & (width % tensor == 0)
    return divide


Rule = tuple[RuntimeLimit, Num]  # a limit, and whether a layout, or each of many, is within it


def _layout_rules(
    model: ModelConfig, job: Train, layout: Layout | Layouts, chip: Chip
) -> Iterator[Rule]:
    """Every limit that depends on the layout."""
    devices = device_counts(model, layout, chip)
    yield RuntimeLimit(kind="devices", value=devices.n), devices.divide
    yield from _array_rules(model, job, layout, devices)
    yield from _pipeline_rules(model, layout)
    yield from _offload_rules(layout)
    if layout.remat_layers is not None:
        yield RuntimeLimit(kind="remat_layers", value=layout.remat_layers), False
    if layout.context_kind != "gather":
        yield from _context_rules(model, job, layout)
    if job.optimizer == "adafactor":
        yield from _adafactor_rules(model, layout, devices)


def _array_rules(
    model: ModelConfig, job: Train, layout: Layout | Layouts, devices: DeviceCounts
) -> Iterator[Rule]:
    """Rules for the shards of arrays and the sums of gradients."""
    tokens = devices.micro_batch * job.seq // layout.sizes["context"]
    yield (
        RuntimeLimit(kind="loss_chunks", value=layout.loss_chunks),
        tokens % layout.loss_chunks == 0,
    )
    if layout.expert_tensor not in (None, 1):
        yield (
            RuntimeLimit(kind="expert_tensor", value=layout.expert_tensor),
            devices.tensor == layout.expert_tensor,
        )
    kv_heads = sorted({a.n_kv_heads for a, _ in model.attentions if not a.mla})
    for fewer, more in combinations(kv_heads, 2):  # each number is one factor of the tensor axis
        if more % fewer:
            yield (
                RuntimeLimit(kind="kv_heads", part=f"{fewer}, {more}", limit=more),
                devices.tensor <= more,
            )
    if job.sums_in_int8 and layout.zero == 2:
        yield (
            RuntimeLimit(kind="int8_rounds", value=devices.n_microbatches),
            devices.n_microbatches == 1,
        )


def _pipeline_rules(model: ModelConfig, layout: Layout | Layouts) -> Iterator[Rule]:
    n_segments = len(stack(model))
    if n_segments > 1:
        yield RuntimeLimit(kind="stages", value=n_segments), layout.sizes["pipe"] == 1
    if layout.is_pipelined and find(layout.schedule).weight_copies > 1:
        yield RuntimeLimit(kind="schedule", value=layout.schedule), False


def _offload_rules(layout: Layout | Layouts) -> Iterator[Rule]:
    for part in layout.offload:
        if part in PLANNED_OFFLOADS:
            yield RuntimeLimit(kind="offload", part=part), False
    if layout.offload_layers is not None:
        yield RuntimeLimit(kind="offload_layers", value=layout.offload_layers), False
    if {*layout.offload} - {*PLANNED_OFFLOADS, "optimizer"}:
        yield RuntimeLimit(kind="offload_pipeline"), layout.sizes["pipe"] == 1


def _context_rules(model: ModelConfig, job: Train, layout: Layout | Layouts) -> Iterator[Rule]:
    """Rules for attention that passes keys around a ring, or exchanges heads."""
    context = layout.sizes["context"]
    attentions = [attention for attention, _ in model.attentions]
    is_ring = layout.context_kind == "ring"
    if is_ring and any(a.causal for a in attentions):
        windows = {a.window for a in attentions if a.causal and a.is_local(job.seq)}
        for window in sorted(filter(None, windows)):
            yield RuntimeLimit(kind="ring_window", value=window), context == 1
        yield (
            RuntimeLimit(kind="ring_chunks", value=job.seq, limit=2 * context),
            (context == 1) | (job.seq % (2 * context) == 0),
        )
    features = {
        "ALiBi": any(a.alibi for a in attentions),
        "sinks": any(a.sinks for a in attentions),
        "a cap of scores": is_ring and any(a.softcap for a in attentions),
    }
    for feature, has_feature in features.items():
        if has_feature:
            limit = RuntimeLimit(kind="scores", part=feature, value=layout.context_kind)
            yield limit, context == 1


def _adafactor_rules(
    model: ModelConfig, layout: Layout | Layouts, devices: DeviceCounts
) -> Iterator[Rule]:
    """Rules for the means of Adafactor over whole arrays, which padding would falsify."""
    vocabulary = RuntimeLimit(kind="adafactor", part="vocabulary", value=model.vocab)
    yield vocabulary, model.vocab % devices.tensor == 0
    segments = stack(model)
    if layout.is_pipelined and len(segments) == 1:
        n_periods = segments[0].repeats
        layers = RuntimeLimit(kind="adafactor", part="layers", value=model.n_layers)
        yield layers, stages(n_periods, layout).spare == 0
