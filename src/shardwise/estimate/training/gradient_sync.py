"""What happens once a step: gradients are summed, the optimizer updates the weights."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from shardwise import units
from shardwise.arrays import Num, ceil_div, maximum
from shardwise.estimate.collective_cost import Prices
from shardwise.estimate.training.chip_rates import Rates
from shardwise.estimate.training.extra_traffic import Sent
from shardwise.estimate.training.memory.parameters import FIRST, is_experts
from shardwise.estimate.training.optimizer import state_bytes, update_flops
from shardwise.models import ModelConfig
from shardwise.models.weights import Weight, layer_weights, outer_weights
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
    """Count them. A tied embedding lies on both ends of a pipeline."""
    every = [(w, g.count) for g in config.groups for w in layer_weights(config, g.layer)]
    outer = [(w, 1) for w in outer_weights(config)]
    last = [(w, n) for w, n in outer if w.name not in FIRST]
    if config.tied_embeddings:
        last += [(w, n) for w, n in outer if w.name == "embedding"]
    routed = [(w, n) for w, n in every if is_experts(w)]
    return Parameters(
        layers=_held([(w, n) for w, n in every if not is_experts(w)]),
        routed=float(sum(n * w.size for w, n in routed)),
        routed_arrays=len(routed),
        first=_held([(w, n) for w, n in outer if w.name in FIRST]),
        last=_held(last),
        both=_held(outer),
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
class Summed:
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


def summed(config: ModelConfig, split: Layout | Layouts, stage: Stages) -> Iterator[Summed]:
    """The weights on a chip of the busiest stage.

    Experts are dealt out over `expert`: their gradients need no sum among them. ZeRO-3 has summed
    over all that shards the weights already; what is left are whole copies.
    """
    mesh, n, tensor = split.sizes, parameters(config), split.sizes["tensor"]
    whole = stage.held / config.n_layers
    axes: tuple[str, ...] = (*BATCH, "context")
    shared, routed = 1, 1
    if split.zero == 3:
        routed = mesh["fsdp"] * mesh["context"]
        axes, shared = ("data",), routed * mesh["expert"]
    first, last, both = n.first, n.last, n.both
    if split.schedule == "none" or find(split.schedule).ends_meet:
        ends, end = both.over(tensor), both
    else:
        ends, end = maximum(first.over(tensor), last.over(tensor)), last
    copied = n.layers.copied * whole + end.copied
    arrays = n.layers.arrays
    yield Summed(
        what="matrices",
        axes=axes,
        elements=n.layers.over(tensor) * whole / shared,
        arrays=arrays[0],
    )
    yield Summed(what="ends", axes=axes, elements=ends / shared, arrays=both.arrays[0])
    yield Summed(
        what="copied", axes=axes, elements=copied / shared, arrays=arrays[1] + both.arrays[1]
    )
    yield Summed(
        what="vectors",
        axes=axes,
        elements=(n.layers.vectors * whole + end.vectors) / shared,
        arrays=arrays[2] + both.arrays[2],
    )
    if n.routed:
        of_experts = tuple(a for a in axes if a != "expert")
        experts = n.routed * whole / (mesh["expert"] * tensor * routed)
        yield Summed(what="experts", axes=of_experts, elements=experts, arrays=n.routed_arrays)


def summed_parameters(
    config: ModelConfig, split: Layout | Layouts, stage: Stages
) -> Iterator[tuple[tuple[str, ...], Num]]:
    """(axes over which gradients are summed, parameters that one chip sums over them)."""
    for part in summed(config, split, stage):
        yield part.axes, part.elements


def weight_sums(
    config: ModelConfig, split: Layout | Layouts, stage: Stages, rates: Rates
) -> Iterator[Sent]:
    """The collectives of a step over copies of weights.

    ZeRO 0 sums gradients in an AllReduce; so does ZeRO-3, of the shards of which there are copies.
    ZeRO 1 and 2 scatter them, and gather the updated weights; ZeRO-2 keeps a shard of the gradients
    only, so it scatters those of every microbatch. Where `tensor` splits the sequence, its chips
    have parts of the gradients of weights that all of them hold. Vectors are priced as if they
    travelled with the matrices beside them; how they are sent is said by `vector_sum`.

    Chips that round to int8 add nothing up on the way: each sends every other its part (V of the
    AllToAll is all that they hold), and the AllReduce ends in a gather of sums in int8.
    """
    job, times = rates.job, split.n_microbatches if split.zero == 2 else 1
    for part in () if rates.extras.frozen else summed(config, split, stage):
        n_bytes, scatters = part.elements * job.reduce_bytes, split.zero in (1, 2)
        if job.sums_in_int8 and part.what != "vectors":
            sent = part.elements * job.rounded_bytes
            held = sent * shards(part.axes, split.sizes)
            yield replace(_sum(part, "all_to_all", part.axes, held), count=times)
            if not scatters:
                yield _sum(part, "all_gather", part.axes, sent, "gradients")
        else:
            one = _sum(part, "reduce_scatter" if scatters else "all_reduce", part.axes, n_bytes)
            yield replace(one, count=times)
        if part.what in ("copied", "vectors") and split.sequence_parallel:
            shard = n_bytes / shards(part.axes, split.sizes) if scatters else n_bytes
            yield _sum(part, "all_reduce", ("tensor",), shard)
        if scatters:
            each = min(job.weight_bytes, job.activation_bytes)  # as products read them
            yield _sum(part, "all_gather", part.axes, part.elements * each, "weights")


def vector_sum(config: ModelConfig, split: Layout | Layouts, stage: Stages, rates: Rates) -> Sent:
    """Gradients of norms, summed once a step over every chip that has a copy: they are too small
    to be dealt out, under ZeRO-3 too."""
    mesh = split.sizes
    part = next(part for part in summed(config, split, stage) if part.what == "vectors")
    shared = mesh["fsdp"] * mesh["context"] * mesh["expert"] if split.zero == 3 else 1
    return _sum(part, "all_reduce", COPIES, part.elements * shared * rates.job.reduce_bytes)


def _sum(
    part: Summed, kind: str, axes: tuple[str, ...], n_bytes: Num, what: str = "gradients"
) -> Sent:
    return Sent(
        name=f"{what}.{part.what}",
        phase="update" if what == "weights" else "backward",
        role="data",
        kind=kind,
        axes=axes,
        what=f"{what} of {WORDS[part.what]}",
        count=1,
        n_bytes=n_bytes,
        parts=part.arrays,
        part=part.what,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Seconds to sum gradients once, how often that is done, and what follows once: the sums of
    shards over `tensor`, and updated weights sent back."""

    reduce_s: Num
    times: Num
    gather_s: Num

    @property
    def all_s(self) -> Num:
        """All of a step."""
        return self.times * self.reduce_s + self.gather_s


