"""What happens once a step: gradients are summed, the optimizer updates the weights."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shardwise import units
from shardwise.arrays import Num, ceil_div, maximum
from shardwise.estimate.items import PricedItem
from shardwise.estimate.training.memory.parameters import end_weights, is_experts
from shardwise.estimate.training.optimizer import state_bytes, update_flops
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.models import ModelConfig
from shardwise.models.weights import Weight, layer_weights
from shardwise.ops.einsum import shards
from shardwise.strategy.layout import Layout, Layouts
from shardwise.strategy.rules import TRAIN
from shardwise.strategy.schedules import find
from shardwise.strategy.stages import Stages

# Dims of weights that `tensor` splits.
SPLIT = tuple(row.removeprefix("weights.") for row, axes in TRAIN.items() if axes == ("tensor",))
BATCH = ("data", "expert")  # axes of the batch along which ZeRO 0 to 2 copies weights
COPIES = ("data", "expert", "fsdp", "context", "tensor")  # axes along which norms are copied
WORDS = {
    "matrices": "matrices of layers",
    "ends": "embedding and unembedding",
    "copied": "routers and what else `tensor` copies",
    "experts": "experts",
    "vectors": "norms",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Parameters by how `tensor` splits them.

    Args:
        split: (size of the dim that `tensor` splits, parameters for each of it).
        copied: on every chip of `tensor`: routers, projections to a latent.
        vectors: on every chip: scales and biases of norms.
        arrays: how many arrays `split` are, `copied`, `vectors`; those of equal layers lie in one.
    """

    split: tuple[tuple[int, float], ...]
    copied: float
    vectors: float
    arrays: tuple[int, int, int]

    def over(self, tensor: Num) -> Num:
        """Parameters of `split` on one chip."""
        return sum((each * ceil_div(size, tensor) for size, each in self.split), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Of all layers, without experts; of experts; at the first end, the last, and of both."""

    layers: Held
    routed: float
    routed_arrays: int
    first: Held
    last: Held
    both: Held


@functools.lru_cache(maxsize=64)
def parameters(config: ModelConfig) -> Parameters:
    """Parameters of a model, by what sums their gradients."""
    every = [(w, g.count) for g in config.groups for w in layer_weights(config, g.layer)]
    first, last, both = (_held([(w, 1) for w in weights]) for weights in end_weights(config))
    routed = [(w, n) for w, n in every if is_experts(w)]
    return Parameters(
        layers=_held([(w, n) for w, n in every if not is_experts(w)]),
        routed=float(sum(n * w.size for w, n in routed)),
        routed_arrays=len(routed),
        first=first,
        last=last,
        both=both,
    )


def _held(weights: Sequence[tuple[Weight, int]]) -> Held:
    found: dict[int, float] = {}
    copied, vectors, arrays = 0.0, 0.0, [0, 0, 0]
    for weight, n in weights:
        sizes = [s for d, s in zip(weight.dims, weight.shape, strict=True) if d in SPLIT]
        if sizes:
            found[sizes[0]] = found.get(sizes[0], 0.0) + n * weight.size / sizes[0]
            arrays[0] += 1
        elif weight.matmul or weight.part == "embedding":
            copied += n * weight.size
            arrays[1] += 1
        else:
            vectors += n * weight.size
            arrays[2] += 1
    return Held(
        split=tuple(found.items()),
        copied=copied,
        vectors=vectors,
        arrays=(arrays[0], arrays[1], arrays[2]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientGroup:
    """Weights whose gradients are summed over the same chips.

    Args:
        what: `matrices`, `copied` (on every chip of `tensor`), `experts`, `ends`, `vectors`.
        axes: with copies of them, which ZeRO 1 and 2 make shards.
        elements: on one chip, of the busiest stage.
        arrays: how many arrays they are.
    """

    what: str
    axes: tuple[str, ...]
    elements: Num
    arrays: int


def gradient_groups(
    config: ModelConfig, layout: Layout | Layouts, stage: Stages
) -> Iterator[GradientGroup]:
    """The weights on a chip of the busiest stage.

    Experts are dealt out over `expert`: their gradients need no sum among them. ZeRO-3 has summed
    over all that shards the weights already; what is left are whole copies.
    """
    mesh, n, tensor = layout.sizes, parameters(config), layout.sizes["tensor"]
    whole = stage.held / config.n_layers
    axes: tuple[str, ...] = (*BATCH, "context")
    shared, routed = 1, 1
    if layout.zero == 3:
        routed = mesh["fsdp"] * mesh["context"]
        axes, shared = ("data",), routed * mesh["expert"]
    first, last, both = n.first, n.last, n.both
    if not layout.is_pipelined or find(layout.schedule).ends_meet:
        ends, end = both.over(tensor), both
    else:
        ends, end = maximum(first.over(tensor), last.over(tensor)), last
    layers = n.layers
    counts = {
        "matrices": (layers.over(tensor) * whole, layers.arrays[0]),
        "ends": (ends, both.arrays[0]),
        "copied": (layers.copied * whole + end.copied, layers.arrays[1] + both.arrays[1]),
        "vectors": (layers.vectors * whole + end.vectors, layers.arrays[2] + both.arrays[2]),
    }
    for what, (elements, arrays) in counts.items():
        yield GradientGroup(what=what, axes=axes, elements=elements / shared, arrays=arrays)
    if n.routed:
        of_experts = tuple(a for a in axes if a != "expert")
        experts = n.routed * whole / (mesh["expert"] * tensor * routed)
        yield GradientGroup(
            what="experts", axes=of_experts, elements=experts, arrays=n.routed_arrays
        )


def _collectives(priced: PricedLayout) -> Iterator[PricedItem]:
    """The collectives of a step over copies of weights, not yet priced.

    ZeRO 0 sums gradients in an AllReduce; so does ZeRO-3, of the shards of which there are copies.
    ZeRO 1 and 2 scatter them, and gather the updated weights; ZeRO-2 keeps a shard of the gradients
    only, so it scatters those of every microbatch. Where `tensor` splits the sequence, its chips
    have parts of the gradients of weights that all of them hold. Vectors are priced as if they
    travelled with the matrices beside them; how they are sent is said by `_vectors`.

    Chips that round to int8 add nothing up on the way: each sends every other its part (V of the
    AllToAll is all that they hold), and the AllReduce ends in a gather of sums in int8.
    """
    job, layout, mesh = priced.job, priced.layout, priced.mesh
    times = layout.n_microbatches if layout.zero == 2 else 1
    scatters = layout.zero in (1, 2)
    if priced.rates.extras.frozen:
        return
    for group in gradient_groups(priced.config, layout, priced.stage):
        n_bytes = group.elements * job.reduce_bytes
        if job.sums_in_int8 and group.what != "vectors":
            rounded = group.elements * job.rounded_bytes
            joined = rounded * shards(group.axes, mesh)
            yield _collective(group, "all_to_all", group.axes, joined, count=times)
            if not scatters:
                yield _collective(group, "all_gather", group.axes, rounded)
        else:
            kind = "reduce_scatter" if scatters else "all_reduce"
            yield _collective(group, kind, group.axes, n_bytes, count=times)
        if group.what in ("copied", "vectors") and layout.sequence_parallel:
            shard = n_bytes / shards(group.axes, mesh) if scatters else n_bytes
            yield _collective(group, "all_reduce", ("tensor",), shard)
        if scatters:
            width = min(job.weight_bytes, job.activation_bytes)  # as products read them
            yield _collective(
                group, "all_gather", group.axes, group.elements * width, what="weights"
            )


def _vectors(priced: PricedLayout) -> PricedItem:
    """Gradients of norms, summed once a step over every chip that has a copy: they are too small
    to be dealt out, under ZeRO-3 too."""
    mesh, layout = priced.mesh, priced.layout
    groups = gradient_groups(priced.config, layout, priced.stage)
    group = next(group for group in groups if group.what == "vectors")
    shared = mesh["fsdp"] * mesh["context"] * mesh["expert"] if layout.zero == 3 else 1
    n_bytes = group.elements * shared * priced.job.reduce_bytes
    return _collective(group, "all_reduce", COPIES, n_bytes)


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
        what=f"{what} of {WORDS[group.what]}",
        count=count,
        joined_bytes=n_bytes,
        arrays=group.arrays,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncTime:
    """Seconds to sum gradients once, how often that is done, and what follows once: the sums of
    shards over `tensor`, and updated weights sent back."""

    reduce_s: Num
    times: Num
    gather_s: Num

    @property
    def all_s(self) -> Num:
        """All of a step."""
        return self.times * self.reduce_s + self.gather_s


def sync_time(priced: PricedLayout) -> SyncTime:
    """Seconds of all buckets."""
    layout = priced.layout
    reduce_s: Num = 0.0
    gather_s: Num = 0.0
    for bucket in _buckets(priced):
        if layout.zero in (1, 2) and bucket.kind not in ("reduce_scatter", "all_to_all"):
            gather_s = gather_s + bucket.seconds
        else:
            reduce_s = reduce_s + bucket.seconds
    times = layout.n_microbatches if layout.zero == 2 else 1
    return SyncTime(reduce_s=reduce_s, times=times, gather_s=gather_s)


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Arrays that are sent over the same axes at once: their bytes, and seconds of one time."""

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
    """The collectives over copies of one layout's weights: each with its part of a bucket's time.

    Sums of vectors have the time of their parts of all buckets.
    """
    vectors_s = 0.0
    for bucket in _buckets(priced):
        for item in bucket.items if bucket.n_bytes else ():
            seconds = float(bucket.seconds) * float(item.joined_bytes / bucket.n_bytes)
            if item.name.endswith(".vectors"):
                vectors_s += float(item.count) * seconds
            else:
                yield replace(item, occurrence_s=seconds)
    if not priced.rates.extras.frozen:
        yield replace(_vectors(priced), occurrence_s=vectors_s)


def update_s(priced: PricedLayout) -> Num:
    """Seconds of the optimizer: state and weights read and written once, gradients read.

    What sums in int8 have lost is read and written too.

    State in host memory comes and goes over the chip's PCIe link, which nothing hides. What Muon
    computes is dealt out evenly over all chips, each matrix on one of them (arXiv 2502.16982); the
    gathers for it are not counted.
    """
    job, mesh, rates = priced.job, priced.mesh, priced.rates
    if rates.extras.frozen:
        return 0.0
    layout = priced.layout
    sharded: Num = 0
    rounded: Num = 0
    for group in gradient_groups(priced.config, layout, priced.stage):
        copies = shards(group.axes, mesh)
        sharded = sharded + (group.elements / copies if layout.zero in (1, 2) else group.elements)
        if job.sums_in_int8:
            rounded = rounded + group.elements * (copies > 1)
    state = state_bytes(priced.config, job)
    copied = 2 * job.weight_bytes + units.bytes_per_element(job.gradients)
    if "optimizer" in layout.offload:
        pcie = rates.chip.need("pcie_bytes_per_s_per_chip")
        seconds = sharded * copied / rates.hbm + sharded * 2 * state / pcie
    else:
        seconds = sharded * (copied + 2 * state) / rates.hbm
    flops = update_flops(priced.config, job)
    if flops:
        seconds = seconds + flops / (shards(tuple(mesh), mesh) * rates.matmul_flops_per_s)
    if job.sums_in_int8:
        seconds = seconds + 2 * rounded * job.lost_bytes / rates.hbm
    return seconds


def update(priced: PricedLayout) -> PricedItem:
    """The optimizer, all its seconds booked on HBM."""
    groups = gradient_groups(priced.config, priced.layout, priced.stage)
    n = sum(float(group.elements) for group in groups)
    return PricedItem(
        name=f"optimizer.{priced.job.optimizer}",
        phase="update",
        what=f"{units.show_count(n)} parameters on the chip <- gradients",
        n_bytes=update_s(priced) * priced.rates.hbm,
        bytes_per_s=priced.rates.hbm,
    )
