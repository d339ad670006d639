"""The mesh of a user's program, and the same mesh on the devices of a machine. Imports JAX.

The mesh is that of the arguments, else the one in context, else one that the function itself
names. A mesh of the machine's own devices is kept as it is, with its order. Any other mesh keeps
its shape, axis names and axis types, and gets the machine's devices.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from shardwise.check.compiling.targets import Target
from shardwise.errors import BadInput, BadShape

AnyMesh = Mesh | AbstractMesh

# Name of the one mesh axis if a program has no mesh; nothing is sharded over it.
DEFAULT_AXIS = "devices"


def leaf_mesh(leaf: Any) -> AnyMesh | None:
    """The mesh of an array or a shape; None if it has none."""
    sharding = getattr(leaf, "sharding", None)
    mesh: Any = sharding.mesh if isinstance(sharding, NamedSharding) else None
    return None if mesh is None or mesh.empty else mesh


def shared_mesh(leaves: Iterable[Any]) -> AnyMesh | None:
    """The mesh that all arguments share, a concrete one if there is one; None if they have none.

    Raises:
        BadInput: they are on several different meshes.
    """
    meshes: dict[Any, AnyMesh] = {}
    for leaf in leaves:
        mesh = leaf_mesh(leaf)
        if mesh is None:
            continue
        key = tuple(mesh.axis_names), tuple(mesh.axis_sizes)
        if isinstance(mesh, Mesh) or key not in meshes:
            meshes[key] = mesh
    if len(meshes) > 1:
        names = " and ".join(map(describe, meshes.values()))
        raise BadInput(f"the arguments are on several meshes: {names}. Use one mesh for all.")
    return next(iter(meshes.values()), None)


def context_mesh() -> AnyMesh | None:
    """The mesh that `jax.set_mesh` or `use_abstract_mesh` has put in context; None without one."""
    for mesh in (jax.sharding.get_mesh(), jax.sharding.get_abstract_mesh()):
        if not mesh.empty:
            return mesh
    return None


def target_mesh(source: AnyMesh | None, devices: np.ndarray[Any, Any], target: Target) -> Mesh:
    """The program's mesh with the devices of the target in place of its own.

    Raises:
        BadShape: the mesh has another number of devices than the target.
    """
    if source is None:
        return Mesh(devices.reshape(-1), (DEFAULT_AXIS,), axis_types=(AxisType.Auto,))
    if source.size != devices.size:
        raise BadShape(
            f"the arguments are on a mesh of {source.size} devices ({describe(source)}), but "
            f"{target.name} has {devices.size}. Make the mesh as large as the machine."
        )
    if isinstance(source, Mesh) and is_on(source, devices):
        return source
    shape = tuple(source.axis_sizes)
    if target.platform == "tpu" and target.grid[0] == 1:
        devices = mesh_utils.create_device_mesh(
            shape, list(devices.flat), allow_split_physical_axes=True
        )
    return Mesh(devices.reshape(shape), source.axis_names, axis_types=source.axis_types)


def is_on(mesh: Mesh, devices: np.ndarray[Any, Any]) -> bool:
    """Whether a mesh has exactly these devices, in any order."""
    return sorted(map(_identity, mesh.devices.flat)) == sorted(map(_identity, devices.flat))


def _identity(device: Any) -> tuple[Any, ...]:
    coords = tuple(getattr(device, "coords", ()))
    return device.platform, device.device_kind, device.id, coords


@contextmanager
def mesh_in_context(mesh: AnyMesh | None) -> Iterator[None]:
    """Put a mesh in context in both ways, `jax.set_mesh(mesh)` and `with mesh`."""
    with contextlib.ExitStack() as stack:
        if isinstance(mesh, Mesh):
            stack.enter_context(jax.set_mesh(mesh))
            # Libraries read the older context. JAX deprecates it, and can be told to refuse it.
            with warnings.catch_warnings(), contextlib.suppress(RuntimeError, TypeError):
                warnings.simplefilter("ignore", DeprecationWarning)
                stack.enter_context(mesh)
        elif mesh is not None:
            stack.enter_context(jax.sharding.use_abstract_mesh(mesh))
        yield


def describe(mesh: AnyMesh) -> str:
    """Names and sizes of a mesh's axes: `data 2 x model 2`."""
    sizes = zip(mesh.axis_names, mesh.axis_sizes, strict=True)
    return " x ".join(f"{name} {size}" for name, size in sizes)
