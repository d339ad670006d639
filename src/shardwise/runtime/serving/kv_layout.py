"""How the caches of keys and values lie on the chips of an engine.

Keys are split over `tensor` by heads as far as there are heads. What is left of `tensor` (its
minor mesh axis) copies them, or splits the cache over sequences or over the tokens of each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.models import Attention, ModelConfig
from shardwise.runtime.layout.mesh import RoleMesh

Array = jax.Array

HEADS, REST = "tensor.heads", "tensor.rest"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """Which mesh axes cut a cache.

    Args:
        heads: axes that cut the heads of keys.
        rest: axes along which chips have the same heads.
        split: what `rest` does: `copied`, `batch` or `sequence`.
        ways: chips along `rest`.
    """

    heads: tuple[str, ...]
    rest: tuple[str, ...]
    split: str
    ways: int

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """Axes that cut the sequences of an engine."""
        return self.rest if self.split == "batch" else ()

    @property
    def token_axes(self) -> tuple[str, ...]:
        """Axes that cut the tokens of a sequence."""
        return self.rest if self.split == "sequence" else ()

    @property
    def parts(self) -> int:
        """Ways that the tokens of a sequence are split: token p is of part p mod parts."""
        return self.ways if self.split == "sequence" else 1

    def part(self) -> Array:
        """This chip's part of every sequence."""
        return _index(self.token_axes)

    def own_rows(self, x: Array) -> Array:
        """Of an array whose first dim are the engine's sequences: those of this chip's cache."""
        if not self.batch_axes:
            return x
        n = x.shape[0] // self.ways
        return lax.dynamic_slice_in_dim(x, _index(self.batch_axes) * n, n, 0)

    def own_slots(self, slots_n: Array, rows: int) -> Array:
        """Places of sequences in this chip's cache of so many; those of other chips are past its
        end, where nothing is written."""
        if not self.batch_axes:
            return slots_n
        local_n = slots_n - _index(self.batch_axes) * rows
        return jnp.where((local_n >= 0) & (local_n < rows), local_n, rows)

    def held(self, a: Attention, context: int) -> int:
        """Tokens of a sequence that one chip holds: a window keeps no more than its width."""
        return -(-slots(a, context) // self.parts)


def slots(a: Attention, context: int) -> int:
    """Tokens of a sequence that are held; token p lies in slot p mod slots."""
    return context if a.window is None else min(a.window, context)


def _index(axes: tuple[str, ...]) -> Array:
    return lax.axis_index(axes) if axes else jnp.zeros((), jnp.int32)


def kv_heads(config: ModelConfig) -> int:
    """Heads of keys that can be split: the fewest of any layer."""
    return min(a.n_kv_heads for a, _ in config.attentions)


def kv_layout(on: RoleMesh, split: str) -> KvLayout:
    """The layout of caches on a mesh that `split_tensor` made."""
    axes = on.axes["tensor"]
    if axes != (HEADS, REST):
        return KvLayout(heads=axes, rest=(), split="copied", ways=1)
    return KvLayout(heads=(HEADS,), rest=(REST,), split=split, ways=on.jax_mesh.shape[REST])


def split_tensor(on: RoleMesh, heads: int) -> RoleMesh:
    """The same mesh, `tensor` as two axes where it has more chips than there are heads of keys."""
    n = on.sizes["tensor"]
    if n <= heads:
        return on
    names, shape = [], []
    for name, size in on.jax_mesh.shape.items():
        cut = name == "tensor"
        names += [HEADS, REST] if cut else [name]
        shape += [heads, n // heads] if cut else [size]
    kinds = (jax.sharding.AxisType.Auto,) * len(names)
    mesh = jax.sharding.Mesh(on.jax_mesh.devices.reshape(shape), tuple(names), axis_types=kinds)
    return replace(on, jax_mesh=mesh, axes={**on.axes, "tensor": (HEADS, REST)})
