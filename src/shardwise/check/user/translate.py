"""Move a user's function and its arguments to the devices of a target. Imports JAX.

Arguments may be arrays or shapes. They may be sharded over a mesh of the target's devices, of CPU
devices or over an abstract mesh, or not sharded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardwise.check.compiling.targets import Target
from shardwise.check.notes import STAGE_FAILURES, located
from shardwise.check.source_line import line_of_error
from shardwise.check.user import meshes
from shardwise.check.user.machine_view import show_machine
from shardwise.check.user.meshes import leaf_mesh
from shardwise.check.user.tracing import (
    Statements,
    arrays_of,
    is_array,
    jit_of,
    statements_of,
)
from shardwise.errors import BadSharding
from shardwise.runtime.program import Program

# Platform of a target -> its name in `jax.export`.
_EXPORT_PLATFORMS = {"tpu": "tpu", "gpu": "cuda", "cpu": "cpu"}

_NO_MESH = (
    f"No argument is sharded and no mesh is in context, so the only axis is {meshes.DEFAULT_AXIS}. "
    "Shard an argument over your mesh, or yield the arguments within `with jax.set_mesh(mesh)`."
)


def program_on(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    devices: np.ndarray[Any, Any],
    target: Target,
    options: Mapping[str, str],
    context: Any = None,
) -> Program:
    """The program that runs `fn(*args)` on the devices of a target.

    Args:
        context: an object that must live until the function is lowered.

    Raises:
        BadShape: the mesh of the program has another number of devices than the target.
        BadInput: the arguments are on several different meshes.
    """
    leaves = jax.tree.leaves(args)
    source = meshes.shared_mesh(leaves) or meshes.context_mesh()
    statements = Statements()
    # As functions that JAX or Flax have jitted; those of Equinox and plain ones take arrays.
    takes_shapes = hasattr(fn, "trace")
    if not takes_shapes or any(is_array(leaf) and not leaf_mesh(leaf) for leaf in leaves):
        with show_machine(devices, target.platform), _source_context(source):
            statements = statements_of(fn, args)
        source = source or statements.mesh
    mesh = meshes.target_mesh(source, devices, target)
    target_leaves = []
    for index, leaf in enumerate(leaves):
        target_leaves.append(_on_mesh(leaf, statements.shardings.get(index), mesh))
    target_args = _with_leaves(args, target_leaves)
    jitted: Any = fn
    if not takes_shapes:
        jitted = jit_of(fn, args, statements.donated)
        args = arrays_of(args)
        target_args = arrays_of(target_args)
    function = UserFunction(
        fn=jitted,
        args=args,
        source=source,
        mesh=mesh,
        platform=target.platform,
        context=context,
    )
    name = getattr(fn, "__name__", type(fn).__name__)
    return Program(name=name, fn=function, args=target_args, mesh=mesh, options=options)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserFunction:
    """A user's function that is lowered for a machine, with its mesh in context.

    Args:
        fn: the function, with JAX's method `lower`.
        args: its arguments, as the user gave them.
        source: the mesh of the program as the user gave it; None without one.
        mesh: that mesh on the machine.
        platform: the machine's platform.
        context: an object that must live until the function is lowered.
    """

    fn: Any
    args: tuple[Any, ...]
    source: meshes.AnyMesh | None
    mesh: Mesh
    platform: str
    context: Any

    def __call__(self, *args: Any) -> Any:
        """Call the user's function."""
        return self.fn(*args)

    def lower(self, *target_args: Any) -> jax.stages.Lowered:
        """Lower the function for arguments on the machine's mesh.

        Most programs want their mesh in context. Some use another one inside, which JAX then
        refuses. Some name a mesh of other devices, on which their arguments were.
        """
        with show_machine(self.mesh.devices, self.platform):
            try:
                return self._lower_in_context(*target_args)
            except ValueError as error:
                text = str(error)
                if "mesh" not in text and "device" not in text:
                    raise
                refusal: Exception = error
            try:
                return _plain(self.fn.lower(*target_args))
            except (ValueError, RuntimeError) as error:
                if "context mesh" in str(refusal):  # which was not the user's
                    refusal = error
            with suppress(ValueError, RuntimeError):
                return self._lower_exported(*target_args)
            if self.source is None:
                problem = f"the function {STAGE_FAILURES['lowering']}"
                raise BadSharding(located(problem, line_of_error(refusal), str(refusal)), _NO_MESH)
            raise refusal

    def _lower_in_context(self, *target_args: Any) -> jax.stages.Lowered:
        context = nullcontext() if self._has_context() else meshes.mesh_in_context(self.mesh)
        with context:
            return _plain(self.fn.lower(*target_args))

    def _lower_exported(self, *target_args: Any) -> jax.stages.Lowered:
        """Lower a call of the function's `jax.export` form, which has shardings but no devices.

        The form has the kernels of the machine's platform.
        """
        with _source_context(self.source):
            exported = jax.export.export(self.fn, platforms=[_EXPORT_PLATFORMS[self.platform]])(
                *self.args
            )
            infos, _ = self.fn.trace(*self.args).args_info
        # The export does not keep donation.
        donated = []
        for position, info in enumerate(infos):
            if any(leaf.donated for leaf in jax.tree.leaves(info)):
                donated.append(position)
        call = jax.jit(exported.call, donate_argnums=tuple(donated))
        with meshes.mesh_in_context(self.mesh):
            return call.lower(*target_args)

    def _has_context(self) -> bool:
        """Whether the user has put the machine's mesh in context."""
        return meshes.context_mesh() == self.mesh


