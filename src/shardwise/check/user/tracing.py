"""What a user's function states in its own code: meshes, shardings, donation. Imports JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from shardwise.check.user.meshes import AnyMesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """What a function states by itself.

    Args:
        mesh: the first mesh in it, of a sharding or of a `shard_map`; None without one.
        shardings: index of a leaf of the arguments -> its sharding in `in_shardings`.
        donated: indices of the leaves that it donates.
    """

    mesh: AnyMesh | None = None
    shardings: Mapping[int, NamedSharding] = field(default_factory=dict)
    donated: frozenset[int] = frozenset()


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array or the shape of one."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def statements_of(fn: Callable[..., Any], args: tuple[Any, ...]) -> Statements:
    """What a function states in its own `jit`s and in its code; nothing if it cannot be traced."""
    leaves, tree = jax.tree.flatten(args)
    positions = [index for index, leaf in enumerate(leaves) if is_array(leaf)]

    def call(*arrays: Any) -> Any:
        traced_leaves = list(leaves)
        for position, array in zip(positions, arrays, strict=True):
            traced_leaves[position] = array
        return _only_arrays(fn(*jax.tree.unflatten(tree, traced_leaves)))

    try:
        jaxpr = jax.make_jaxpr(call)(*(leaves[position] for position in positions)).jaxpr
    except Exception:  # the lowering meets it again, and the user is told
        return Statements()
    leaf_of = dict(zip(map(id, jaxpr.invars), positions, strict=True))
    shardings = {}
    donated = set()
    for equation in jaxpr.eqns:
        if "in_shardings" not in equation.params:
            continue
        for variable, sharding, is_donated in zip(
            equation.invars,
            equation.params["in_shardings"],
            equation.params["donated_invars"],
            strict=True,
        ):
            leaf = leaf_of.get(id(variable))
            if leaf is not None and isinstance(sharding, NamedSharding):
                shardings[leaf] = sharding
            if leaf is not None and is_donated:
                donated.add(leaf)
    mesh = next(_meshes_in(jaxpr), None)
    return Statements(mesh=mesh, shardings=shardings, donated=frozenset(donated))


def jit_of(fn: Callable[..., Any], args: tuple[Any, ...], donated: frozenset[int]) -> Any:
    """A function in a `jit` that donates what the function donates.

    Leaves of the arguments that are no arrays, such as numbers and configurations, are passed to
    the function as they are; in its results, None is in place of such leaves.
    """
    first_leaf = 0
    donated_arguments = []
    for position, argument in enumerate(args):
        n_leaves = len(jax.tree.leaves(argument))
        if not donated.isdisjoint(range(first_leaf, first_leaf + n_leaves)):
            donated_arguments.append(position)
        first_leaf += n_leaves
    leaves, tree = jax.tree.flatten(args)

    @functools.wraps(fn)
    def call(*arrays: Any) -> Any:
        remaining = iter(jax.tree.leaves(arrays))
        merged = [next(remaining) if is_array(leaf) else leaf for leaf in leaves]
        return _only_arrays(fn(*jax.tree.unflatten(tree, merged)))

    return jax.jit(call, donate_argnums=donated_arguments)


def arrays_of(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with None in place of the leaves that are no arrays."""
    arrays: tuple[Any, ...] = _only_arrays(args)
    return arrays


def _only_arrays(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf if is_array(leaf) else None, tree)


def _meshes_in(jaxpr: Jaxpr) -> Iterator[AnyMesh]:
    """Every mesh that the equations of a traced function name, inner functions included."""
    for equation in jaxpr.eqns:
        for value in jax.tree.leaves(dict(equation.params)):
            if isinstance(value, ClosedJaxpr):
                yield from _meshes_in(value.jaxpr)
            elif isinstance(value, Jaxpr):
                yield from _meshes_in(value)
            else:
                mesh = getattr(value, "mesh", value)
                if isinstance(mesh, Mesh | AbstractMesh) and not mesh.empty:
                    yield mesh
