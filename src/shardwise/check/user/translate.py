"""Move a user's function and its arguments to the devices of a target. Imports JAX.

Arguments may be arrays or shapes. They may be sharded over a mesh of CPU devices or over an
abstract mesh, or not sharded. The mesh keeps its shape and axis names; only its devices change.
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

# Name of the one mesh axis if the arguments have no mesh; nothing is sharded over it.
DEFAULT_AXIS = "devices"


def program_on(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    devices: np.ndarray[Any, Any],
    target: Target,
    options: Mapping[str, str],
) -> Program:
    """The program that runs `fn(*args)` on the devices of a target.

    Raises:
        BadShape: the mesh of the arguments has another number of devices than the target.
        BadInput: the arguments are on several different meshes.
    """
    mesh = _target_mesh(_argument_mesh(args), devices, target)
    target_args = jax.tree.map(lambda leaf: _on_mesh(leaf, mesh), args)
    name = getattr(fn, "__name__", type(fn).__name__)
    lowerable = _lowerable(fn, args, target_args)
    return Program(name=name, fn=lowerable, args=target_args, mesh=mesh, options=options)


def _argument_mesh(args: tuple[Any, ...]) -> Mesh | AbstractMesh | None:
    """The mesh that the arguments share; None if they have none."""
    meshes = {}
    for leaf in jax.tree.leaves(args):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and not sharding.mesh.empty:
            mesh = sharding.mesh
            meshes[tuple(mesh.axis_names), tuple(mesh.axis_sizes)] = mesh
    if len(meshes) > 1:
        names = " and ".join(map(_describe, meshes.values()))
        raise BadInput(f"the arguments are on several meshes: {names}. Use one mesh for all.")
    return next(iter(meshes.values()), None)


def _target_mesh(
    argument_mesh: Mesh | AbstractMesh | None, devices: np.ndarray[Any, Any], target: Target
) -> Mesh:
    """The mesh of the arguments, with the devices of the target in place of its own."""
    if argument_mesh is None:
        return Mesh(devices.reshape(-1), (DEFAULT_AXIS,), axis_types=(AxisType.Auto,))
    if argument_mesh.size != devices.size:
        raise BadShape(
            f"the arguments are on a mesh of {argument_mesh.size} devices "
            f"({_describe(argument_mesh)}), but {target.name} has {devices.size}. Make the mesh as "
            "large as the machine."
        )
    shape = tuple(argument_mesh.axis_sizes)
    if target.platform == "tpu" and target.grid[0] == 1:
        devices = mesh_utils.create_device_mesh(
            shape, list(devices.flat), allow_split_physical_axes=True
        )
    return Mesh(
        devices.reshape(shape), argument_mesh.axis_names, axis_types=argument_mesh.axis_types
    )


def _on_mesh(leaf: Any, mesh: Mesh) -> Any:
    """The shape of an array, sharded alike over another mesh; a leaf without a shape is unchanged.

    Arrays in pinned host memory stay there.
    """
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        return leaf
    sharding = getattr(leaf, "sharding", None)
    spec = PartitionSpec()
    memory_kind = None
    if isinstance(sharding, NamedSharding):
        spec = sharding.spec
        if sharding.memory_kind == "pinned_host":
            memory_kind = "pinned_host"
    target_sharding = NamedSharding(mesh, spec, memory_kind=memory_kind)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=target_sharding)


def _lowerable(fn: Callable[..., Any], args: tuple[Any, ...], target_args: tuple[Any, ...]) -> Any:
    """A jitted function that computes `fn` and can be lowered for the target.

    A function that contains a mesh (in `shard_map` or in sharding constraints) rejects arguments on
    other devices. It is then replaced by a call of its `jax.export` form, which keeps the shardings
    but not the devices.
    """
    jitted: Any = fn if hasattr(fn, "lower") else jax.jit(fn)
    try:
        jitted.lower(*target_args)
    except ValueError as error:
        if "device" not in str(error):
            raise
    else:
        return jitted
    exported = jax.export.export(jitted, platforms=["cpu", "tpu", "cuda"])(*args)
    # The export does not keep donation.
    infos, _ = jitted.trace(*args).args_info
    donated = []
    for position, info in enumerate(infos):
        if any(leaf.donated for leaf in jax.tree.leaves(info)):
            donated.append(position)
    return jax.jit(exported.call, donate_argnums=tuple(donated))


def _describe(mesh: Mesh | AbstractMesh) -> str:
    sizes = zip(mesh.axis_names, mesh.axis_sizes, strict=True)
    return " x ".join(f"{name} {size}" for name, size in sizes)
