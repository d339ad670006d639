"""A program as it is handed to a compiler: what runs, on what shapes, on which devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax

# Who chooses the collectives of a training step: the plan, whose moves are written down, or XLA's
# partitioner, which is told by sharding constraints where arrays lie.
COLLECTIVES = ("plan", "compiler")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A function with arguments that hold no data.

    Args:
        name: what tables call it, `train step`.
        fn: the function, not jitted; one that is keeps its own donation and shardings.
        args: pytrees of `jax.ShapeDtypeStruct`, each with its `NamedSharding` over `mesh`.
        donate: the positions in `args` whose memory the results may take.
        mesh: the devices, by named axes.
        options: options for XLA's compiler; those that a caller gives go before them.
        out_shardings: shardings of the results, a pytree as `jax.jit` takes it; None leaves them
            to the compiler.
    """

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    mesh: jax.sharding.Mesh
    donate: tuple[int, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    out_shardings: Any = None
