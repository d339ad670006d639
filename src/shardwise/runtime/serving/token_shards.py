"""Tokens of a pass on the chips of `context`.

All tokens [B,T] of a pass, row by row, are divided evenly, whatever their sequence: each chip
computes n of them, [1,n], the last chip some of padding. So a decode step, with one token of each
sequence, is divided like a prompt. Without `context` nothing changes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.arrays import ceil_div
from shardwise.runtime.layout.sharding import gather, scatter
from shardwise.runtime.serving.kv_layout import KvLayout

Array = jax.Array


def of_chip(layout: KvLayout, x_BT: Array) -> Array:
    """Numbers [1,n] of this chip's tokens, from those [B,T] of all; 0 or False for padding."""
    if layout.n_context == 1:
        return x_BT
    n = _n_local(layout, x_BT.size)
    padded = jnp.pad(x_BT.reshape(1, -1), ((0, 0), (0, n * layout.n_context - x_BT.size)))
    return lax.dynamic_slice_in_dim(padded, _index(layout) * n, n, 1)


def of_all(layout: KvLayout, x: Array, n_rows: int, n_tokens: int) -> Array:
    """Numbers [B,T,..] of all tokens, from those [1,n,..] of each chip."""
    if layout.n_context == 1:
        return x
    whole = gather(x, layout.context_axes, 1)[:, : n_rows * n_tokens]
    return whole.reshape(n_rows, n_tokens, *x.shape[2:])


def scattered(layout: KvLayout, x_BTNH: Array) -> Array:
    """Sums over chips for this chip's tokens, [1,n,N,H], from each chip's part for all tokens."""
    if layout.n_context == 1:
        return x_BTNH
    B, T, *shape = x_BTNH.shape
    flat = x_BTNH.reshape(1, B * T, -1)
    missing = _n_local(layout, B * T) * layout.n_context - B * T
    flat = jnp.pad(flat, ((0, 0), (0, missing), (0, 0)))
    return scatter(flat, layout.context_axes, 1).reshape(1, -1, *shape)


def last_of_rows(layout: KvLayout, x: Array, new_B: Array, n_tokens: int) -> Array:
    """Numbers [B,1,D] of the last new token of each row, on all chips.

    Args:
        x: those [1,n,D] of this chip's tokens, or [B,T,D] of all without `context`.
        new_B: number of new tokens of each row.
        n_tokens: T.
    """
    last_B = jnp.maximum(new_B - 1, 0)
    if layout.n_context == 1:
        return jnp.take_along_axis(x, last_B[:, None, None], axis=1)
    n = x.shape[1]
    local_B = jnp.arange(len(last_B)) * n_tokens + last_B - _index(layout) * n
    is_local_B = (local_B >= 0) & (local_B < n)
    x_BD = jnp.where(is_local_B[:, None], x[0, jnp.clip(local_B, 0, n - 1)], 0)
    return lax.psum(x_BD, layout.context_axes)[:, None]


def _n_local(layout: KvLayout, n_tokens: int) -> int:
    return int(ceil_div(n_tokens, layout.n_context))


def _index(layout: KvLayout) -> Array:
    return lax.axis_index(layout.context_axes)
