"""Time of gradient sync and of the optimizer update in a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwise import units
from shardwise.arrays import Num, maximum
from shardwise.estimate.items import PricedItem
from shardwise.estimate.training import measured_rates
from shardwise.estimate.training.memory.parameters import ZeroShards, zero_shards
from shardwise.estimate.training.optimizer import state_bytes, update_flops
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.estimate.training.synced_parameters import (
    SyncedParameters,
    synced_parameters,
)
from shardwise.models import ModelConfig
from shardwise.models.token_prediction import mtp_model
from shardwise.ops.einsum import shards
from shardwise.strategy.layout import Layout, Layouts
from shardwise.strategy.schedules import find
from shardwise.strategy.stages import Stages

# Axes that shard the batch and replicate the weights under ZeRO 0 to 2.
BATCH_AXES = ("data", "expert")
NORM_AXES = ("data", "expert", "fsdp", "context", "tensor")  # axes that replicate norms
# Group of weights -> its description in a plan.
DESCRIPTIONS = {
    "matrices": "matrices of layers",
    "ends": "embedding and unembedding",
    "copied": "routers and what else `tensor` copies",
    "experts": "experts",
    "vectors": "norms",
}

# Seconds of AdamW for one parameter on the processors of a host: 1B parameters take 0.22 s, 8B take
# 2.4 s (ZeRO-Offload, arXiv 2101.06840, table 4).
HOST_UPDATE_S = 0.25e-9
MAX_GPUS_PER_HOST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientGroup:
    """Weights whose gradients are summed over the same chips.

    Args:
        weights: name of the group: "matrices"; "copied" for matrices that `tensor` replicates;
            "experts"; "ends" for embedding and unembedding; "vectors".
        axes: mesh axes that replicate the weights; ZeRO 1 and 2 shard their state over these axes.
        elements: number of elements on one chip of the fullest pipeline stage.
        arrays: number of arrays.
    """

    weights: str
    axes: tuple[str, ...]
    elements: Num
    arrays: int


def gradient_groups(
    config: ModelConfig, layout: Layout | Layouts, stage: Stages, mtp_layers: int = 0
) -> Iterator[GradientGroup]:
    """Gradient groups of a chip of the fullest pipeline stage, which may be that of MTP layers.

    Gradients of experts are not summed over `expert`, which shards them. Under ZeRO-3, gradients
    have already been summed over the axes that shard the weights, so only `data` remains.
    """
    mesh = layout.sizes
    tensor = mesh["tensor"]
    parameters = synced_parameters(config, mtp_layers)
    single = parameters.single
    held = _held_layers(config, stage, mtp_layers)
    axes: tuple[str, ...] = (*BATCH_AXES, "context")
    state = ZeroShards(dense=1, routed=1)
    if layout.zero == 3:
        axes = ("data",)
        state = zero_shards(layout, mesh)
    if not layout.is_pipelined or find(layout.schedule).ends_meet:
        outer = single
        outer_elements = single.local(tensor)
    else:
        outer = parameters.last
        outer_elements = maximum(parameters.first.local(tensor), outer.local(tensor))
    matrices, replicated, vectors = parameters.layers.arrays
    _, outer_replicated, outer_vectors = single.arrays
    groups = {
        "matrices": (sum(n * kind.layers.local(tensor) for kind, n in held), matrices),
        "ends": (outer_elements, single.arrays[0]),
        "copied": (
            sum(n * kind.layers.replicated for kind, n in held) + outer.replicated,
            replicated + outer_replicated,
        ),
        "vectors": (
            sum(n * kind.layers.vectors for kind, n in held) + outer.vectors,
            vectors + outer_vectors,
        ),
    }
    for name, (elements, arrays) in groups.items():
        yield GradientGroup(weights=name, axes=axes, elements=elements / state.dense, arrays=arrays)
    if parameters.routed:
        expert_shards = mesh["expert"] * tensor * state.routed
        yield GradientGroup(
            weights="experts",
            axes=tuple(axis for axis in axes if axis != "expert"),
            elements=sum(n * kind.routed for kind, n in held) / expert_shards,
            arrays=parameters.routed_arrays,
        )


def _held_layers(
    config: ModelConfig, stage: Stages, mtp_layers: int
) -> list[tuple[SyncedParameters, Num]]:
    """Parameters of the model's layers, with the share of them that a stage holds.

    MTP layers beyond those that the stage has room for follow, as a multiple of one of them.
    """
    held = [(synced_parameters(config), stage.held / config.n_layers)]
    if mtp_layers:
        mtp = mtp_model(config)
        beyond = stage.held_beyond(mtp_layers * mtp.n_layers)
        held.append((synced_parameters(mtp), beyond / mtp.n_layers))
    return held


def _groups(priced: PricedLayout) -> Iterator[GradientGroup]:
    return gradient_groups(priced.config, priced.layout, priced.stage, priced.job.mtp_layers)


def _collectives(priced: PricedLayout) -> Iterator[PricedItem]:
    """Collectives of a step over replicas of weights, without their time.

    - ZeRO-0 sums gradients in an AllReduce; so does ZeRO-3 for shards that have replicas.
    - ZeRO 1 and 2 sum them in a ReduceScatter and gather the updated weights. ZeRO-2 stores only a
      shard of the gradients, so it scatters those of every microbatch.
    - With sequence parallelism, the chips of `tensor` have partial gradients of the weights that
      they replicate, and sum them in an AllReduce over `tensor`.
    - Vectors are priced here as if they were sent together with the matrices; the program has
      another collective for them, see `_vector_sync`.
    - An int8 reduction is an AllToAll, in which each chip receives its part of the gradients from
      every other chip, so V is the gradients of all chips together. Instead of an AllReduce, an
      AllGather of the sums in int8 follows.
    """
    job = priced.job
    layout = priced.layout
    mesh = priced.mesh
    scatters = layout.zero in (1, 2)
    if priced.rates.variant.frozen:
        return
    for group in _groups(priced):
        n_bytes = group.elements * job.reduce_bytes
        if job.sums_in_int8 and group.weights != "vectors":
            rounded_bytes = group.elements * job.int8_gradient_bytes
            joined_bytes = rounded_bytes * shards(group.axes, mesh)
            count = _reductions(layout)
            yield _collective(group, "all_to_all", group.axes, joined_bytes, count=count)
            if not scatters:
                yield _collective(group, "all_gather", group.axes, rounded_bytes)
        else:
            kind = "reduce_scatter" if scatters else "all_reduce"
            yield _collective(group, kind, group.axes, n_bytes, count=_reductions(layout))
        if group.weights in ("copied", "vectors") and layout.sequence_parallel:
            if scatters:
                n_bytes = n_bytes / shards(group.axes, mesh)
            yield _collective(group, "all_reduce", ("tensor",), n_bytes)
        if scatters:
            # Updated weights are sent in the dtype that matmuls read.
            n_bytes = group.elements * min(job.weight_bytes, job.activation_bytes)
            yield _collective(group, "all_gather", group.axes, n_bytes, arrays="weights")


def _reductions(layout: Layout | Layouts) -> Num:
    """Number of times per step that gradients are reduced."""
    return layout.n_microbatches if layout.zero == 2 else 1


def _vector_sync(priced: PricedLayout) -> PricedItem:
    """AllReduce of the gradients of norms over all of their replicas, once per step.

    Norms are replicated even under ZeRO-3, as they are too small to be sharded.
    """
    mesh = priced.mesh
    layout = priced.layout
    group = next(group for group in _groups(priced) if group.weights == "vectors")
    elements = group.elements
    if layout.zero == 3:
        elements = elements * zero_shards(layout, mesh).dense
    n_bytes = elements * priced.job.reduce_bytes
    return _collective(group, "all_reduce", NORM_AXES, n_bytes)


def _collective(
    group: GradientGroup,
    kind: str,
    axes: tuple[str, ...],
    n_bytes: Num,
    *,
    count: Num = 1,
    arrays: str = "gradients",
) -> PricedItem:
    """Item for a collective of a group's gradients, or of its updated weights, without its time."""
    return PricedItem(
        name=f"{arrays}.{group.weights}",
        phase="update" if arrays == "weights" else "backward",
        role="data",
        kind=kind,
        axes=axes,
        description=f"{arrays} of {DESCRIPTIONS[group.weights]}",
        part=group.weights,
        count=count,
        joined_bytes=n_bytes,
        arrays=group.arrays,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncTime:
    """Time of gradient sync.

    Args:
        reduce_s: seconds of one reduction of all gradients.
        reductions: number of reductions per step.
        gather_s: seconds per step, under ZeRO 1 and 2, to gather updated weights and to sum shards
            of gradients over `tensor`.
    """

    reduce_s: Num
    reductions: Num
    gather_s: Num

    @property
    def total_s(self) -> Num:
        """Seconds of gradient sync per step."""
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
    """Collectives that are sent as one: of the same kind over the same axes.

    Args:
        kind: kind of the collectives.
        items: the collectives.
        n_bytes: sum of their `joined_bytes`.
        seconds: time of all of them, sent as one.
    """

    kind: str
    items: list[PricedItem]
    n_bytes: Num
    seconds: Num


def _buckets(priced: PricedLayout) -> Iterator[_Bucket]:
    """Buckets of the collectives of a step, each with its time."""
    buckets: dict[tuple[str, tuple[str, ...]], list[PricedItem]] = {}
    for item in _collectives(priced):
        buckets.setdefault((item.kind, item.axes), []).append(item)
    for (kind, axes), items in buckets.items():
        n_bytes = sum((item.joined_bytes for item in items), 0.0)
        yield _Bucket(kind, items, n_bytes, priced.collective_s(kind, axes, n_bytes))


def sync_items(priced: PricedLayout) -> Iterator[PricedItem]:
    """Collectives over replicas of one layout's weights, each with its share of a bucket's time.

    The shares of vectors are summed in the AllReduce of `_vector_sync`.
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
    """Seconds of the optimizer update.

    State, weights and the error feedback of an int8 reduction are read and written once, gradients
    read once. Optimizer state in host memory is copied over the chip's PCIe link, without overlap;
    on GPUs it stays there, and the host updates the weights (`HOST_UPDATE_S`).
    The FLOPs of Muon are divided evenly over all chips, as each matrix is on one of them (arXiv
    2502.16982); the gathers of Muon are not counted.
    """
    job = priced.job
    mesh = priced.mesh
    rates = priced.rates
    if rates.variant.frozen:
        return 0.0
    layout = priced.layout
    elements: Num = 0
    feedback_elements: Num = 0
    for group in _groups(priced):
        replicas = shards(group.axes, mesh)
        local_elements = group.elements
        if layout.zero in (1, 2):
            local_elements = local_elements / replicas
        elements = elements + local_elements
        if job.sums_in_int8:
            feedback_elements = feedback_elements + group.elements * (replicas > 1)
    state = state_bytes(priced.config, job)
    weights_and_gradients = 2 * job.weight_bytes + units.bytes_per_element(job.gradients)
    if "optimizer" in layout.offload and rates.chip.kind == "gpu" and not rates.fusion.ideal:
        pcie_bytes_per_s = rates.chip.need("pcie_bytes_per_s_per_chip")
        gpus_per_host = min(rates.chip.node.n_gpus if rates.chip.node else 1, MAX_GPUS_PER_HOST)
        seconds = elements * (weights_and_gradients - job.weight_bytes) / pcie_bytes_per_s
        seconds = seconds + elements * gpus_per_host * HOST_UPDATE_S
    elif "optimizer" in layout.offload:
        pcie_bytes_per_s = rates.chip.need("pcie_bytes_per_s_per_chip")
        seconds = elements * weights_and_gradients / rates.hbm_bytes_per_s
        seconds = seconds + elements * 2 * state / pcie_bytes_per_s
    else:
        seconds = elements * (weights_and_gradients + 2 * state) / rates.hbm_bytes_per_s
    if rates.measured:
        rate = measured_rates.update_bytes_per_s(rates.chip)
        seconds = seconds * rates.hbm_bytes_per_s / rate + rates.chip.training.get("step", 0.0)
    flops = update_flops(priced.config, job)
    if flops:
        seconds = seconds + flops / (shards(tuple(mesh), mesh) * rates.matmul_flops_per_s)
    if job.sums_in_int8:
        seconds = seconds + 2 * feedback_elements * job.error_feedback_bytes / rates.hbm_bytes_per_s
    return seconds


def update(priced: PricedLayout) -> PricedItem:
    """Item for the optimizer update, whose whole time is attributed to HBM."""
    n_parameters = sum(float(group.elements) for group in _groups(priced))
    return PricedItem(
        name=f"optimizer.{priced.job.optimizer}",
        phase="update",
        description=f"{units.show_count(n_parameters)} parameters on the chip <- gradients",
        n_bytes=update_s(priced) * priced.rates.hbm_bytes_per_s,
        bytes_per_s=priced.rates.hbm_bytes_per_s,
    )
