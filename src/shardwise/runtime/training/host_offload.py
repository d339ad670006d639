"""Updates of an optimizer state that is in host memory, a part at a time.

XLA copies every array to the chip as early as possible, so all of the state would be on the chip at
once. The update is therefore split into parts that depend on different arrays in host memory, and
each part starts when the state of the previous part is back in host memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from shardwise.runtime.weights.descriptions import Tree

KIND = "pinned_host"  # JAX's name of host memory that chips can access
CHIP = jax.memory.Space.Device
HOST = jax.memory.Space.Host


def is_available(devices: np.ndarray[Any, Any]) -> bool:
    """Whether programs on these devices can use host memory."""
    return all(
        KIND in {memory.kind for memory in device.addressable_memories()} for device in devices.flat
    )


def is_on_host(x: Any) -> bool:
    """Whether an array or a tracer is in host memory."""
    return bool(jax.typeof(x).memory_space == HOST)


def on_chip(x: Any) -> Any:
    """Move an array from host memory to the chip; one on the chip stays there."""
    if is_on_host(x):
        return jax.device_put(x, CHIP)
    return x


def is_offloadable(x: Any) -> bool:
    """Whether an array of the state may be in host memory: scalars stay on the chip."""
    return bool(x.ndim)


def apply_in_parts(
    function: Callable[..., Tree],
    args: Sequence[Any],
    goes_to_host: Callable[[Tree], Tree],
    after: Sequence[Any],
) -> Tree:
    """Compute `function(*args)` in parts, each of which moves its own arguments to the chip.

    Args:
        function: function of pytrees that updates each weight independently of the others.
        args: its arguments, pytrees of arrays; some are in host memory.
        goes_to_host: maps the tree of result shapes to a tree of booleans: whether a result is
            moved to host memory.
        after: arrays that have to be computed before the first part starts.
    """
    flat_args, args_tree = jax.tree.flatten(args)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in flat_args]
    closed, result_shapes = jax.make_jaxpr(function, return_shape=True)(
        *jax.tree.unflatten(args_tree, shapes)
    )
    jaxpr = closed.jaxpr
    arguments = dict(zip(jaxpr.invars, flat_args, strict=True))
    on_host = [variable for variable, x in arguments.items() if is_on_host(x)]
    values = arguments | dict(zip(jaxpr.constvars, closed.consts, strict=True))
    leaves = list(jaxpr.outvars)
    offloaded = jax.tree.leaves(goes_to_host(result_shapes))
    for inputs, indices in _parts(jaxpr, on_host):
        if inputs:
            arrays, _ = lax.optimization_barrier(([arguments[v] for v in inputs], after))
            values |= zip(inputs, map(on_chip, arrays), strict=True)
        _evaluate(jaxpr, [leaves[index] for index in indices], values)
        returned = []
        for index in indices:
            leaf = leaves[index]
            if isinstance(leaf, Literal):
                leaves[index] = leaf.val
            else:
                leaves[index] = values[leaf]
            if offloaded[index]:
                leaves[index] = jax.device_put(leaves[index], HOST)
                returned.append(leaves[index])
        after = returned or after
    return jax.tree.unflatten(jax.tree.structure(result_shapes), leaves)


def _parts(jaxpr: Any, on_host: Sequence[Any]) -> list[tuple[list[Any], list[int]]]:
    """Split a jaxpr into parts that share no argument in host memory.

    Returns:
        For each part (its arguments in host memory, indices of the results that depend on them).
    """
    # Variable -> arguments in host memory that it depends on.
    needs = {variable: frozenset([variable]) for variable in on_host}
    for eqn in jaxpr.eqns:
        needs |= dict.fromkeys(eqn.outvars, _host_arguments(needs, eqn.invars))
    parts: list[tuple[frozenset[Any], list[int]]] = []
    for index, result in enumerate(jaxpr.outvars):
        needed = _host_arguments(needs, [result])
        indices = [index]
        overlapping = [part for part in parts if part[0] & needed]
        for part in overlapping:
            parts.remove(part)
            needed = needed | part[0]
            indices = part[1] + indices
        parts.append((needed, indices))
    return [
        ([variable for variable in on_host if variable in needed], indices)
        for needed, indices in parts
    ]


def _host_arguments(needs: dict[Any, frozenset[Any]], atoms: Sequence[Any]) -> frozenset[Any]:
    """Arguments in host memory that any of the atoms depends on."""
    return frozenset[Any]().union(*(needs.get(variable, ()) for variable in _variables(atoms)))


def _evaluate(jaxpr: Any, results: Sequence[Any], values: dict[Any, Any]) -> None:
    """Evaluate `results` and all that they depend on; add each value to `values`."""
    needed = {*_variables(results)}
    eqns: list[Any] = []
    for eqn in reversed(jaxpr.eqns):
        if needed & {*eqn.outvars} and not values.keys() & {*eqn.outvars}:
            needed |= {*_variables(eqn.invars)}
            eqns.insert(0, eqn)
    inputs = dict.fromkeys(v for eqn in eqns for v in _variables(eqn.invars) if v in values)
    outputs = [variable for eqn in eqns for variable in eqn.outvars]
    part = jaxpr.replace(constvars=(), invars=[*inputs], outvars=outputs, eqns=eqns)
    arrays = jaxpr_as_fun(ClosedJaxpr(part, ()))(*(values[v] for v in inputs))
    values |= zip(outputs, arrays, strict=True)


def _variables(atoms: Sequence[Any]) -> list[Any]:
    """The atoms of a jaxpr that are variables, not literals."""
    return [atom for atom in atoms if not isinstance(atom, Literal)]
