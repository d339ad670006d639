"""Splash attention, JAX's Pallas kernel for TPUs, which never writes scores to memory.

q_BNTH are queries (already multiplied by the scale of the scores), k_BKSH keys, v_BKSH values,
o_BNTH the attention output and l_BNT the logsumexp of the scores.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from shardwise.estimate.kernels import TPU_MASK_TILE, backward_key_block
from shardwise.models.config import Attention
from shardwise.runtime.kernels.attention_mask import attention_mask
from shardwise.runtime.layout.context_order import ContextOrder

Array = jax.Array

# Queries (and keys) per block of the kernel; plans count masked blocks of the same size. Larger
# blocks compute more masked scores on the diagonal of causal attention; smaller ones read keys more
# often.
BLOCK = TPU_MASK_TILE


class Mask(masks.Mask):
    """Mask of queries at `positions` over the keys at positions 0 to `n_keys` - 1.

    The kernel computes the mask inside a block itself, by `mask_function` of the positions
    (`q_sequence`). It indexes the mask only to learn which blocks are empty, and the four corners
    of a square are enough for that: positions in a square are consecutive, and squares start at
    multiples of their side, so the part of a window or chunk inside a square always touches one of
    its corners. A block is a row of squares.
    """

    def __init__(self, attention: Attention, positions: np.ndarray[Any, Any], n_keys: int) -> None:
        self.attention = attention
        self.q_sequence = positions.astype(np.int32)
        self.mask_function = functools.partial(attention_mask, attention)
        self.n_keys = n_keys

    @property
    def shape(self) -> tuple[int, int]:
        return (len(self.q_sequence), self.n_keys)

    def __getitem__(self, index: tuple[slice, slice]) -> np.ndarray[Any, Any]:
        rows = self.q_sequence[index[0]]
        columns = np.arange(self.n_keys)[index[1]]
        side = len(rows)
        ends = np.concatenate([columns[::side], columns[side - 1 :: side]])
        corners: np.ndarray[Any, Any] = self.mask_function(rows[[0, -1], None], ends)
        return corners

    def _key(self) -> tuple[Any, ...]:
        """The values by which two masks are compared."""
        return self.attention, self.q_sequence.tobytes(), self.shape

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mask) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


def supports(n_tokens: int, order: ContextOrder) -> bool:
    """Whether the kernel's smallest block (128) divides a chip's tokens, or each of its chunks."""
    return n_tokens % (256 if order.paired else 128) == 0


def attend(
    q_BNTH: Array,
    k_BKSH: Array,
    v_BKSH: Array,
    attention: Attention,
    order: ContextOrder,
    index: Any,
    *,
    name: str,
    sinks_N: Array | None = None,
    interpret: bool = False,
) -> Array:
    """o_BNTH of the queries of chip `index` over all keys of their sequence, which are in order.

    Args:
        q_BNTH: queries of the chip's tokens.
        k_BKSH: keys of all tokens.
        v_BKSH: values of all tokens.
        attention: its mask, window or chunks, and softcap.
        order: how the tokens of a sequence are split over chips.
        index: index of the chip in `order`.
        name: checkpoint name of the output and its logsumexp.
        sinks_N: attention sinks, see `attention.attend`.
        interpret: whether the kernel runs in Pallas' interpreter.
    """
    n_tokens = q_BNTH.shape[2]
    n_keys = k_BKSH.shape[2]
    mask: Any = masks.FullMask((n_tokens, n_keys))
    n_shards = 1
    if attention.causal:
        mask = Mask(attention, order.token_order(n_tokens * order.n), n_keys)
        n_shards = order.n
    n_consecutive = n_tokens // 2 if order.paired else n_tokens
    block = _largest_block(math.gcd(n_consecutive, n_keys))
    kernel = splash.make_splash_mha(
        mask=masks.MultiHeadMask([mask] * q_BNTH.shape[1]),
        head_shards=1,
        q_seq_shards=n_shards,
        block_sizes=_block_sizes(block, block, n_keys),
        attn_logits_soft_cap=attention.softcap,
        residual_checkpoint_name=name,
        interpret=interpret,
    )
    if n_shards > 1:
        kernel = _kernel_of_shard(kernel, n_shards, index)
    attend_one = functools.partial(kernel, segment_ids=None, sinks=sinks_N)
    return jax.vmap(attend_one)(q_BNTH, k_BKSH, v_BKSH)


def _kernel_of_shard(kernel: Any, n_shards: int, index: Any) -> Any:
    """Kernel for shard `index` of the queries, from a kernel with the mask tables of all shards."""

    def shard(x: Array, axis: int) -> Array:
        size = x.shape[axis] // n_shards
        return lax.dynamic_slice_in_dim(x, index * size, size, axis)

    def shard_mask(info: Any) -> Any:
        tables = {}
        for field in ("data_next", "mask_next", "block_mask"):
            table = getattr(info, field)
            if table is not None:
                tables[field] = shard(table, 1)
        return info._replace(**tables, q_sequence=shard(info.q_sequence, 0))

    forward_mask = shard_mask(kernel.fwd_mask_info)
    backward_mask = shard_mask(kernel.dkv_mask_info)
    return splash.SplashAttentionKernel(forward_mask, None, backward_mask, **kernel.kwargs)


def forward(
    q_BNTH: Array, k_BKSH: Array, v_BKSH: Array, *, causal: bool, interpret: bool = False
) -> tuple[Array, Array]:
    """Attention over some of the keys: return (o_BNTH, logsumexp l_BNT of the scores)."""
    kernel = _partial_kernel(q_BNTH, k_BKSH, causal, residuals=True, interpret=interpret)
    o_BNTH, (l_BNT,) = jax.vmap(kernel)(q_BNTH, k_BKSH, v_BKSH)
    return o_BNTH, l_BNT


def backward(
    q_BNTH: Array,
    k_BKSH: Array,
    v_BKSH: Array,
    o_BNTH: Array,
    l_BNT: Array,
    do_BNTH: Array,
    *,
    causal: bool,
    interpret: bool = False,
) -> tuple[Array, Array, Array]:
    """Gradients of queries, keys and values; arguments as in `blockwise.backward`.

    The keys may be only some of those over which `o_BNTH` and `l_BNT` were computed. The kernel's
    public interface cannot do that, so this calls its private backward function.
    """
    kernel = _partial_kernel(q_BNTH, k_BKSH, causal, residuals=False, interpret=interpret)
    options = {**kernel.kwargs, "save_residuals": False}

    def differentiate(q: Array, k: Array, v: Array, o: Array, l: Array, do: Array) -> Any:
        residuals = (q, k, v, None, None, o, l, kernel.dq_mask_info, kernel.dkv_mask_info)
        return splash._splash_attention_bwd(**options, res=residuals, do=do)[3:6]

    dq_BNTH, dk_BKSH, dv_BKSH = jax.vmap(differentiate)(
        q_BNTH, k_BKSH, v_BKSH, o_BNTH, l_BNT, do_BNTH
    )
    return dq_BNTH, dk_BKSH, dv_BKSH


def _partial_kernel(
    q_BNTH: Array, k_BKSH: Array, causal: bool, *, residuals: bool, interpret: bool
) -> Any:
    """Kernel of attention over some of the keys; with `residuals` it returns the logsumexp too."""
    shape = (q_BNTH.shape[2], k_BKSH.shape[2])
    mask = masks.CausalMask(shape) if causal else masks.FullMask(shape)
    return splash.make_splash_mha(
        mask=masks.MultiHeadMask([mask] * q_BNTH.shape[1]),
        head_shards=1,
        q_seq_shards=1,
        block_sizes=_block_sizes(_largest_block(shape[0]), _largest_block(shape[1]), shape[1]),
        save_residuals=residuals,
        interpret=interpret,
    )


def _block_sizes(q_block: int, kv_block: int, n_keys: int) -> Any:
    """Sizes of blocks; in the backward pass those of keys are a multiple of `kv_block`."""
    kv_block_backward = int(backward_key_block(n_keys)) if kv_block == BLOCK else kv_block
    return splash.BlockSizes(
        block_q=q_block,
        block_kv=kv_block,
        block_kv_compute=kv_block,
        block_q_dkv=q_block,
        block_kv_dkv=kv_block_backward,
        block_kv_dkv_compute=kv_block,
        use_fused_bwd_kernel=True,
    )


def _largest_block(n_tokens: int) -> int:
    """The largest block size that divides a number of tokens."""
    return next(size for size in (BLOCK, 256, 128) if n_tokens % size == 0)