def gradient_sums(
    config: ModelConfig, split: Layout | Layouts, stage: Stages, prices: Prices, rates: Rates
) -> Sums:
    """Seconds of `weight_sums`."""
    reduce_s: Num = 0.0
    gather_s: Num = 0.0
    for sent in buckets(weight_sums(config, split, stage, rates)):
        one = rates.send_s(prices, sent.kind, sent.axes, sent.n_bytes, split.sizes)
        if split.zero in (1, 2) and sent.kind not in ("reduce_scatter", "all_to_all"):
            gather_s = gather_s + one
        else:
            reduce_s = reduce_s + one
    times = split.n_microbatches if split.zero == 2 else 1
    return Sums(reduce_s=reduce_s, times=times, gather_s=gather_s)


def buckets(sums: Iterable[Sent]) -> list[Sent]:
    """What is sent over the same axes travels together."""
    found: dict[tuple[str, tuple[str, ...]], Sent] = {}
    for sent in sums:
        key = sent.kind, sent.axes
        before = found[key].n_bytes if key in found else 0.0
        found[key] = replace(sent, n_bytes=before + sent.n_bytes)
    return list(found.values())


def update_s(config: ModelConfig, split: Layout | Layouts, stage: Stages, rates: Rates) -> Num:
    """Optimizer state and weights read and written once, gradients read.

    What sums in int8 have lost is read and written too.

    State in host memory comes and goes over the chip's PCIe link, which nothing hides. What Muon
    computes is dealt out evenly over all chips, each matrix on one of them (arXiv 2502.16982); the
    gathers for it are not counted.
    """
    job, mesh = rates.job, split.sizes
    if rates.extras.frozen:
        return 0.0
    shared = split.zero in (1, 2)
    parts = list(summed_parameters(config, split, stage))
    held = sum(n / shards(axes, mesh) if shared else n for axes, n in parts)
    rounded = sum(n * (shards(axes, mesh) > 1) for axes, n in parts) if job.sums_in_int8 else 0.0
    state = state_bytes(config, job)
    kept = 2 * job.weight_bytes + units.bytes_per_element(job.gradients)
    if "optimizer" in split.offload:
        pcie = rates.chip.need("pcie_bytes_per_s_per_chip")
        seconds = held * kept / rates.hbm + held * 2 * state / pcie
    else:
        seconds = held * (kept + 2 * state) / rates.hbm
    flops = update_flops(config, job)
    if flops:
        seconds = seconds + flops / (n_chips(mesh) * rates.matmul_flops_per_s)
    return seconds + 2 * rounded * job.lost_bytes / rates.hbm


def n_chips(mesh: Mapping[str, Num]) -> Num:
    """Chips of a mesh."""
    return shards(tuple(mesh), mesh)
