"""The optimizer's state in host memory: on the chip for its update, one weight after the other.

XLA moves every array as soon as it can, so that all of the state would be on the chip at once. The
update is therefore taken apart into what depends on the same arrays in host memory, and each part
begins when the state of the one before it is back there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from shardwise.runtime.weights.descriptions import Tree

KIND = "pinned_host"
CHIP, HOST = jax.memory.Space.Device, jax.memory.Space.Host


def has_room(devices: np.ndarray[Any, Any]) -> bool:
    """Whether programs of these devices reach host memory."""
    return all(KIND in {m.kind for m in device.addressable_memories()} for device in devices.flat)


def lies_there(x: Any) -> bool:
    """Whether an array, or what is traced of it, is in host memory."""
    return bool(jax.typeof(x).memory_space == HOST)


def on_chip(x: Any) -> Any:
    """The array on the chip."""
    return jax.device_put(x, CHIP) if lies_there(x) else x


def waits(x: Any) -> bool:
    """Whether an array of an optimizer's state waits there: single numbers stay on the chip."""
    return bool(x.ndim)


def in_turn(
    function: Callable[..., Tree],
    args: Sequence[Any],
    outside: Callable[[Tree], Tree],
    after: Sequence[Any],
) -> Tree:
    """`function(*args)`, whose arguments in host memory come to the chip part after part.

    Args:
        outside: of the shapes of its results, which go to host memory.
        after: what is computed before the first of them comes.
    """
    flat, tree = jax.tree.flatten(args)
    here = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in flat]
    made, told = jax.make_jaxpr(function, return_shape=True)(*jax.tree.unflatten(tree, here))
    given = dict(zip(made.jaxpr.invars, flat, strict=True))
    waiting = [v for v, x in given.items() if lies_there(x)]
    values = given | dict(zip(made.jaxpr.constvars, made.consts, strict=True))
    leaves, goes = list(made.jaxpr.outvars), jax.tree.leaves(outside(told))
    for inputs, results in _parts(made.jaxpr, waiting):
        if inputs:
            held, _ = lax.optimization_barrier(([given[v] for v in inputs], after))
            values |= zip(inputs, map(on_chip, held), strict=True)
        _evaluate(made.jaxpr, [leaves[i] for i in results], values)
        for i in results:
            x = leaves[i].val if isinstance(leaves[i], Literal) else values[leaves[i]]
            leaves[i] = jax.device_put(x, HOST) if goes[i] else x
        after = [leaves[i] for i in results if goes[i]] or after
    return jax.tree.unflatten(jax.tree.structure(told), leaves)


def _parts(jaxpr: Any, waiting: Sequence[Any]) -> list[tuple[list[Any], list[int]]]:
    """(arguments in host memory, numbers of the results that depend on them), so that no two parts
    need the same."""
    needs = {v: frozenset([v]) for v in waiting}
    for eqn in jaxpr.eqns:
        needed = frozenset[Any]().union(*(needs.get(v, ()) for v in _variables(eqn.invars)))
        needs |= dict.fromkeys(eqn.outvars, needed)
    parts: list[tuple[frozenset[Any], list[int]]] = []
    for i, result in enumerate(jaxpr.outvars):
        needed = frozenset[Any]().union(*(needs.get(v, ()) for v in _variables([result])))
        results = [i]
        for other in [part for part in parts if part[0] & needed]:
            parts.remove(other)
            needed, results = needed | other[0], other[1] + results
        parts.append((needed, results))
    return [([v for v in waiting if v in needed], results) for needed, results in parts]


def _evaluate(jaxpr: Any, results: Sequence[Any], values: dict[Any, Any]) -> None:
    """Put into `values` what the results are, and all that is computed for them."""
    wanted, needed = {*_variables(results)}, list[Any]()
    for eqn in reversed(jaxpr.eqns):
        if wanted & {*eqn.outvars} and not values.keys() & {*eqn.outvars}:
            wanted |= {*_variables(eqn.invars)}
            needed.insert(0, eqn)
    used = dict.fromkeys(v for eqn in needed for v in _variables(eqn.invars) if v in values)
    made = [v for eqn in needed for v in eqn.outvars]
    part = jaxpr.replace(constvars=(), invars=[*used], outvars=made, eqns=needed)
    found = jaxpr_as_fun(ClosedJaxpr(part, ()))(*(values[v] for v in used))
    values |= zip(made, found, strict=True)


def _variables(of: Sequence[Any]) -> list[Any]:
    return [x for x in of if not isinstance(x, Literal)]
