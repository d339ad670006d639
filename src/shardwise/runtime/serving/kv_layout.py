"""Layout of KV caches on the chips of an engine.

`tensor` shards the cache by KV heads. If it has more chips than there are KV heads, it becomes two
mesh axes: the first shards the heads, and the chips along the second have copies of the same head,
or different tokens of each sequence. `context` shards the tokens of each sequence, too.
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
    """How the chips of an engine share a KV cache.

    Args:
        heads: mesh axes that shard the KV heads.
        copy_axes: mesh axes along which chips have the same heads.
        split: what `copy_axes` shard: `sequence` (the tokens of each sequence) or nothing
            (`copied`).
        n_copies: number of chips along `copy_axes`.
        context_axes: mesh axes of `context`, whose chips have equal heads, and compute different
            tokens of a pass.
        n_context: number of chips along `context_axes`.
    """

    heads: tuple[str, ...]
    copy_axes: tuple[str, ...]
    split: str
    n_copies: int
    context_axes: tuple[str, ...] = ()
    n_context: int = 1

    @property
    def query_axes(self) -> tuple[str, ...]:
        """Axes along which chips have other query heads, and other tokens, of the same KV head."""
        return self.copy_axes if self.split == "sequence" else ()

    @property
    def token_axes(self) -> tuple[str, ...]:
        """Axes that shard the tokens of a sequence."""
        return self.context_axes + self.query_axes

    @property
    def n_parts(self) -> int:
        """Number of chips that share the tokens of a sequence."""
        return self.n_context * (self.n_copies if self.query_axes else 1)

    def part(self) -> Array:
        """Index of the part of every sequence that this chip has."""
        if not self.token_axes:
            return jnp.zeros((), jnp.int32)
        return lax.axis_index(self.token_axes)


def kv_heads(config: ModelConfig) -> int:
    """Number of KV heads of the layer that has the fewest, which limits their sharding."""
    return min(cached_heads(a) for a, _ in config.attentions)


def cached_heads(a: Attention) -> int:
    """Number of KV heads in the cache; latents are one for all heads."""
    return 1 if a.mla else a.n_kv_heads


def kv_layout(mesh: RoleMesh, split: str) -> KvLayout:
    """The layout of caches on a mesh that `split_tensor` returned.

    Args:
        split: see `KvLayout`.
    """
    axes = mesh.axes["tensor"]
    n_context = mesh.sizes["context"]
    context_axes = mesh.axis_names(("context",)) if n_context > 1 else ()
    layout = KvLayout(
        heads=axes,
        copy_axes=(),
        split="copied",
        n_copies=1,
        context_axes=context_axes,
        n_context=n_context,
    )
    if axes != (HEADS, COPIES):
        return layout
    n_copies = mesh.jax_mesh.shape[COPIES]
    return replace(layout, heads=(HEADS,), copy_axes=(COPIES,), split=split, n_copies=n_copies)


def split_tensor(mesh: RoleMesh, heads: int) -> RoleMesh:
    """Split `tensor` into two mesh axes if it has more chips than there are KV heads."""
    n = mesh.sizes["tensor"]
    if n <= heads:
        return mesh
    axis_sizes: dict[str, int] = {}
    for name, size in mesh.jax_mesh.shape.items():
        if name == "tensor":
            axis_sizes |= {HEADS: heads, COPIES: n // heads}
        else:
            axis_sizes[name] = size
    devices = mesh.jax_mesh.devices.reshape(list(axis_sizes.values()))
    axis_types = (jax.sharding.AxisType.Auto,) * len(axis_sizes)
    jax_mesh = jax.sharding.Mesh(devices, tuple(axis_sizes), axis_types=axis_types)
    return replace(mesh, jax_mesh=jax_mesh, axes={**mesh.axes, "tensor": (HEADS, COPIES)})
