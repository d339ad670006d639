"""A bf16 cache is read and written by rows on a CPU, where XLA would convert all of it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.runtime.serving import paged_cache
from shardwise.runtime.serving.kv_cache import stored_dtype
from shardwise.runtime.serving.kv_layout import KvLayout
from shardwise.runtime.serving.paged_cache import Cache, NewTokens

N_BLOCKS, N_HEADS, BLOCK, WIDTH = 8, 2, 4, 8
SHAPE = (N_BLOCKS, N_HEADS, BLOCK, WIDTH)
TABLE = np.array([[2, 5]], np.int32)


def written_and_read(cache: Cache, x_BTKH: jax.Array) -> tuple[Cache, jax.Array]:
    tokens = NewTokens(
        past_B=jnp.zeros(1, jnp.int32),
        new_B=jnp.full(1, x_BTKH.shape[1], jnp.int32),
        tables_BM=jnp.asarray(TABLE),
        n_tokens=x_BTKH.shape[1],
        block_tokens=BLOCK,
        kv_layout=KvLayout(heads=(), copy_axes=(), split="copied", n_copies=1),
    )
    cache = paged_cache.write(cache, {"k": x_BTKH}, tokens, jnp.zeros((), jnp.int32), "cpu")
    return cache, paged_cache._read(cache, tokens.tables_BM)["k"]


def test_bf16_cache_keeps_its_numbers() -> None:
    x_BTKH = jax.random.normal(jax.random.key(0), (1, 6, N_HEADS, WIDTH), jnp.bfloat16)
    cache = {"k": jnp.zeros(SHAPE, stored_dtype(jnp.bfloat16, "cpu"))}
    run = jax.jit(written_and_read, donate_argnums=0).lower(cache, x_BTKH).compile()
    assert "f32[8,2,4,8]" not in run.as_text()
    k_BKSH = run(cache, x_BTKH)[1]
    assert k_BKSH.dtype == jnp.bfloat16
    np.testing.assert_array_equal(k_BKSH[0, :, :6], x_BTKH[0].swapaxes(0, 1))


def test_only_cpus_store_bits() -> None:
    assert stored_dtype(jnp.bfloat16, "tpu") == jnp.bfloat16
    assert stored_dtype(jnp.float32, "cpu") == jnp.float32
