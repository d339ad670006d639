"""A paged KV cache: keys and values of all sequences in blocks, which block tables assign.

Letters of arrays: P blocks of one layer, L layers, B sequences, T new tokens of each, M blocks of a
block table, S slots that are read at a time (a slot stores one token), K KV heads, G query heads
per KV head, H head width. The layers of a stack have one array of keys and one of values,
[L*P,K,O,H] with O slots per block, so that a layer reads and writes it by block index alone. Scales
of quantized ones are [L*P,K,O]. Kernels attend on TPUs (`kernels.paged`) and GPUs
(`kernels.paged_gpu`), and write on TPUs.

Source: vLLM's PagedAttention, arXiv 2309.06180, section 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.arrays import ceil_div
from shardwise.estimate.serving.measured_rates import KEYS_PER_STEP
from shardwise.models import Attention
from shardwise.runtime.blocks.elementwise import softcap
from shardwise.runtime.kernels.attention_mask import attention_mask
from shardwise.runtime.serving.kv_cache import CacheArray
from shardwise.runtime.serving.kv_layout import KvLayout
from shardwise.runtime.serving.token_shards import scattered
from shardwise.runtime.weights.quantized import Scaled

Array = jax.Array
Cache = dict[str, CacheArray]

# Keys that a step of the loop over a sequence's blocks reads. CPUs keep those of fewer in their
# caches, and waste less on short sequences; plans for CPUs count with the same number.
SLOTS_PER_STEP = {"cpu": KEYS_PER_STEP}
USUAL_SLOTS_PER_STEP = 128
LOWEST = -1e30  # a finite score with exponential 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTokens:
    """The tokens of a forward pass, and where their sequences are in the cache.

    Args:
        past_B: number of tokens of each sequence that are in the cache already.
        new_B: number of new tokens of each sequence; the rest of T is padding. 0 for an empty row.
        tables_BM: block table of each sequence.
        n_tokens: T.
        block_tokens: tokens per block, on all chips that share a sequence.
        kv_layout: how chips share the cache.
    """

    past_B: Array
    new_B: Array
    tables_BM: Array
    n_tokens: int
    block_tokens: int
    kv_layout: KvLayout

    @property
    def positions_BT(self) -> Array:
        """Positions of the new tokens in their sequences."""
        return self.past_B[:, None] + jnp.arange(self.n_tokens)

    @property
    def is_token_BT(self) -> Array:
        """Whether a token is new, and not padding."""
        return jnp.arange(self.n_tokens) < self.new_B[:, None]

    @property
    def local_slots(self) -> int:
        """Slots per block in the cache of one chip."""
        return self.block_tokens // self.kv_layout.n_parts

    def slots(self, first_block: Array, n_blocks: int) -> tuple[Array, Array]:
        """(block, slot in it) [B,T] of each new token; block `n_blocks` if it is not written here.

        Args:
            first_block: index of the layer's first block in its stack.
            n_blocks: number of blocks of the stack.
        """
        positions_BT = self.positions_BT
        block_BT = jnp.take_along_axis(
            self.tables_BM, positions_BT // self.block_tokens, axis=1, mode="clip"
        )
        offset_BT = positions_BT % self.block_tokens
        local_BT = offset_BT - self.kv_layout.part() * self.local_slots
        is_written = self.is_token_BT & (local_BT >= 0) & (local_BT < self.local_slots)
        return jnp.where(is_written, first_block + block_BT, n_blocks), local_BT

    def written_pages(self, first_block: Array) -> tuple[Array, Array, Array, Array]:
        """Blocks that get new tokens here, J for each sequence.

        Args:
            first_block: index of the layer's first block in its stack.

        Returns:
            (index of each block [B*J], its first and its last + 1 slot to write [B*J], index of the
            new token of each slot [B,J*O])
        """
        n = 1 if self.n_tokens == 1 else ceil_div(self.n_tokens, self.block_tokens) + 1
        block_BJ = self.past_B[:, None] // self.block_tokens + jnp.arange(n)
        start_BJ = block_BJ * self.block_tokens + self.kv_layout.part() * self.local_slots
        past_B1 = self.past_B[:, None]
        first_BJ = jnp.clip(past_B1 - start_BJ, 0, self.local_slots)
        end_BJ = jnp.clip(past_B1 + self.new_B[:, None] - start_BJ, 0, self.local_slots)
        page_BJ = first_block + jnp.take_along_axis(self.tables_BM, block_BJ, axis=1, mode="clip")
        token_BJO = start_BJ[..., None] + jnp.arange(self.local_slots) - past_B1[..., None]
        token_BS = jnp.clip(token_BJO, 0, self.n_tokens - 1).reshape(token_BJO.shape[0], -1)
        return page_BJ.reshape(-1), first_BJ.reshape(-1), end_BJ.reshape(-1), token_BS


def write(cache: Cache, new: Cache, tokens: NewTokens, first_block: Array, platform: str) -> Cache:
    """Write keys and values [B,T,K,H] of new tokens into the cache of a stack.

    Args:
        platform: `RoleMesh.platform` of the chips.
    """
    if platform == "tpu" and _tpu_supports(cache):
        return _write_pages(cache, new, tokens, first_block)

    def write_array(target: Array, x: Array) -> Array:
        block_BT, slot_BT = tokens.slots(first_block, target.shape[0])
        if x.dtype != target.dtype:  # see `kv_cache.stored_dtype`
            x = lax.bitcast_convert_type(x, target.dtype)
        return target.at[block_BT, :, slot_BT].set(x, mode="drop", unique_indices=True)

    return jax.tree.map(write_array, cache, new)


def _tpu_supports(cache: Cache) -> bool:
    """Whether `kernels.paged` takes the keys and values of a cache."""
    from shardwise.runtime.kernels import paged

    return all(paged.supports(numbers(x)) for x in cache.values())


def _has_kernel(q_BTNH: Array, cache: Cache, a: Attention, platform: str) -> bool:
    """Whether the platform has a kernel for these queries over this cache."""
    if platform == "gpu":
        from shardwise.runtime.kernels import paged_gpu

        width = None if "v" in cache else _value_width(a)
        return paged_gpu.supports(q_BTNH, numbers(cache["k"]), width)
    return platform == "tpu" and _tpu_supports(cache)


def _value_width(a: Attention) -> int:
    """Width of the values in a cache; with latent attention they are the first numbers of keys."""
    return a.mla.kv_lora_rank if a.mla else a.d_head


def _latents(keys: CacheArray, width: int) -> CacheArray:
    """The values that are part of keys."""
    if isinstance(keys, Scaled):
        return Scaled(keys.values[..., :width], keys.scale)
    return keys[..., :width]


def numbers(x: CacheArray) -> Array:
    """The numbers of keys or values, without their scales."""
    return x.values if isinstance(x, Scaled) else x


def _write_pages(cache: Cache, new: Cache, tokens: NewTokens, first_block: Array) -> Cache:
    """`write` by the kernel for TPUs."""
    from shardwise.runtime.kernels import paged_write

    page_I, first_I, end_I, token_BS = tokens.written_pages(first_block)
    n_slots = tokens.local_slots if tokens.n_tokens > 1 else 1

    def pieces(x: Array) -> Array:
        if tokens.n_tokens > 1:
            x = jnp.take_along_axis(x, token_BS.reshape(*token_BS.shape, *(1,) * (x.ndim - 2)), 1)
        return x.reshape(-1, n_slots, *x.shape[2:]).swapaxes(1, 2)

    arrays, structure = jax.tree.flatten(cache)
    written = paged_write.write(
        arrays, list(map(pieces, jax.tree.leaves(new))), page_I, first_I, end_I
    )
    result: Cache = jax.tree.unflatten(structure, written)
    return result


def attend(
    q_BTNH: Array,
    cache: Cache,
    tokens: NewTokens,
    first_block: Array,
    a: Attention,
    platform: str,
    *,
    sinks_N: Array | None = None,
    slopes_N: Array | None = None,
) -> Array:
    """Compute o_BTNH of new tokens over their sequences, whose keys and values are in the cache.

    Args:
        q_BTNH: queries of the new tokens, of all heads that the chip's part of the cache serves.
        cache: keys "k" and values "v" of a stack, with those of the new tokens; without "v" values
            are part of the keys.
        first_block: index of the layer's first block in its stack.
        a: mask, window, scale and softcap.
        platform: `RoleMesh.platform` of the chips.
        sinks_N: attention sinks, see `kernels.attention.attend`.
        slopes_N: ALiBi slopes.
    """
    if slopes_N is None and _has_kernel(q_BTNH, cache, a, platform):
        return _attend_pages(q_BTNH, cache, tokens, first_block, a, platform, sinks_N)
    n_slots = SLOTS_PER_STEP.get(platform, USUAL_SLOTS_PER_STEP)
    return _attend_blocks(q_BTNH, cache, tokens, first_block, a, n_slots, sinks_N, slopes_N)


def _attend_pages(
    q_BTNH: Array,
    cache: Cache,
    tokens: NewTokens,
    first_block: Array,
    a: Attention,
    platform: str,
    sinks_N: Array | None,
) -> Array:
    """`attend` by the kernel of the platform."""
    B, T, N, _ = q_BTNH.shape
    pages = (tokens.past_B, tokens.new_B, first_block + tokens.tables_BM, tokens.kv_layout.part())
    arrays: tuple[Any, ...] = (q_BTNH, cache["k"], cache.get("v"), *pages, a)
    if platform == "gpu":
        from shardwise.runtime.kernels.paged_gpu import attend
    else:
        from shardwise.runtime.kernels.paged import attend
    o_BTNV, lse_BTN = attend(*arrays, block_tokens=tokens.block_tokens, value_width=_value_width(a))
    if not tokens.kv_layout.token_axes and sinks_N is None:
        return o_BTNV
    K = numbers(cache["k"]).shape[1]
    o_BKGTV = o_BTNV.reshape(B, T, K, N // K, -1).transpose(0, 2, 3, 1, 4)
    lse_BKGT = lse_BTN.reshape(B, T, K, N // K).transpose(0, 2, 3, 1)
    return _joined(o_BKGTV, lse_BKGT, tokens.kv_layout, sinks_N)


def _attend_blocks(
    q_BTNH: Array,
    cache: Cache,
    tokens: NewTokens,
    first_block: Array,
    a: Attention,
    n_slots: int,
    sinks_N: Array | None,
    slopes_N: Array | None,
) -> Array:
    """`attend` in plain JAX.

    A loop reads `n_slots` slots of each sequence at a time, up to the end of the longest sequence,
    and merges their softmax with what it has (FlashAttention, arXiv 2205.14135, section 3.1).
    """
    B, T, N, _ = q_BTNH.shape
    keys = cache["k"]
    K = numbers(keys).shape[1]
    q_BTKGH = q_BTNH.reshape(B, T, K, N // K, -1)
    n_blocks = min(tokens.tables_BM.shape[1], max(1, n_slots // tokens.block_tokens))
    tables_BM = _padded(tokens.tables_BM, n_blocks)
    d_value = _value_width(a)
    layout = tokens.kv_layout
    positions_BT = tokens.positions_BT

    def step(i: Array, partial: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        highest_BKGT, total_BKGT, o_BKGTH = partial
        block_n = i * n_blocks + jnp.arange(n_blocks)
        offset_O = layout.part() * tokens.local_slots + jnp.arange(tokens.local_slots)
        position_S = (block_n[:, None] * tokens.block_tokens + offset_O).reshape(-1)
        block_Bn = first_block + lax.dynamic_slice_in_dim(tables_BM, i * n_blocks, n_blocks, 1)
        k_BKSH = _read(keys, block_Bn)
        v_BKSH = _read(cache["v"], block_Bn) if "v" in cache else _latents(k_BKSH, d_value)
        s_BKGTS = a.score_scale * _scores(q_BTKGH, k_BKSH)
        if slopes_N is not None:
            bias_BT1S = position_S - positions_BT[..., None]
            s_BKGTS += a.score_scale * (
                slopes_N.reshape(K, -1, 1, 1) * bias_BT1S[:, None, None].astype(jnp.float32)
            )
        s_BKGTS = softcap(s_BKGTS, a.softcap)
        mask_BTS = attention_mask(a, positions_BT[..., None], position_S)
        s_BKGTS = jnp.where(mask_BTS[:, None, None], s_BKGTS, LOWEST)
        new_highest = jnp.maximum(highest_BKGT, s_BKGTS.max(axis=-1))
        decay_BKGT = jnp.exp(highest_BKGT - new_highest)
        p_BKGTS = jnp.exp(s_BKGTS - new_highest[..., None])
        total_BKGT = total_BKGT * decay_BKGT + p_BKGTS.sum(axis=-1)
        o_BKGTH = o_BKGTH * decay_BKGT[..., None] + _weighted(p_BKGTS, v_BKSH, q_BTNH.dtype)
        return new_highest, total_BKGT, o_BKGTH

    shape = (B, K, N // K, T)
    start = (
        jnp.full(shape, LOWEST, jnp.float32),
        jnp.zeros(shape, jnp.float32),
        jnp.zeros((*shape, d_value), jnp.float32),
    )
    n_slots = n_blocks * tokens.block_tokens
    n_steps = (jnp.max(tokens.past_B + tokens.new_B) + n_slots - 1) // n_slots
    highest_BKGT, total_BKGT, o_BKGTH = lax.fori_loop(0, n_steps, step, start)
    total_BKGT = jnp.maximum(total_BKGT, jnp.finfo(jnp.float32).tiny)
    o_BKGTH = (o_BKGTH / total_BKGT[..., None]).astype(q_BTNH.dtype)
    return _joined(o_BKGTH, highest_BKGT + jnp.log(total_BKGT), layout, sinks_N)


def _joined(o_BKGTH: Array, lse_BKGT: Array, layout: KvLayout, sinks_N: Array | None) -> Array:
    """Join the outputs of chips that share the tokens of sequences.

    Returns o_BTNH of this chip's heads; with `context`, of its tokens (`token_shards`).

    Args:
        o_BKGTH: outputs over the chip's part of the keys.
        lse_BKGT: log-sum-exps of their scores.
        layout: how chips share the cache.
        sinks_N: attention sinks.
    """
    B, K, _, T, H = o_BKGTH.shape
    whole_BKGT = lse_BKGT
    if layout.token_axes:
        whole_BKGT = jax.nn.logsumexp(lax.all_gather(lse_BKGT, layout.token_axes), axis=0)
    if sinks_N is not None:
        sinks = sinks_N.astype(jnp.float32).reshape(K, -1, 1)
        whole_BKGT = jnp.logaddexp(whole_BKGT, sinks)
    share_BKGT = jnp.exp(lse_BKGT - whole_BKGT)
    o_BKGTH = (o_BKGTH * share_BKGT[..., None]).astype(o_BKGTH.dtype)
    if layout.query_axes:  # K is 1, since chips with several KV heads do not share its queries
        o_BKGTH = lax.psum_scatter(o_BKGTH, layout.query_axes, scatter_dimension=2, tiled=True)
    return scattered(layout, o_BKGTH.transpose(0, 3, 1, 2, 4).reshape(B, T, -1, H))


def _padded(tables_BM: Array, multiple: int) -> Array:
    """Block tables with their length padded to a multiple; nothing reads the added blocks."""
    return jnp.pad(tables_BM, ((0, 0), (0, -tables_BM.shape[1] % multiple)))


def _read(cache: CacheArray, block_Bn: Array) -> CacheArray:
    """Keys or values [B,K,S,H] in some blocks of each sequence.

    Barriers keep the arithmetic of indices and the reshape out of the loop that copies the rows;
    XLA's CPU compiler would repeat it for each number.
    """

    def read(x: Array) -> Array:
        K = x.shape[1]
        # One index for each (block, head), so that heads need not be moved before slots afterwards.
        row_BKn = lax.optimization_barrier(block_Bn[:, None] * K + jnp.arange(K)[:, None])
        rows = x.reshape(x.shape[0] * K, -1).at[row_BKn].get(mode="promise_in_bounds")
        rows = lax.optimization_barrier(rows)
        if rows.dtype == jnp.uint16:  # see `kv_cache.stored_dtype`
            rows = lax.bitcast_convert_type(rows, jnp.bfloat16)
        return rows.reshape(*rows.shape[:2], -1, *x.shape[3:])

    return jax.tree.map(read, cache)


def _scores(q_BTKGH: Array, keys: CacheArray) -> Array:
    """Scores s_BKGTS in fp32; the scales of quantized keys are applied after the product."""
    k_BKSH = numbers(keys)
    s_BKGTS = jnp.einsum(
        "btkgh,bksh->bkgts",
        *_operands(q_BTKGH, k_BKSH, q_BTKGH.dtype),
        preferred_element_type=jnp.float32,
    )
    if isinstance(keys, Scaled):
        s_BKGTS = s_BKGTS * _by_head(keys.scale)
    return s_BKGTS


def _weighted(p_BKGTS: Array, values: CacheArray, dtype: Any) -> Array:
    """Sums o_BKGTH of values weighted by p_BKGTS, in fp32."""
    v_BKSH = numbers(values)
    if isinstance(values, Scaled):
        p_BKGTS = p_BKGTS * _by_head(values.scale)
    return jnp.einsum(
        "bkgts,bksh->bkgth",
        *_operands(p_BKGTS, v_BKSH, dtype),
        preferred_element_type=jnp.float32,
    )


def _operands(x: Array, cached: Array, compute: Any) -> tuple[Array, Array]:
    """Operands of a product with cached numbers: in bf16 if these are, else in `compute`.

    The barrier keeps XLA's CPU compiler from multiplying in fp32 after all.
    """
    if cached.dtype == jnp.bfloat16 and compute != jnp.bfloat16:
        return lax.optimization_barrier(x.astype(jnp.bfloat16)), cached
    return x.astype(compute), cached.astype(compute)


def _by_head(scale_BKS: Array) -> Array:
    """Scales [B,K,1,1,S] to multiply scores by."""
    return scale_BKS[:, :, None, None].astype(jnp.float32)
