"""A user's function and arguments -> the same on the devices of a target. Imports JAX.

Arguments may be arrays or shapes, on any mesh: of CPU devices, abstract, or none. The mesh keeps
its shape and its names; its devices become those of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from shardwise.check.compiling.targets import Target
from shardwise.errors import BadInput, BadShape
from shardwise.runtime.program import Program

# The axis of the mesh where the arguments name none; nothing is sharded over it.
UNNAMED = "devices"


def program_on(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    devices: np.ndarray[Any, Any],
    target: Target,
    options: Mapping[str, str],
) -> Program:
    """The program that runs `fn(*args)` on a target.

    Raises:
        BadShape: the arguments' mesh has another number of devices.
        BadInput: the arguments lie on several meshes.
    """
    mesh = _mesh_like(_mesh_of(args), devices, target)
    moved = jax.tree.map(lambda leaf: _moved(leaf, mesh), args)
    name = getattr(fn, "__name__", type(fn).__name__)
    return Program(name=name, fn=_on(fn, args, moved), args=moved, mesh=mesh, options=options)


def _mesh_of(args: tuple[Any, ...]) -> Mesh | AbstractMesh | None:
    """The one mesh on which the arguments lie, None where they lie on none."""
    meshes = {
        (tuple(sharding.mesh.axis_names), tuple(sharding.mesh.axis_sizes)): sharding.mesh
        for leaf in jax.tree.leaves(args)
        if isinstance(sharding := getattr(leaf, "sharding", None), NamedSharding)
        and not sharding.mesh.empty
    }
    if len(meshes) > 1:
        told = " and ".join(_show(mesh) for mesh in meshes.values())
        raise BadInput(f"the arguments lie on several meshes: {told}. Give all of them one.")
    return next(iter(meshes.values()), None)


def _mesh_like(
    like: Mesh | AbstractMesh | None, devices: np.ndarray[Any, Any], target: Target
) -> Mesh:
    if like is None:
        return Mesh(devices.reshape(-1), (UNNAMED,), axis_types=(AxisType.Auto,))
    shape = tuple(like.axis_sizes)
    if like.size != devices.size:
        raise BadShape(
            f"the arguments lie on a mesh of {like.size} devices ({_show(like)}), and "
            f"{target.name} has {devices.size}. Make the mesh as large as the machine."
        )
    return Mesh(_placed(shape, devices, target), like.axis_names, axis_types=like.axis_types)


def _placed(
    shape: tuple[int, ...], devices: np.ndarray[Any, Any], target: Target
) -> np.ndarray[Any, Any]:
    """Devices in the shape of a mesh: JAX's own choice on one TPU slice, else in order."""
    if target.platform == "tpu" and target.grid[0] == 1:
        found: np.ndarray[Any, Any] = mesh_utils.create_device_mesh(
            shape, list(devices.flat), allow_split_physical_axes=True
        )
        return found
    return devices.reshape(shape)


def _moved(leaf: Any, mesh: Mesh) -> Any:
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        return leaf
    sharding = getattr(leaf, "sharding", None)
    spec, kind = PartitionSpec(), None
    if isinstance(sharding, NamedSharding):
        spec = sharding.spec
        kind = "pinned_host" if sharding.memory_kind == "pinned_host" else None
    placed = NamedSharding(mesh, spec, memory_kind=kind)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placed)


def _on(fn: Callable[..., Any], args: tuple[Any, ...], moved: tuple[Any, ...]) -> Any:
    """`fn` as it can be lowered for the target.

    A function that names a mesh of its own (in `shard_map`, in constraints) refuses other devices.
    It is then exported, which keeps shardings and leaves devices out, and called from there.
    """
    jitted: Any = fn if hasattr(fn, "lower") else jax.jit(fn)
    try:
        jitted.lower(*moved)
    except ValueError as error:
        if "device" not in str(error):
            raise
    else:
        return jitted
    exported = jax.export.export(jitted, platforms=["cpu", "tpu", "cuda"])(*args)
    # What is donated is not kept by the export.
    infos, _ = jitted.trace(*args).args_info
    donated = tuple(
        position
        for position, info in enumerate(infos)
        if any(leaf.donated for leaf in jax.tree.leaves(info))
    )
    return jax.jit(exported.call, donate_argnums=donated)


def _show(mesh: Mesh | AbstractMesh) -> str:
    sizes = zip(mesh.axis_names, mesh.axis_sizes, strict=True)
    return " x ".join(f"{name} {size}" for name, size in sizes)
