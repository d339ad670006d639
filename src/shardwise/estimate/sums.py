"""What happens once a step: gradients are summed, the optimizer updates the weights."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardwise import units
from shardwise.arrays import Num, minimum
from shardwise.estimate.optimizers import state_bytes, update_flops
from shardwise.estimate.prices import Prices
from shardwise.estimate.rates import Rates
from shardwise.models import ModelConfig
from shardwise.models.weights import layer_weights, outer_weights
from shardwise.ops.einsum import shards
from shardwise.strategy.layout import Layout, Layouts
from shardwise.strategy.stages import Stages


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters of all layers by how they are split, and those outside of layers.

    Args:
        matrices: split over `tensor`; vectors: whole; routed: of experts.
    """

    matrices: float
    vectors: float
    routed: float
    outer: float


@functools.lru_cache(maxsize=64)
def parameters(config: ModelConfig) -> Parameters:
    """Count them."""
    found = {"matrices": 0.0, "vectors": 0.0, "routed": 0.0}
    for group in config.groups:
        for weight in layer_weights(config, group.layer):
            routed = "E" in weight.dims and weight.matmul and len(weight.dims) == 3
            kind = "routed" if routed else "matrices" if weight.matmul else "vectors"
            found[kind] += float(weight.size * group.count)
    return Parameters(**found, outer=float(sum(w.size for w in outer_weights(config))))


def summed_parameters(
    config: ModelConfig, split: Layout | Layouts, stage: Stages
) -> Iterator[tuple[tuple[str, ...], Num]]:
    """(axes over which gradients are summed, parameters that one chip sums over them).

    Experts are dealt out over `expert`: their gradients need no sum among them.
    """
    mesh, n = split.sizes, parameters(config)
    whole = stage.held / config.n_layers
    # Each end of a pipeline holds one of embedding and unembedding.
    outer = n.outer / mesh["tensor"] / minimum(2, mesh["pipe"])
    dense = (n.matrices / mesh["tensor"] + n.vectors) * whole + outer
    experts = n.routed * whole / (mesh["expert"] * mesh["tensor"])
    shared = mesh["fsdp"] * mesh["context"] if split.zero == 3 else 1
    over = () if split.zero == 3 else ("context",)
    yield ("data", "expert", *over), dense / shared
    if n.routed:
        yield ("data", *over), experts / shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Seconds to sum gradients once, how often that is done, and to send updated weights back."""

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
    """Sums of gradients and, under ZeRO-1 and 2, gathers of updated weights.

    ZeRO-2 keeps a shard of the gradients only, so it scatters those of every microbatch.
    """
    job, mesh, reduce_s, gather_s = rates.job, split.sizes, 0.0, 0.0
    gradient, weight = job.reduce_bytes, minimum(job.weight_bytes, 2.0)
    held = () if rates.extras.frozen else summed_parameters(config, split, stage)
    kind = "reduce_scatter" if split.zero in (1, 2) else "all_reduce"
    for axes, parameters in held:
        reduce_s = reduce_s + rates.send_s(prices, kind, axes, parameters * gradient, mesh)
        if split.zero in (1, 2):
            back = rates.send_s(prices, "all_gather", axes, parameters * weight, mesh)
            gather_s = gather_s + back
    times = split.n_microbatches if split.zero == 2 else 1
    return Sums(reduce_s=reduce_s, times=times, gather_s=gather_s)


def update_s(config: ModelConfig, split: Layout | Layouts, stage: Stages, rates: Rates) -> Num:
    """Optimizer state and weights read and written once, gradients read.

    State in host memory comes and goes over the chip's PCIe link, which nothing hides. What Muon
    computes is dealt out evenly over all chips, each matrix on one of them (arXiv 2502.16982); the
    gathers for it are not counted.
    """
    job, mesh = rates.job, split.sizes
    if rates.extras.frozen:
        return 0.0
    shared = split.zero in (1, 2)
    held = sum(
        n / shards(axes, mesh) if shared else n
        for axes, n in summed_parameters(config, split, stage)
    )
    state = state_bytes(config, job)
    kept = 2 * job.weight_bytes + units.bytes_per_element(job.gradients)
    if "optimizer" in split.offload:
        pcie = rates.chip.need("pcie_bytes_per_s_per_chip")
        seconds = held * kept / rates.hbm + held * 2 * state / pcie
    else:
        seconds = held * (kept + 2 * state) / rates.hbm
    flops = update_flops(config, job)
    return seconds + flops / (n_chips(mesh) * rates.matmul_flops_per_s) if flops else seconds


def n_chips(mesh: Mapping[str, Num]) -> Num:
    """Chips of a mesh."""
    return shards(tuple(mesh), mesh)
