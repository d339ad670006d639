"""The mesh picture: which coordinate every chip has on each mesh axis, and what it holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shardwise.errors import BadFile
from shardwise.hardware import System, Torus
from shardwise.plan.machine import find_placement
from shardwise.plan.schema.json_io import AnyPlan
from shardwise.plan.schema.training import Plan
from shardwise.strategy.mesh import Mesh, Placement, place

_WEIGHT = re.compile(r" \. (?P<name>\w+)\[(?P<dims>[^\]]*)\]")


def mesh_picture(plan: AnyPlan, system: System) -> dict[str, Any]:
    """The chips of a training plan's machine, or of a serving plan's engine.

    Each role has parts: along the axis `axis` of `shape`, a chip at position p has the coordinate
    p // stride % size. The first part counts fastest.
    """
    mesh, machine, placement = _placed(plan, system)
    shape, wrapped, letters = _shape(machine)
    return {
        "shape": shape,
        "wrapped": wrapped,
        "letters": letters,
        "n_chips": machine.n_chips,
        "roles": _roles(machine, placement, {role: n for role, n in mesh.items() if n > 1}),
        "arrays": arrays(plan),
        "network": placement_words(plan),
    }


def placement_words(plan: AnyPlan) -> dict[str, str]:
    """Mesh axis -> its links in words."""
    if isinstance(plan, Plan):
        return plan.strategy.placement
    return plan.strategy.servers.placement


def _placed(plan: AnyPlan, system: System) -> tuple[dict[str, int], System, Placement]:
    if isinstance(plan, Plan):
        return plan.strategy.mesh, system, _find(plan.strategy.placement, plan, system)
    from shardwise.plan.serving.rebuild import rebuild

    server = rebuild(plan)[1].server
    return server.layout.mesh.sizes, server.system, server.placement


def _find(words: dict[str, str], plan: Plan, system: System) -> Placement:
    """The placement that a plan describes: of the best ones, else of all."""
    mesh = Mesh(**plan.strategy.mesh)
    try:
        return find_placement(words, place(system, mesh.sizes, best=True), mesh, system)
    except BadFile:
        return find_placement(words, place(system, mesh.sizes), mesh, system)


def _shape(machine: System) -> tuple[list[int], list[bool], list[str]]:
    """Sizes of the axes that chips are drawn along, and their names."""
    topology = machine.topology
    if isinstance(topology, Torus):
        shape = [*topology.shape]
        wrapped = [*topology.wrapped]
        letters = [*"xyzw"[: len(shape)]]
    else:
        domain = min(topology.domain, topology.n_gpus)
        shape, wrapped = [domain, topology.n_gpus // domain], [False, False]
        letters = ["GPU of the node", "node"]
    if machine.n_slices > 1:
        return [*shape, machine.n_slices], [*wrapped, False], [*letters, "slice"]
    return shape, wrapped, letters


def _roles(machine: System, placement: Placement, sizes: dict[str, int]) -> list[dict[str, Any]]:
    axis_of_tier = {"node": 0, "scale-out": 1, "dcn": len(_shape(machine)[0]) - 1}
    strides = dict.fromkeys(axis_of_tier, 1)
    roles = []
    for role, span in placement.spans:
        parts = [
            {"axis": ring.axis, "size": ring.size, "stride": ring.stride} for ring in span.rings
        ]
        for tier in span.tiers:
            part = {
                "axis": axis_of_tier[tier.name],
                "size": tier.size,
                "stride": strides[tier.name],
            }
            strides[tier.name] *= tier.size
            parts.append(part)
        if role in sizes:
            roles.append({"role": role, "size": sizes[role], "parts": parts})
    return roles


def arrays(plan: AnyPlan) -> list[dict[str, Any]]:
    """The weights of the plan's matmuls: each dim with its size and the mesh axes that shard it.

    A weight is stored by the rules of the strategy; its letters come from the operations.
    """
    rules = plan.strategy.rules if isinstance(plan, Plan) else plan.strategy.servers.rules
    model = plan.model
    sizes = {"D": model.d_model, "F": model.d_ff, "N": model.n_heads, "K": model.n_kv_heads}
    sizes |= {"H": model.d_head, "V": model.vocab, "E": model.n_experts, "L": model.n_layers}
    found: dict[str, Any] = {}
    for operation in plan.operations:
        match = _WEIGHT.search(operation.expression)
        if operation.collective or not match or match["name"] in found:
            continue
        if not match["name"].lower().startswith(("w", "emb", "head", "unemb")):
            continue
        found[match["name"]] = {"name": match["name"], "dims": _dims(match["dims"], rules, sizes)}
    return [*found.values()]


def _dims(
    text: str, rules: Mapping[str, tuple[str, ...]], sizes: dict[str, int]
) -> list[dict[str, Any]]:
    """The dims of a weight, `D,N_tensor,H`, with the axes that shard them where it is stored.

    An axis shards one dim of an array, the first that has it in its rule.
    """
    letters = [dim.partition("_")[0] for dim in text.split(",")]
    used: set[str] = set()
    dims = []
    for letter in letters:
        axes = [axis for axis in rules.get(f"weights.{letter}", ()) if axis not in used]
        used.update(axes)
        dims.append({"letter": letter, "size": sizes.get(letter), "axes": axes})
    return dims
