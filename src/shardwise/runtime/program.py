"""A program for a compiler: a function, the shapes of its arguments, and its devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax

# Who chooses the collectives of a training step: "plan" calls those that the sharding algebra
# derives, "compiler" leaves the choice to XLA's partitioner, which gets sharding constraints.
COLLECTIVES = ("plan", "compiler")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A function with the shapes of its arguments.

    Args:
        name: name of the program in tables, such as `train step`.
        fn: the function; if it is jitted already, its own donation and shardings apply.
        args: pytrees of `jax.ShapeDtypeStruct`, each with its `NamedSharding` over `mesh`.
        mesh: the devices, by named axes.
        donate: indices of the `args` that are donated.
        options: options of XLA's compiler; a caller's options take precedence.
        out_shardings: shardings of the results, as `jax.jit` takes them; None leaves them to the
            compiler.
    """

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    mesh: jax.sharding.Mesh
    donate: tuple[int, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    out_shardings: Any = None
