"""The mesh picture: which coordinate every chip has on each mesh axis, and what it holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shardwise.errors import BadInput
from shardwise.hardware import System, Torus, parse_system
from shardwise.plan.schema.json_io import AnyPlan
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.training import Plan
from shardwise.strategy.mesh import INSIDE_OUT

_RING = re.compile(
    r"(?:all )?(?P<size>\d+)(?: of \d+)? on (?P<axis>[xyzw])(?:, (?P<stride>\d+) apart)?"
)
_TIER = re.compile(r"(?P<size>\d+) (?:in the|across) (?P<tier>node|nodes|slices)\b")
_AXIS_OF_TIER = {"node": 0, "nodes": 1, "slices": 2}
EMBEDDING = "embedding"
_WEIGHT = re.compile(r" \. (?P<name>\w+)\[(?P<dims>[^\]]*)\]")


def mesh_picture(plan: AnyPlan, system: System) -> dict[str, Any]:
    """The chips of a training plan's machine, or of a serving plan's machine or engine.

    Each role has parts: along the axis `axis` of `shape`, a chip at position p has the coordinate
    p // stride % size. The first part counts fastest.
    """
    machine = system
    if not isinstance(plan, Plan) and plan.strategy.servers.hardware != system.name:
        machine = _machine(system, plan.strategy.servers.hardware)
    shape, wrapped, letters = _shape(machine)
    links = placement_words(plan)
    return {
        "shape": shape,
        "wrapped": wrapped,
        "letters": letters,
        "n_chips": machine.n_chips,
        "roles": roles(links, _sizes(plan), len(shape) - 1),
        "arrays": arrays(plan),
        "network": links,
    }


def placement_words(plan: AnyPlan) -> dict[str, str]:
    """Mesh axis -> its links in words."""
    if isinstance(plan, Plan):
        return plan.strategy.placement
    return plan.strategy.servers.placement


def _sizes(plan: AnyPlan) -> dict[str, int]:
    """Mesh axis -> its size, from the innermost to the outermost, for axes of several chips."""
    mesh = plan.strategy.mesh
    return {role: mesh[role] for role in INSIDE_OUT if mesh.get(role, 1) > 1}


def _machine(system: System, name: str) -> System:
    """The machine of one engine, by its name in the plan; `system` if it cannot be made again."""
    try:
        return parse_system(name)
    except BadInput:
        return system


def _shape(machine: System) -> tuple[list[int], list[bool], list[str]]:
    """Sizes of the axes that chips are drawn along, and their names."""
    topology = machine.topology
    if isinstance(topology, Torus):
        shape = [*topology.shape]
        wrapped = [*topology.wrapped]
        letters = [*"xyzw"[: len(shape)]]
    else:
        domain = topology.gpus_per_node
        shape, wrapped = [domain, topology.n_gpus // domain], [False, False]
        letters = ["GPU", "node"]
    if machine.n_slices > 1:
        return [*shape, machine.n_slices], [*wrapped, False], [*letters, "slice"]
    return shape, wrapped, letters


def roles(links: Mapping[str, str], sizes: Mapping[str, int], last: int) -> list[dict[str, Any]]:
    """Mesh axes with their parts, from the words that a plan has for their links.

    Args:
        links: role -> words, as `Placement.describe` writes them.
        sizes: role -> size, the innermost role first.
        last: the axis of `shape` along which slices lie.
    """
    inner = dict.fromkeys(_AXIS_OF_TIER, 1)
    placed = []
    for role, size in sizes.items():
        parts = []
        for match in _RING.finditer(links.get(role, "")):
            axis, stride = "xyzw".index(match["axis"]), int(match["stride"] or 1)
            parts.append({"axis": axis, "size": int(match["size"]), "stride": stride})
        for match in _TIER.finditer(links.get(role, "")):
            tier, n = match["tier"], int(match["size"])
            axis = last if tier == "slices" else _AXIS_OF_TIER[tier]
            parts.append({"axis": axis, "size": n, "stride": inner[tier]})
            inner[tier] *= n
        placed.append({"role": role, "size": size, "parts": parts})
    return placed


def arrays(plan: AnyPlan) -> list[dict[str, Any]]:
    """The weights of the plan's matmuls: each dim with its size and the mesh axes that shard it.

    A weight is stored by the rules of the strategy; its letters come from the operations. An
    engine looks its embedding up, which is no operation.
    """
    rules = plan.strategy.rules if isinstance(plan, Plan) else _engine_rules(plan)
    model = plan.model
    sizes = {"D": model.d_model, "F": model.d_ff, "N": model.n_heads, "K": model.n_kv_heads}
    sizes |= {"H": model.d_head, "V": model.vocab, "E": model.n_experts, "L": model.n_layers}
    weights: dict[str, Any] = {}
    for operation in plan.operations:
        match = _WEIGHT.search(operation.expression)
        if operation.collective or not match:
            continue
        if not match["name"].lower().startswith(("w", "emb", "head", "unemb")):
            continue
        dims = _dims(match["dims"], rules, sizes)
        letters = [dim["letter"] for dim in dims]
        if model.n_experts and "E" not in letters:
            for dim in dims:  # the plan names the width of an expert alone
                dim["size"] = None if dim["letter"] == "F" else dim["size"]
        # Layers with experts and without have weights of the same names.
        weights.setdefault(f"{match['name']} {letters}", {"name": match["name"], "dims": dims})
    if not any(weight["name"] == EMBEDDING for weight in weights.values()):
        weights[EMBEDDING] = {"name": EMBEDDING, "dims": _dims("V,D", rules, sizes)}
    return [*weights.values()]


def _engine_rules(plan: ServingPlan) -> dict[str, tuple[str, ...]]:
    """The rules of an engine, with the axes over which its chips have different experts."""
    servers = plan.strategy.servers
    axes = ("tensor", "expert") if servers.expert_tensor == 1 else ("expert",)
    return {**servers.rules, "weights.E": axes}


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
