"""Splash attention, the Pallas kernel for TPUs that comes with JAX: scores never lie in memory.

q_BNTH queries, k_BKSH v_BKSH keys and values, o_BNTH what is attended, l_BNT the logarithm of the
sum that its softmax divides by. Queries carry the scale of their scores.
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

from shardwise.estimate.training.chip_rates import MASK_TILE
from shardwise.models.config import Attention
from shardwise.runtime.kernels.attention_mask import visible
from shardwise.runtime.layout.context_order import Order

Array = jax.Array

# Rows of queries and of keys that the kernel takes at once, as plans count them. Larger ones waste
# more of the diagonal of causal attention; smaller ones read keys more often.
BLOCK = MASK_TILE["tpu"]


class Mask(masks.Mask):
    """Which of `n_keys` keys in order queries at `positions` see.

    The kernel makes the mask of a block itself (`mask_function`, of `q_sequence`). Which blocks
    there are it asks here, and learns it from their corners: positions in a block follow on each
    other, and blocks are as long as they are wide and begin at multiples of that, so what a block
    has of a window or a chunk reaches a corner.
    """

    def __init__(self, attention: Attention, positions: np.ndarray[Any, Any], n_keys: int) -> None:
        self.attention = attention
        self.q_sequence = positions.astype(np.int32)
        self.mask_function = functools.partial(visible, attention)
        self.n_keys = n_keys

    @property
    def shape(self) -> tuple[int, int]:
        return (len(self.q_sequence), self.n_keys)

    def __getitem__(self, index: tuple[slice, slice]) -> np.ndarray[Any, Any]:
        rows, columns = self.q_sequence[index[0]], np.arange(self.n_keys)[index[1]]
        found: np.ndarray[Any, Any] = self.mask_function(rows[[0, -1], None], columns[[0, -1]])
        return found

    def _key(self) -> tuple[Any, ...]:
        return self.attention, self.q_sequence.tobytes(), self.shape

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mask) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


def fits(n_tokens: int, order: Order) -> bool:
    """Whether whole blocks of the kernel fill the tokens of a chip, or each of its chunks."""
    return n_tokens % (256 if order.paired else 128) == 0


def attend(
    q_BNTH: Array,
    k_BKSH: Array,
    v_BKSH: Array,
    attention: Attention,
    order: Order,
    index: Any,
    *,
    name: str,
    sinks_N: Array | None = None,
    interpret: bool = False,
) -> Array:
    """What chip `index` of `order` attends among all keys of its sequence, in their order.

    Args:
        name: under which remat finds the result and its sums.
        sinks_N: one logit a head that takes attention from no token.
    """
    n_tokens, n_keys = q_BNTH.shape[2], k_BKSH.shape[2]
    mask: Any = masks.FullMask((n_tokens, n_keys))
    if attention.causal:
        mask = Mask(attention, order.of_sequence(n_tokens * order.n), n_keys)
    shards = order.n if attention.causal else 1
    chunk = n_tokens // 2 if order.paired else n_tokens
    side = math.gcd(chunk, n_keys)
    made = splash.make_splash_mha(
        mask=masks.MultiHeadMask([mask] * q_BNTH.shape[1]),
        head_shards=1,
        q_seq_shards=shards,
        block_sizes=_sizes(side, side),
        attn_logits_soft_cap=attention.softcap,
        residual_checkpoint_name=name,
        interpret=interpret,
    )
    if shards > 1:
        made = _of_shard(made, shards, index)
    attended = functools.partial(made, segment_ids=None, sinks=sinks_N)
    return jax.vmap(attended)(q_BNTH, k_BKSH, v_BKSH)


def _of_shard(made: Any, shards: int, index: Any) -> Any:
    """The kernel of one part of the rows; its tables are those of all."""

    def part(x: Array, axis: int) -> Array:
        size = x.shape[axis] // shards
        return lax.dynamic_slice_in_dim(x, index * size, size, axis)

    def one(info: Any) -> Any:
        rows = {f: getattr(info, f) for f in ("data_next", "mask_next", "block_mask")}
        cut = {f: part(x, 1) for f, x in rows.items() if x is not None}
        return info._replace(**cut, q_sequence=part(info.q_sequence, 0))

    forward, gradients = one(made.fwd_mask_info), one(made.dkv_mask_info)
    return splash.SplashAttentionKernel(forward, None, gradients, **made.kwargs)


def forward(
    q_BNTH: Array, k_BKSH: Array, v_BKSH: Array, *, causal: bool, interpret: bool = False
) -> tuple[Array, Array]:
    """Attention over some of the keys, and its sums."""
    made = _piece(q_BNTH, k_BKSH, causal, residuals=True, interpret=interpret)
    o, (l,) = jax.vmap(made)(q_BNTH, k_BKSH, v_BKSH)
    return o, l


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
    """Gradients of queries, keys and values, when these keys are some of those that o and l are
    over. What is public of the kernel differentiates attention over all keys alone; its rule, with
    the o and l of all keys, is that of some of them."""
    made = _piece(q_BNTH, k_BKSH, causal, residuals=False, interpret=interpret)
    told = {**made.kwargs, "save_residuals": False}

    def one(q: Array, k: Array, v: Array, o: Array, l: Array, do: Array) -> Any:
        kept = (q, k, v, None, None, o, l, made.dq_mask_info, made.dkv_mask_info)
        return splash._splash_attention_bwd(**told, res=kept, do=do)[3:6]

    dq, dk, dv = jax.vmap(one)(q_BNTH, k_BKSH, v_BKSH, o_BNTH, l_BNT, do_BNTH)
    return dq, dk, dv


def _piece(q: Array, k: Array, causal: bool, *, residuals: bool, interpret: bool) -> Any:
    shape = (q.shape[2], k.shape[2])
    mask = masks.CausalMask(shape) if causal else masks.FullMask(shape)
    return splash.make_splash_mha(
        mask=masks.MultiHeadMask([mask] * q.shape[1]),
        head_shards=1,
        q_seq_shards=1,
        block_sizes=_sizes(*shape),
        save_residuals=residuals,
        interpret=interpret,
    )


def _sizes(rows: int, keys: int) -> Any:
    """Blocks that divide so many queries (or each chunk of them) and keys."""
    q, kv = (next(b for b in (BLOCK, 256, 128) if n % b == 0) for n in (rows, keys))
    return splash.BlockSizes(
        block_q=q,
        block_kv=kv,
        block_kv_compute=kv,
        block_q_dkv=q,
        block_kv_dkv=kv,
        block_kv_dkv_compute=kv,
        use_fused_bwd_kernel=True,
    )
