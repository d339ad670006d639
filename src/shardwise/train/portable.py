"""Conversion of a training state to a form that any layout can load: no reordering, no padding.

The training step may store layers in the order of pipeline stages, with unused slots, and pad the
vocabulary to a multiple of the chips that shard it. The portable state has the layers in the
model's order and the shapes of the model. Residuals of int8 gradient sums
(`runtime.training.error_feedback`) are an exception: there is one array for each copy of a weight,
so they fit only layouts with the same number of copies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.runtime.layout.sharding import divisible_spec
from shardwise.runtime.layout.stages import StageLayers
from shardwise.runtime.training import host_offload
from shardwise.runtime.training.step import TrainStep
from shardwise.runtime.weights.descriptions import Tree, describe, map_infos, weight_of_state

Array = jax.Array
# Converts one array: (weight description of the step, that of the model, array) -> array.
Conversion = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PortableState:
    """Converter between the state of a training step and its portable form."""

    step: TrainStep

    def shapes(self) -> Tree:
        """Return the shapes and shardings of the portable state on the mesh of the step."""
        return self._map_arrays(_portable_shape, self._step_shapes())

    def to_portable(self, state: Tree) -> Tree:
        """Convert a state of the step to its portable form; both may be the same object."""
        if self._is_identity():
            return state
        shardings = _shardings(self.shapes())
        portable: Tree = jax.jit(self._all_to_portable, out_shardings=shardings)(state)
        return portable

    def to_step(self, portable: Tree) -> Tree:
        """Convert a portable state to a state of the step; both may be the same object."""
        if self._is_identity():
            return portable
        shardings = _shardings(self._step_shapes())
        state: Tree = jax.jit(self._all_to_step, out_shardings=shardings)(portable)
        return state

    def weights_to_portable(self, weights: Tree) -> Tree:
        """Convert weights of the step to their portable form."""
        convert = lambda w: map_infos(self._to_portable, self.step.infos, self._model_infos(), w)
        portable: Tree = jax.jit(convert)(weights)
        return portable

    def traced_weights_to_step(self, weights: Tree) -> Tree:
        """Convert portable weights to weights of the step, inside a function that JAX traces."""
        return map_infos(self._to_step, self.step.infos, self._model_infos(), weights)

    def weights_to_step(self, weights: Tree) -> Tree:
        """Convert portable weights to weights of the step; they may be padded already."""
        shardings = _shardings(self._step_shapes()["weights"])
        converted: Tree = jax.jit(self.traced_weights_to_step, out_shardings=shardings)(weights)
        return converted

    def _step_shapes(self) -> Tree:
        shapes, _ = self.step.shapes()
        return shapes

    def _model_infos(self) -> Tree:
        return describe(self.step.config)

    def _is_identity(self) -> bool:
        equal = jax.tree.map(lambda a, b: a.shape == b.shape, self._step_shapes(), self.shapes())
        return self._stages is None and jax.tree.all(equal)

    @property
    def _stages(self) -> StageLayers | None:
        """The pipeline stages if they store layers in another order than the model, else None."""
        stages = self.step.stages
        if stages is None or stages.order.ravel().tolist() == list(range(stages.order.size)):
            return None
        return stages

    def _all_to_portable(self, state: Tree) -> Tree:
        return self._map_arrays(self._to_portable, state)

    def _all_to_step(self, portable: Tree) -> Tree:
        return self._map_arrays(self._to_step, portable)

    def _map_arrays(self, convert: Conversion, state: Tree) -> Tree:
        """Apply `convert` to each array that belongs to a weight; keep other arrays."""
        infos = self.step.infos
        model_infos = self._model_infos()
        mapped = {
            name: map_infos(convert, infos, model_infos, tree)
            for name, tree in state.items()
            if name not in ("moments", "lost")
        }
        if "lost" in state:
            step_by_name = self.step.feedback.by_name(infos)
            model_by_name = self.step.feedback.by_name(model_infos)
            mapped["lost"] = {
                name: _per_copy(convert, step_by_name[name], model_by_name[name], x)
                for name, x in state["lost"].items()
            }
        pairs = map_infos(lambda info, model_info: (info, model_info), infos, model_infos)
        leaves = jax.tree.leaves_with_path(pairs, is_leaf=lambda x: isinstance(x, tuple))
        pair_by_path = dict(leaves)

        def moment(path: tuple[Any, ...], x: Any) -> Any:
            pair = weight_of_state(path, pair_by_path)
            if pair is None:
                return x
            info, model_info = pair
            return convert(info, model_info, x)

        mapped["moments"] = jax.tree_util.tree_map_with_path(moment, state["moments"])
        return mapped

    def _to_portable(self, info: Any, model_info: Any, x: Array) -> Array:
        """Reorder an array of the step to the model's layers, and cut off its padding."""
        shape = _shape_under(x.shape, info, model_info)
        x = host_offload.on_chip(x)
        if self._stages and _is_stacked(x.shape, info):
            x = self._stages.to_model_order(x)
        return x[tuple(map(slice, shape))]

    def _to_step(self, info: Any, model_info: Any, x: Array) -> Array:
        """Reorder an array to the layers of the step, and pad it with zeros."""
        shape = _shape_under(x.shape, model_info, info)
        x = host_offload.on_chip(x)
        if self._stages and _is_stacked(x.shape, model_info):
            x = self._stages.to_stage_order(x)
        return jnp.pad(x, [(0, n - m) for n, m in zip(shape, x.shape, strict=True)])


def _shardings(shapes: Tree) -> Tree:
    shardings: Tree = jax.tree.map(lambda shape: shape.sharding, shapes)
    return shardings


def _portable_shape(info: Any, model_info: Any, x: Any) -> jax.ShapeDtypeStruct:
    shape = _shape_under(x.shape, info, model_info)
    mesh = x.sharding.mesh
    spec = divisible_spec(x.sharding.spec, shape, mesh)
    sharding = NamedSharding(mesh, spec, memory_kind=x.sharding.memory_kind)
    return jax.ShapeDtypeStruct(shape, x.dtype, sharding=sharding)


def _per_copy(convert: Conversion, info: Any, model_info: Any, x: Any) -> Any:
    """Apply `convert` to each copy of a residual; the first dim of `x` counts the copies."""
    if not isinstance(x, jax.ShapeDtypeStruct):
        return jax.vmap(lambda copy: convert(info, model_info, copy))(x)
    mesh = x.sharding.mesh
    copy_axes, *axes = x.sharding.spec
    sharding = NamedSharding(mesh, PartitionSpec(*axes))
    copy_shape = jax.ShapeDtypeStruct(x.shape[1:], x.dtype, sharding=sharding)
    converted = convert(info, model_info, copy_shape)
    sharding = NamedSharding(mesh, PartitionSpec(copy_axes, *converted.sharding.spec))
    return jax.ShapeDtypeStruct((x.shape[0], *converted.shape), x.dtype, sharding=sharding)


def _is_stacked(shape: tuple[int, ...], info: Any) -> bool:
    return bool(info.n_layers and shape and shape[0] == info.n_layers)


def _shape_under(shape: tuple[int, ...], info: Any, target: Any) -> tuple[int, ...]:
    """Return the shape that an array of the weight `info` has under the description `target`.

    An optimizer may hold an array smaller than the weight (one number per row, for example). Of
    such an array only the number of layers changes.
    """
    if shape == info.shape:
        return tuple(target.shape)
    if _is_stacked(shape, info):
        return (target.n_layers, *shape[1:])
    return shape
