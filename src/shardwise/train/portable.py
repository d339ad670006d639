"""The state of a run as any layout can take it: layers in the model's order, no filling.

Stages of a pipeline hold stacked layers in an order of their own, with places that may stay empty,
and chips that do not divide a vocabulary fill it up. What is saved has neither. What sums of
gradients in int8 have lost (`runtime.owed`) is saved for each copy of a weight, so it fits layouts
with as many.
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
from shardwise.runtime.weights.descriptions import Tree, describe, each, owner

Array = jax.Array
Change = Callable[[Any, Any, Any], Any]  # (info in the step, info in the model, array)


@dataclass(frozen=True, slots=True, kw_only=True)
class Portable:
    """Between what a step holds and what a checkpoint does.

    Args:
        step: whose state it is.
    """

    step: TrainStep

    def shapes(self) -> Tree:
        """What is saved, without numbers, as chips of this step take it."""
        held, _ = self.step.shapes()
        return self._mapped(_shape, held)

    def of(self, state: Tree) -> Tree:
        """What is saved of a state; the state itself where both are the same."""
        if self._same():
            return state
        laid = jax.tree.map(lambda shape: shape.sharding, self.shapes())
        found: Tree = jax.jit(self._saved, out_shardings=laid)(state)
        return found

    def back(self, saved: Tree) -> Tree:
        """The state of what was saved."""
        if self._same():
            return saved
        held, _ = self.step.shapes()
        laid = jax.tree.map(lambda shape: shape.sharding, held)
        found: Tree = jax.jit(self._held, out_shardings=laid)(saved)
        return found

    def weights_of(self, weights: Tree) -> Tree:
        """As `of`, of the weights alone."""
        found: Tree = jax.jit(lambda w: each(self._cut, self.step.infos, self._model(), w))(weights)
        return found

    def put(self, weights: Tree) -> Tree:
        """As `weights_back`, where it is traced."""
        return each(self._put, self.step.infos, self._model(), weights)

    def weights_back(self, weights: Tree) -> Tree:
        """As `back`, of the weights alone; they may be filled already."""
        shapes, _ = self.step.shapes()
        laid = jax.tree.map(lambda shape: shape.sharding, shapes["weights"])
        found: Tree = jax.jit(self.put, out_shardings=laid)(weights)
        return found

    def _model(self) -> Tree:
        return describe(self.step.config)

    def _same(self) -> bool:
        shapes, _ = self.step.shapes()
        equal = jax.tree.map(lambda a, b: a.shape == b.shape, shapes, self.shapes())
        return self._stages is None and jax.tree.all(equal)

    @property
    def _stages(self) -> StageLayers | None:
        """Stages that hold layers in another order than the model's."""
        found = self.step.stages
        if found is None or found.order.ravel().tolist() == list(range(found.order.size)):
            return None
        return found

    def _saved(self, state: Tree) -> Tree:
        return self._mapped(self._cut, state)

    def _held(self, saved: Tree) -> Tree:
        return self._mapped(self._put, saved)

    def _mapped(self, change: Change, state: Tree) -> Tree:
        """A tree like the state, each array that is of a weight changed."""
        infos, model = self.step.infos, self._model()
        found = {
            name: each(change, infos, model, tree)
            for name, tree in state.items()
            if name not in ("moments", "lost")
        }
        if "lost" in state:
            named = self.step.owed.named(infos), self.step.owed.named(model)
            found["lost"] = {
                name: _of_copies(change, named[0][name], named[1][name], x)
                for name, x in state["lost"].items()
            }
        both = each(lambda info, plain: (info, plain), infos, model)
        known = dict(jax.tree.leaves_with_path(both, is_leaf=lambda x: isinstance(x, tuple)))

        def moment(path: tuple[Any, ...], x: Any) -> Any:
            info, plain = owner(path, known) or (None, None)
            return x if info is None else change(info, plain, x)

        found["moments"] = jax.tree_util.tree_map_with_path(moment, state["moments"])
        return found

    def _cut(self, info: Any, plain: Any, x: Array) -> Array:
        """Of the step's places those that the model has, in its order."""
        shape, x = _resized(x.shape, info, plain), host_offload.on_chip(x)
        if self._stages and _stacked(x.shape, info):
            x = self._stages.to_model_order(x)
        return x[tuple(map(slice, shape))]

    def _put(self, info: Any, plain: Any, x: Array) -> Array:
        """Where the step has it; zeros where the model has nothing."""
        shape, x = _resized(x.shape, plain, info), host_offload.on_chip(x)
        if self._stages and _stacked(x.shape, plain):
            x = self._stages.to_stage_order(x)
        return jnp.pad(x, [(0, n - m) for n, m in zip(shape, x.shape, strict=True)])


def _shape(info: Any, plain: Any, x: Any) -> jax.ShapeDtypeStruct:
    shape, mesh = _resized(x.shape, info, plain), x.sharding.mesh
    spec = divisible_spec(x.sharding.spec, shape, mesh)
    laid = NamedSharding(mesh, spec, memory_kind=x.sharding.memory_kind)
    return jax.ShapeDtypeStruct(shape, x.dtype, sharding=laid)


def _of_copies(change: Change, info: Any, plain: Any, x: Any) -> Any:
    """What `change` makes of each copy's array, which the first dim counts."""
    if not isinstance(x, jax.ShapeDtypeStruct):
        return jax.vmap(lambda one: change(info, plain, one))(x)
    mesh, (copies, *rest) = x.sharding.mesh, x.sharding.spec
    laid = NamedSharding(mesh, PartitionSpec(*rest))
    one = change(info, plain, jax.ShapeDtypeStruct(x.shape[1:], x.dtype, sharding=laid))
    laid = NamedSharding(mesh, PartitionSpec(copies, *one.sharding.spec))
    return jax.ShapeDtypeStruct((x.shape[0], *one.shape), x.dtype, sharding=laid)


def _stacked(shape: tuple[int, ...], info: Any) -> bool:
    return bool(info.layers and shape and shape[0] == info.layers)


def _resized(shape: tuple[int, ...], info: Any, other: Any) -> tuple[int, ...]:
    """The shape of an array of one weight under another description; of what an optimizer keeps of
    it in fewer numbers the layers alone."""
    if shape == info.shape:
        return tuple(other.shape)
    return (other.layers, *shape[1:]) if _stacked(shape, info) else shape
