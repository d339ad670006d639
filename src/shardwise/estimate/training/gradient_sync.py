"""Gradient sync and optimizer update, once per step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwise import units
from shardwise.arrays import Num, maximum
from shardwise.estimate.items import PricedItem
from shardwise.estimate.training.optimizer import state_bytes, update_flops
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.estimate.training.synced_parameters import synced_parameters
from shardwise.models import ModelConfig
from shardwise.ops.einsum import shards
from shardwise.strategy.layout import Layout, Layouts
from shardwise.strategy.schedules import find
from shardwise.strategy.stages import Stages

BATCH_AXES = ("data", "expert")  # ZeRO 0 to 2 replicates weights over these axes of the batch
NORM_AXES = ("data", "expert", "fsdp", "context", "tensor")  # axes that replicate norms
DESCRIPTIONS = {
    "matrices": "matrices of layers",
    "ends": "embedding and unembedding",
    "copied": "routers and what else `tensor` copies",
    "experts": "experts",
    "vectors": "norms",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientGroup:
    """Weights whose gradients are summed over the same chips.

    Args:
        what: `matrices`, `copied` (on every chip of `tensor`), `experts`, `ends` (embedding and
            unembedding), `vectors`.
        axes: axes that replicate them, which ZeRO 1 and 2 make shards.
        elements: on one chip of the busiest stage.
        arrays: number of arrays.
    """

    what: str
    axes: tuple[str, ...]
    elements: Num
    arrays: int


def gradient_groups(
    config: ModelConfig, layout: Layout | Layouts, stage: Stages
) -> Iterator[GradientGroup]:
    """Gradient groups of a chip of the busiest stage.

    Experts are sharded over `expert`: their gradients are not summed over it. ZeRO-3 has already
    summed gradients over all axes that shard the weights; the groups are the remaining replicas.
    """
    mesh = layout.sizes
    tensor = mesh["tensor"]
    parameters = synced_parameters(config)
    layers = parameters.layers
    single = parameters.single
    stage_share = stage.held / config.n_layers
    axes: tuple[str, ...] = (*BATCH_AXES, "context")
    zero_shards: Num = 1
    routed_shards: Num = 1
    if layout.zero == 3:
        axes = ("data",)
        routed_shards = mesh["fsdp"] * mesh["context"]
        zero_shards = routed_shards * mesh["expert"]
    if not layout.is_pipelined or find(layout.schedule).ends_meet:
        outer = single
        outer_elements = single.local(tensor)
    else:
        outer = parameters.last
        outer_elements = maximum(parameters.first.local(tensor), outer.local(tensor))
    matrices, replicated, vectors = layers.arrays
    _, outer_replicated, outer_vectors = single.arrays
    groups = {
        "matrices": (layers.local(tensor) * stage_share, matrices),
        "ends": (outer_elements, single.arrays[0]),
        "copied": (
            layers.replicated * stage_share + outer.replicated,
            replicated + outer_replicated,
        ),
        "vectors": (layers.vectors * stage_share + outer.vectors, vectors + outer_vectors),
    }
    for what, (elements, arrays) in groups.items():
        yield GradientGroup(what=what, axes=axes, elements=elements / zero_shards, arrays=arrays)
    if parameters.routed:
        expert_shards = mesh["expert"] * tensor * routed_shards
        yield GradientGroup(
            what="experts",
            axes=tuple(axis for axis in axes if axis != "expert"),
            elements=parameters.routed * stage_share / expert_shards,
            arrays=parameters.routed_arrays,
        )


def _collectives(priced: PricedLayout) -> Iterator[PricedItem]:
    """Collectives of a step over replicas of weights, not yet priced.

    ZeRO 0 sums gradients in an AllReduce; so does ZeRO-3 for shards that have replicas. ZeRO 1 and
    2 scatter them, and gather the updated weights; ZeRO-2 stores only a shard of the gradients, so
    it scatters those of every microbatch. With sequence parallelism, chips of `tensor` have partial
    gradients of the weights that `tensor` replicates. Vectors are priced as if they travelled with
    the matrices; their own collective is `_vector_sync`.

    Reduction in int8 does not sum on the way: each chip sends every other chip its part (V of the
    AllToAll is all that they hold), and the AllReduce ends in a gather of sums in int8.
    """
    job = priced.job
    layout = priced.layout
    mesh = priced.mesh
    scatters = layout.zero in (1, 2)
    if priced.rates.variant.frozen:
        return
    for group in gradient_groups(priced.config, layout, priced.stage):
        n_bytes = group.elements * job.reduce_bytes
        if job.sums_in_int8 and group.what != "vectors":
            rounded = group.elements * job.int8_gradient_bytes
            joined_bytes = rounded * shards(group.axes, mesh)
            count = _reductions(layout)
            yield _collective(group, "all_to_all", group.axes, joined_bytes, count=count)
            if not scatters:
                yield _collective(group, "all_gather", group.axes, rounded)
        else:
            kind = "reduce_scatter" if scatters else "all_reduce"
            yield _collective(group, kind, group.axes, n_bytes, count=_reductions(layout))
        if group.what in ("copied", "vectors") and layout.sequence_parallel:
            if scatters:
                n_bytes = n_bytes / shards(group.axes, mesh)
            yield _collective(group, "all_reduce", ("tensor",), n_bytes)
        if scatters:
            # In the dtype that matmuls read.
            n_bytes = group.elements * min(job.weight_bytes, job.activation_bytes)
            yield _collective(group, "all_gather", group.axes, n_bytes, what="weights")


def _reductions(layout: Layout | Layouts) -> Num:
    """Number of times per step that gradients are reduced."""
    return layout.n_microbatches if layout.zero == 2 else 1


def _vector_sync(priced: PricedLayout) -> PricedItem:
    """AllReduce of the gradients of norms over all of their replicas, once per step.

    Norms are too small to be sharded, under ZeRO-3 too.
    """
    mesh = priced.mesh
    layout = priced.layout
    groups = gradient_groups(priced.config, layout, priced.stage)
    group = next(group for group in groups if group.what == "vectors")
    elements = group.elements
    if layout.zero == 3:
        elements = elements * (mesh["fsdp"] * mesh["context"] * mesh["expert"])
    n_bytes = elements * priced.job.reduce_bytes
    return _collective(group, "all_reduce", NORM_AXES, n_bytes)


def _collective(
    group: GradientGroup,
    kind: str,
    axes: tuple[str, ...],
    n_bytes: Num,
    *,
    count: Num = 1,
    what: str = "gradients",
) -> PricedItem:
    return PricedItem(
        name=f"{what}.{group.what}",
        phase="update" if what == "weights" else "backward",
        role="data",
        kind=kind,
        axes=axes,
        description=f"{what} of {DESCRIPTIONS[group.what]}",
        part=group.what,
        count=count,
        joined_bytes=n_bytes,
        arrays=group.arrays,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncTime:
    """Time of gradient sync.

    Args:
        reduce_s: seconds of one reduction of all gradients.
        reductions: reductions per step.
        gather_s: seconds once per step: sums of shards over `tensor`, gathers of updated weights.
    """

    reduce_s: Num
    reductions: Num
    gather_s: Num

    @property
    def total_s(self) -> Num:
        """Seconds per step."""
        return self.reductions * self.reduce_s + self.gather_s


def sync_time(priced: PricedLayout) -> SyncTime:
    """Time of gradient sync, summed over all buckets."""
    layout = priced.layout
    reduce_s: Num = 0.0
    gather_s: Num = 0.0
    for bucket in _buckets(priced):
        if layout.zero in (1, 2) and bucket.kind not in ("reduce_scatter", "all_to_all"):
            gather_s = gather_s + bucket.seconds
        else:
            reduce_s = reduce_s + bucket.seconds
    return SyncTime(reduce_s=reduce_s, reductions=_reductions(layout), gather_s=gather_s)


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Arrays that travel together: one kind of collective over the same axes."""

    kind: str
    items: list[PricedItem]
    n_bytes: Num
    seconds: Num


