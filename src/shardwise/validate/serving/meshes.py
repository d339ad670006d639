"""The parallelism that a serving record states -> Mesh, by our roles of mesh axes."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardwise.errors import BadFile
from shardwise.hardware import System
from shardwise.strategy.mesh import Mesh
from shardwise.validate.records.fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How the chips of a record share one engine, or copies of it.

    Args:
        mesh: `data` copies the whole model; `expert` splits the batch, copies what is not an
            expert and deals the experts out.
        expert_tensor: Ways to split the matrices of one expert; None for as many as `tensor`.
        assumed: What the record leaves open -> what was taken.
    """

    mesh: Mesh
    expert_tensor: int | None = None
    assumed: dict[str, str] = field(default_factory=dict)


def split_of(record: Fields, routed: bool, system: System) -> Split:
    """The mesh of a record.

    `tp` cuts matrices and `pp` layers; `dp` copies the model. Where a model has experts and `ep` or
    `moe_tp` says how they lie, or `attention_dp` is set, the data ranks belong to one engine: they
    split the batch, copy attention and share the experts.

    Raises:
        BadFile: no degrees for several chips, or degrees that contradict the chips or each other.
    """
    par, n_chips = record.inner("parallelism"), system.n_chips
    if not any(map(par.states, ("tp", "pp", "dp", "ep"))) and n_chips > 1:
        raise BadFile(f"layout not published: no degree is stated for {n_chips} chips.")
    assumed: dict[str, str] = {}
    tensor, pipe, data = (par.maybe_whole(name) or 1 for name in ("tp", "pp", "dp"))
    tensor = _in_chips(tensor, pipe * data, system, assumed)
    if tensor * pipe * data != n_chips:
        raise BadFile(
            f"layout contradicts the chips: tp {tensor}, pp {pipe}, dp {data} on {n_chips} chips."
        )
    if not routed or tensor * data == 1:
        return Split(mesh=Mesh(tensor=tensor, pipe=pipe, data=data), assumed=assumed)
    if par.flag("attention_dp"):
        tensor, data = 1, tensor * data
    return _experts(par, tensor, pipe, data, assumed)


def _in_chips(tensor: int, others: int, system: System, assumed: dict[str, str]) -> int:
    """Tensor degree in chips where the record counts the devices of a chip (two on TPU7x)."""
    per_chip = system.chip.n_devices or 1
    if per_chip == 1 or tensor * others != system.n_chips * per_chip or tensor % per_chip:
        return tensor
    assumed["tensor"] = f"{tensor // per_chip} chips, {tensor} devices are stated"
    return tensor // per_chip


def _experts(par: Fields, tensor: int, pipe: int, data: int, assumed: dict[str, str]) -> Split:
    """Experts dealt out `ep` ways and cut `moe_tp` ways over the tensor and data ranks."""
    ranks, dealt, cut = tensor * data, par.maybe_whole("ep"), par.maybe_whole("moe_tp")
    if dealt is None and cut is None:
        if not par.flag("attention_dp"):
            if tensor > 1:
                assumed["experts"] = f"cut {tensor} ways as attention is, not stated"
            mesh = Mesh(tensor=tensor, pipe=pipe, data=data)
            return Split(mesh=mesh, assumed=assumed)
        assumed["experts"] = f"dealt out over all {ranks} ranks, not stated"
        dealt = ranks
    stated = " and ".join(
        f"{name} {par.whole(name)}" for name in ("ep", "moe_tp") if par.states(name)
    )
    dealt = dealt or max(1, ranks // (cut or 1))
    cut = cut or max(1, ranks // dealt)
    if dealt * cut != ranks:
        raise BadFile(f"layout contradicts itself: {stated} over tp x dp of {ranks} ranks.")
    mesh = Mesh(tensor=tensor, pipe=pipe, expert=data)
    if cut > tensor:
        assumed["experts"] = (
            f"dealt out over {data} data ranks of attention; they are cut over them, {cut} ways"
        )
        return Split(mesh=mesh, assumed=assumed)
    if tensor % cut:
        raise BadFile(f"layout unknown: experts cut {cut} ways over tensor {tensor}.")
    return Split(mesh=mesh, expert_tensor=cut if cut < tensor else None, assumed=assumed)