def _source_context(source: meshes.AnyMesh | None) -> AbstractContextManager[None]:
    """The mesh of the user's arguments in context, unless it is there already."""
    if source is None or source == meshes.context_mesh():
        return nullcontext()
    return meshes.mesh_in_context(source)


def _with_leaves(args: tuple[Any, ...], new_leaves: list[Any]) -> tuple[Any, ...]:
    """The arguments with other leaves.

    Modules of Flax may share a variable, which their trees of JAX contain twice.
    """
    leaves, tree = jax.tree.flatten(args)
    new_args: tuple[Any, ...]
    nnx: Any = sys.modules.get("flax.nnx")
    if nnx and any(isinstance(argument, nnx.Pytree) for argument in args):
        leaf_of = dict(zip(map(id, leaves), new_leaves, strict=True))
        graph, state = nnx.split(args)
        new_args = nnx.merge(graph, jax.tree.map(lambda leaf: leaf_of[id(leaf)], state))
    else:
        new_args = jax.tree.unflatten(tree, new_leaves)
    return new_args


def _on_mesh(leaf: Any, stated: NamedSharding | None, mesh: Mesh) -> Any:
    """The shape of an array, sharded alike over another mesh; a leaf without a shape is unchanged.

    An array without a sharding gets the one that the function states for it, else is on every
    device. Arrays in pinned host memory stay there,
    and what the function updates in place, a `jax.Ref`, stays one.
    """
    if not is_array(leaf):
        return leaf
    sharding = leaf.sharding if leaf_mesh(leaf) is not None else stated
    spec = PartitionSpec()
    memory_kind = None
    if sharding is not None:
        spec = sharding.spec
        if sharding.memory_kind == "pinned_host":
            memory_kind = "pinned_host"
    target_sharding = NamedSharding(mesh, spec, memory_kind=memory_kind)
    return jax.ShapeDtypeStruct(
        leaf.shape,
        leaf.dtype,
        sharding=target_sharding,
        weak_type=getattr(leaf, "weak_type", False),
        is_ref=isinstance(leaf, jax.Ref) or getattr(leaf, "is_ref", False),
    )


def _plain(lowered: Any) -> jax.stages.Lowered:
    """JAX's own lowered program, out of the objects in which Flax and Equinox wrap it."""
    while not isinstance(lowered, jax.stages.Lowered):
        lowered = lowered.lowered
    return lowered
