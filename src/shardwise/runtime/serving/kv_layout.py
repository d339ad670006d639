"""Layout of KV caches on the chips of an engine.

`tensor` shards keys by heads, up to the number of heads. The rest of `tensor` (its minor mesh axis)
replicates them, or shards the cache by sequences or by the tokens of each sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.models import Attention, ModelConfig
from shardwise.runtime.layout.mesh import RoleMesh

Array = jax.Array

HEADS = "tensor.heads"  # names of the two mesh axes of `tensor`
COPIES = "tensor.rest"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """The mesh axes that shard a cache.

    Args:
        heads: axes that shard the KV heads.
        rest: axes along which chips have the same heads.
        split: use of these axes: `copied`, `batch` or `sequence`.
        ways: number of chips along them.
    """

    heads: tuple[str, ...]
    copy_axes: tuple[str, ...]
    split: str
    n_copies: int

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """Axes that shard the sequences of an engine."""
        return self.copy_axes if self.split == "batch" else ()

    @property
    def token_axes(self) -> tuple[str, ...]:
        """Axes that shard the tokens of a sequence."""
        return self.copy_axes if self.split == "sequence" else ()

    @property
    def parts(self) -> int:
        """Number of parts of a sequence's cache: token p is in part p mod parts."""
        return self.n_copies if self.split == "sequence" else 1

    def part(self) -> Array:
        """Index of this chip's part of every sequence."""
        return _index(self.token_axes)

    def own_rows(self, x: Array) -> Array:
        """Slice an array, whose first dim has the engine's sequences, to those of this chip."""
        if not self.batch_axes:
            return x
        n = x.shape[0] // self.n_copies
        return lax.dynamic_slice_in_dim(x, _index(self.batch_axes) * n, n, 0)

    def own_slots(self, slots_n: Array, rows: int) -> Array:
        """Convert slots of the engine's cache to those of this chip's cache.

        Slots of other chips map behind the last row, where writes are dropped.

        Args:
            slots_n: of the engine's cache.
            rows: number of sequences in this chip's cache.
        """
        if not self.batch_axes:
            return slots_n
        local_n = slots_n - _index(self.batch_axes) * rows
        return jnp.where((local_n >= 0) & (local_n < rows), local_n, rows)

    def local_slots(self, a: Attention, context: int) -> int:
        """Number of tokens of a sequence in the cache of one chip; a window limits it."""
        return -(-slots(a, context) // self.parts)


def slots(a: Attention, context: int) -> int:
    """Number of tokens of a sequence in its cache; token p is in slot p mod slots."""
    if a.window is None:
        return context
    return min(a.window, context)


def _index(axes: tuple[str, ...]) -> Array:
    if not axes:
        return jnp.zeros((), jnp.int32)
    return lax.axis_index(axes)


def kv_heads(config: ModelConfig) -> int:
    """KV heads that can be sharded: the fewest of any layer."""
    return min(a.n_kv_heads for a, _ in config.attentions)


def kv_layout(on: RoleMesh, split: str) -> KvLayout:
    """The layout of caches on a mesh of `split_tensor`."""
    axes = on.axes["tensor"]
    if axes != (HEADS, COPIES):
        return KvLayout(heads=axes, copy_axes=(), split="copied", n_copies=1)
    return KvLayout(
        heads=(HEADS,), copy_axes=(COPIES,), split=split, n_copies=on.jax_mesh.shape[COPIES]
    )


def split_tensor(on: RoleMesh, heads: int) -> RoleMesh:
    """Split `tensor` into two mesh axes if it has more chips than there are KV heads."""
    n = on.sizes["tensor"]
    if n <= heads:
        return on
    axis_sizes: dict[str, int] = {}
    for name, size in on.jax_mesh.shape.items():
        if name == "tensor":
            axis_sizes |= {HEADS: heads, COPIES: n // heads}
        else:
            axis_sizes[name] = size
    devices = on.jax_mesh.devices.reshape(list(axis_sizes.values()))
    axis_types = (jax.sharding.AxisType.Auto,) * len(axis_sizes)
    mesh = jax.sharding.Mesh(devices, tuple(axis_sizes), axis_types=axis_types)
    return replace(on, jax_mesh=mesh, axes={**on.axes, "tensor": (HEADS, COPIES)})
