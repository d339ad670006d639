"""Conversion of the parallelism of a serving record to a Mesh."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardwise.errors import BadFile
from shardwise.hardware import System
from shardwise.strategy.mesh import Mesh
from shardwise.validate.records.fields import JsonReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """Sharding of a model over the chips of a record.

    Args:
        mesh: Mesh of all chips. `data` counts engines, each with a copy of the whole model. With
            `expert`, each rank computes attention for its share of the batch, with a copy of the
            attention weights, and holds its share of the experts.
        expert_tensor: Tensor-parallel degree of one expert; None if it is the `tensor` size.
        assumed: Item that the record leaves open -> the assumption.
    """

    mesh: Mesh
    expert_tensor: int | None = None
    assumed: dict[str, str] = field(default_factory=dict)


def sharding_of(record: JsonReader, routed: bool, system: System) -> Sharding:
    """Return the sharding of a record.

    In records, `tp` shards matrices, `pp` layers, and `dp` is the number of copies of the model. If
    the model has experts and the record states `ep`, `moe_tp` or `attention_dp`, then the `dp`
    ranks form one engine: each has a copy of the attention weights, and a share of the batch and of
    the experts.

    Args:
        routed: Whether the model has experts.

    Raises:
        BadFile: there are several chips and no degrees, or the degrees contradict each other or do
            not multiply to the number of chips.
    """
    parallelism = record.section("parallelism")
    n_chips = system.n_chips
    if not any(map(parallelism.has, ("tp", "pp", "dp", "ep"))) and n_chips > 1:
        raise BadFile(f"layout not published: no degree is stated for {n_chips} chips.")
    assumed: dict[str, str] = {}
    pipe = parallelism.optional_integer("pp") or 1
    data = parallelism.optional_integer("dp") or 1
    tensor = parallelism.optional_integer("tp") or 1
    tensor = _in_chips(tensor, pipe * data, system, assumed)
    if tensor * pipe * data != n_chips:
        raise BadFile(
            f"layout contradicts the chips: tp {tensor}, pp {pipe}, dp {data} on {n_chips} chips."
        )
    ep = parallelism.optional_integer("ep") or 1
    if ep > 1 and not routed:
        raise BadFile(f"layout contradicts the model: ep {ep}, but it has no experts.")
    if not routed or tensor * data == 1:
        return Sharding(mesh=Mesh(tensor=tensor, pipe=pipe, data=data), assumed=assumed)
    if parallelism.flag("attention_dp"):
        data *= tensor
        tensor = 1
    return _experts(parallelism, tensor, pipe, data, assumed)


def _in_chips(tensor: int, others: int, system: System, assumed: dict[str, str]) -> int:
    """Return the tensor degree in chips; the record may count devices (two per chip on TPU7x)."""
    per_chip = system.chip.n_devices or 1
    if per_chip == 1 or tensor * others != system.n_chips * per_chip or tensor % per_chip:
        return tensor
    assumed["tensor"] = f"{tensor // per_chip} chips, {tensor} devices are stated"
    return tensor // per_chip


def _experts(
    parallelism: JsonReader, tensor: int, pipe: int, data: int, assumed: dict[str, str]
) -> Sharding:
    """Return the sharding of a model with experts.

    The experts are divided among `ep` groups of ranks; each expert is sharded over the `moe_tp`
    ranks of its group. Together these are all ranks of tensor and data parallelism.
    """
    n_ranks = tensor * data
    ep = parallelism.optional_integer("ep")
    moe_tp = parallelism.optional_integer("moe_tp")
    if ep is None and moe_tp is None:
        if not parallelism.flag("attention_dp"):
            if tensor > 1:
                assumed["experts"] = f"split {tensor} ways as attention is, not stated"
            mesh = Mesh(tensor=tensor, pipe=pipe, data=data)
            return Sharding(mesh=mesh, assumed=assumed)
        assumed["experts"] = f"spread over all {n_ranks} ranks, not stated"
        ep = n_ranks
    stated = [
        f"{name} {parallelism.integer(name)}" for name in ("ep", "moe_tp") if parallelism.has(name)
    ]
    ep = ep or max(1, n_ranks // (moe_tp or 1))
    moe_tp = moe_tp or max(1, n_ranks // ep)
    if ep * moe_tp != n_ranks:
        degrees = " and ".join(stated)
        raise BadFile(f"layout contradicts itself: {degrees} over tp x dp of {n_ranks} ranks.")
    mesh = Mesh(tensor=tensor, pipe=pipe, expert=data)
    if moe_tp > tensor:
        assumed["experts"] = f"spread over the {data} data ranks; stated is a split {moe_tp} ways"
        return Sharding(mesh=mesh, assumed=assumed)
    if tensor % moe_tp:
        raise BadFile(f"layout unknown: experts split {moe_tp} ways over tensor {tensor}.")
    expert_tensor = moe_tp if moe_tp < tensor else None
    return Sharding(mesh=mesh, expert_tensor=expert_tensor, assumed=assumed)