def _buckets(priced: PricedLayout) -> Iterator[_Bucket]:
    buckets: dict[tuple[str, tuple[str, ...]], list[PricedItem]] = {}
    for item in _collectives(priced):
        buckets.setdefault((item.kind, item.axes), []).append(item)
    for (kind, axes), items in buckets.items():
        n_bytes = sum((item.joined_bytes for item in items), 0.0)
        yield _Bucket(kind, items, n_bytes, priced.collective_s(kind, axes, n_bytes))


def sync_items(priced: PricedLayout) -> Iterator[PricedItem]:
    """Collectives over replicas of one layout's weights, each with its share of a bucket's time.

    The AllReduce of vectors has the sum of their shares.
    """
    vectors_s = 0.0
    for bucket in _buckets(priced):
        if not bucket.n_bytes:
            continue
        for item in bucket.items:
            seconds = float(bucket.seconds) * float(item.joined_bytes / bucket.n_bytes)
            if item.part == "vectors":
                vectors_s += float(item.count) * seconds
            else:
                yield replace(item, occurrence_s=seconds)
    if not priced.rates.variant.frozen:
        yield replace(_vector_sync(priced), occurrence_s=vectors_s)


def update_s(priced: PricedLayout) -> Num:
    """Seconds of the optimizer: state and weights are read and written once, gradients read.

    The error feedback of int8 reduction is read and written too. Optimizer state in host memory
    travels over the chip's PCIe link, without overlap. The FLOPs of Muon are spread evenly over all
    chips, each matrix on one of them (arXiv 2502.16982); its gathers are not counted.
    """
    job = priced.job
    mesh = priced.mesh
    rates = priced.rates
    if rates.variant.frozen:
        return 0.0
    layout = priced.layout
    elements: Num = 0
    feedback_elements: Num = 0
    for group in gradient_groups(priced.config, layout, priced.stage):
        replicas = shards(group.axes, mesh)
        local_elements = group.elements
        if layout.zero in (1, 2):
            local_elements = local_elements / replicas
        elements = elements + local_elements
        if job.sums_in_int8:
            feedback_elements = feedback_elements + group.elements * (replicas > 1)
    state = state_bytes(priced.config, job)
    weights_and_gradients = 2 * job.weight_bytes + units.bytes_per_element(job.gradients)
    if "optimizer" in layout.offload:
        pcie_bytes_per_s = rates.chip.need("pcie_bytes_per_s_per_chip")
        seconds = elements * weights_and_gradients / rates.hbm_bytes_per_s
        seconds = seconds + elements * 2 * state / pcie_bytes_per_s
    else:
        seconds = elements * (weights_and_gradients + 2 * state) / rates.hbm_bytes_per_s
    flops = update_flops(priced.config, job)
    if flops:
        seconds = seconds + flops / (shards(tuple(mesh), mesh) * rates.matmul_flops_per_s)
    if job.sums_in_int8:
        seconds = seconds + 2 * feedback_elements * job.error_feedback_bytes / rates.hbm_bytes_per_s
    return seconds


def update(priced: PricedLayout) -> PricedItem:
    """The optimizer's update, with all its seconds booked on HBM."""
    groups = gradient_groups(priced.config, priced.layout, priced.stage)
    n_parameters = sum(float(group.elements) for group in groups)
    return PricedItem(
        name=f"optimizer.{priced.job.optimizer}",
        phase="update",
        description=f"{units.show_count(n_parameters)} parameters on the chip <- gradients",
        n_bytes=update_s(priced) * priced.rates.hbm_bytes_per_s,
        bytes_per_s=priced.rates.hbm_bytes_per_s,
    )
