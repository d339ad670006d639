"""The kernels of paged attention in Pallas' interpreter, held against plain JAX."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwise.models import Attention, Mla
from shardwise.runtime.kernels import paged, paged_gpu, paged_write
from shardwise.runtime.kernels.compute_capability import compiling_for
from shardwise.runtime.kernels.kernel_cost import KernelCost, of_name
from shardwise.runtime.serving import paged_cache
from shardwise.runtime.serving.kv_cache import to_cache
from shardwise.runtime.serving.kv_layout import KvLayout
from shardwise.runtime.serving.paged_cache import Cache, NewTokens

PAGES, SLOTS, WIDTH, FIRST = 12, 128, 64, 2
WHOLE = KvLayout(heads=(), copy_axes=(), split="copied", n_copies=1)
GROUPED = Attention(n_heads=4, n_kv_heads=2, d_head=WIDTH)
KINDS = {
    "grouped": GROUPED,
    "one KV head": replace(GROUPED, n_kv_heads=1),
    "a KV head per query": replace(GROUPED, n_kv_heads=4),
    "window": replace(GROUPED, window=150),
    "chunks": replace(GROUPED, window=160, chunked=True),
    "softcap": replace(GROUPED, softcap=2.0),
}
# Of three sequences: a decode step with an empty row, and chunks of unequal lengths.
PASSES = {
    "decode": (1, (5, 0, 260), (1, 0, 1)),
    "chunk": (140, (0, 127, 240), (140, 2, 33)),
}


def tokens_of(n_tokens: int, past: tuple[int, ...], new: tuple[int, ...]) -> NewTokens:
    """Each sequence has three of the pages after the first two, which are of another layer."""
    tables = np.random.default_rng(0).permutation(PAGES - FIRST)[:9].reshape(3, 3)
    return NewTokens(
        past_B=jnp.array(past, jnp.int32),
        new_B=jnp.array(new, jnp.int32),
        tables_BM=jnp.array(tables, jnp.int32),
        n_tokens=n_tokens,
        block_tokens=SLOTS,
        kv_layout=WHOLE,
    )


def random(key: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(key), shape, jnp.float32)


def cache(a: Attention, dtype: str) -> Cache:
    shape = (PAGES, a.n_kv_heads, SLOTS, WIDTH)
    return {name: to_cache(random(i, *shape), dtype) for i, name in enumerate("kv")}


def attended(dtype: str) -> Iterator[Any]:
    """Parameters of tests of `attend`, in int8 or a dtype: a few for every run of the tests."""
    quick = {("grouped", "decode", "int8"), ("window", "chunk", "int8")}
    for case in product(KINDS, PASSES, (dtype, "int8")):
        yield pytest.param(*case, marks=() if case in quick else pytest.mark.oracle)


def attend(q_BTNH: jax.Array, pages: Cache, tokens: NewTokens, *how: Any, **more: Any) -> jax.Array:
    """`paged_cache.attend` of the second layer, as one program."""

    def run(q_BTNH: jax.Array, pages: Cache) -> jax.Array:
        return paged_cache.attend(q_BTNH, pages, tokens, jnp.array(FIRST), *how, **more)

    return jax.jit(run)(q_BTNH, pages)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((paged_write, "write"), (paged, "attend"), (paged_gpu, "attend")):
        compiled = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, _f=compiled, **k: _f(*a, interpret=True, **k))


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("which", "dtype"),
    [
        pytest.param("decode", "int8"),
        pytest.param("decode", "float32", marks=pytest.mark.oracle),
        pytest.param("chunk", "int8", marks=pytest.mark.oracle),
        pytest.param("chunk", "float32"),
    ],
)
def test_writes_exactly_the_new_tokens(which: str, dtype: str) -> None:
    tokens = tokens_of(*PASSES[which])
    new = {
        name: to_cache(random(9, 3, tokens.n_tokens, GROUPED.n_kv_heads, WIDTH), dtype)
        for name in "kv"
    }
    before = cache(GROUPED, dtype)
    plain, kernel = (
        jax.jit(lambda *x, on=platform: paged_cache.write(*x, tokens, jnp.array(FIRST), on))(
            before, new
        )
        for platform in ("cpu", "tpu")
    )
    jax.tree.map(np.testing.assert_array_equal, plain, kernel)
    assert not np.array_equal(jax.tree.leaves(plain)[0], jax.tree.leaves(before)[0])


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("kind", "which", "dtype"), list(attended("float32")))
def test_attends_like_plain_jax(kind: str, which: str, dtype: str) -> None:
    a = KINDS[kind]
    tokens = tokens_of(*PASSES[which])
    q_BTNH = random(3, 3, tokens.n_tokens, a.n_heads, WIDTH)
    plain, kernel = (
        attend(q_BTNH, cache(a, dtype), tokens, a, platform) for platform in ("cpu", "tpu")
    )
    for row, n in enumerate(tokens.new_B):
        np.testing.assert_allclose(kernel[row, :n], plain[row, :n], atol=2e-5)


@pytest.mark.usefixtures("interpreted")
def test_adds_sinks_to_the_sum_of_the_kernel() -> None:
    tokens = tokens_of(*PASSES["decode"])
    q_BTNH = random(3, 3, 1, GROUPED.n_heads, WIDTH)
    plain, kernel = (
        attend(
            q_BTNH,
            cache(GROUPED, "float32"),
            tokens,
            GROUPED,
            platform,
            sinks_N=random(4, GROUPED.n_heads),
        )
        for platform in ("cpu", "tpu")
    )
    for row in (0, 2):
        np.testing.assert_allclose(kernel[row], plain[row], atol=2e-5)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("kind", "which", "dtype"), list(attended("bfloat16")))
def test_attends_on_gpus_like_plain_jax(kind: str, which: str, dtype: str) -> None:
    a = KINDS[kind]
    tokens = tokens_of(*PASSES[which])
    q_BTNH = random(3, 3, tokens.n_tokens, a.n_heads, WIDTH).astype(jnp.bfloat16)
    pages = cache(a, dtype)
    exact = jax.tree.map(lambda x: x if x.dtype == jnp.int8 else x.astype(jnp.float32), pages)
    plain = attend(q_BTNH.astype(jnp.float32), exact, tokens, a, "other")
    kernel = attend(q_BTNH, pages, tokens, a, "gpu")
    assert kernel.dtype == jnp.bfloat16
    for row, n in enumerate(tokens.new_B):
        np.testing.assert_allclose(kernel[row, :n].astype(jnp.float32), plain[row, :n], atol=0.02)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("which", "dtype"),
    [
        ("decode", "int8"),
        pytest.param("decode", "bfloat16", marks=pytest.mark.oracle),
        pytest.param("chunk", "int8", marks=pytest.mark.oracle),
        pytest.param("chunk", "bfloat16", marks=pytest.mark.oracle),
    ],
)
def test_latents_on_gpus_are_keys_and_values(which: str, dtype: str) -> None:
    mla = Mla(kv_lora_rank=WIDTH, d_nope=32, d_rope=16, d_v=32)
    a = Attention(n_heads=4, n_kv_heads=4, d_head=48, mla=mla)
    tokens = tokens_of(*PASSES[which])
    q_BTNH = random(3, 3, tokens.n_tokens, a.n_heads, WIDTH + 16).astype(jnp.bfloat16)
    pages = {"k": to_cache(random(0, PAGES, 1, SLOTS, WIDTH + 16), dtype)}
    exact = jax.tree.map(lambda x: x if x.dtype == jnp.int8 else x.astype(jnp.float32), pages)
    plain = attend(q_BTNH.astype(jnp.float32), exact, tokens, a, "other")
    kernel = attend(q_BTNH, pages, tokens, a, "gpu")
    keys = jax.tree.leaves(pages)[0]
    assert paged_gpu.supports(q_BTNH, keys, WIDTH)
    assert paged_gpu.supports(q_BTNH, keys[:, :, :8], WIDTH)  # of two chips that share a block
    assert not paged_gpu.supports(q_BTNH, keys[:, :, :, :72], WIDTH)  # 8 more are too few
    assert kernel.shape == (3, tokens.n_tokens, 4, WIDTH)
    for row, n in enumerate(tokens.new_B):
        np.testing.assert_allclose(kernel[row, :n].astype(jnp.float32), plain[row, :n], atol=0.02)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("which", [pytest.param("chunk", marks=pytest.mark.oracle), "decode"])
def test_8_bit_floats_on_gpus_that_have_them(which: str) -> None:
    tokens = tokens_of(*PASSES[which])
    q_BTNH = random(3, 3, tokens.n_tokens, GROUPED.n_heads, WIDTH).astype(jnp.bfloat16)
    pages = cache(GROUPED, "float8_e4m3fn")
    plain = attend(q_BTNH.astype(jnp.float32), pages, tokens, GROUPED, "other")
    numbers = pages["k"].values
    assert not paged_gpu.supports(q_BTNH, numbers)  # there is no local GPU
    with compiling_for("8.0"):
        assert not paged_gpu.supports(q_BTNH, numbers)
    with compiling_for("9.0"):
        kernel = attend(q_BTNH, pages, tokens, GROUPED, "gpu")
        assert paged_gpu.supports(q_BTNH, numbers)
    for row, n in enumerate(tokens.new_B):
        np.testing.assert_allclose(kernel[row, :n].astype(jnp.float32), plain[row, :n], atol=0.02)


def cost_of(a: Attention, n_tokens: int, pages: Cache, n_pages: int) -> KernelCost:
    """The cost in the name of the kernel for GPUs."""
    q_BTNH = random(3, 3, n_tokens, a.n_heads, WIDTH).astype(jnp.bfloat16)
    zeros = jnp.zeros(3, jnp.int32)
    program = jax.make_jaxpr(
        lambda q, keys, values: paged_gpu.attend(
            q, keys, values, zeros, zeros, jnp.zeros((3, n_pages), jnp.int32), jnp.array(0), a,
            block_tokens=jax.tree.leaves(pages)[0].shape[2], value_width=WIDTH,
        )
    )(q_BTNH, pages["k"], pages["v"])  # fmt: skip
    cost = of_name(str(program))
    assert cost is not None
    return cost


def test_the_cost_of_the_kernel_for_gpus_is_in_its_name() -> None:
    """A sequence reads its keys once, whether it decodes or has a chunk of new tokens."""
    pages = cache(GROUPED, "bfloat16")
    context = 2 * SLOTS
    decode = cost_of(GROUPED, 1, pages, 2)
    n_kv, n_heads = GROUPED.n_kv_heads, GROUPED.n_heads
    assert decode.flops == 4 * 3 * n_heads * context * WIDTH
    queries = 2 * 2 * 3 * n_heads * WIDTH  # read and written, 2 bytes each
    assert decode.hbm_bytes == 3 * context * n_kv * 2 * 2 * WIDTH + queries
    chunk = cost_of(GROUPED, 33, pages, 2)
    assert chunk.flops == 4 * 3 * 33 * n_heads * (context - 16) * WIDTH
    window = cost_of(replace(GROUPED, window=64), 1, pages, 2)
    assert window.flops == decode.flops * 64 // context
    assert window.hbm_bytes - queries == (decode.hbm_bytes - queries) * 64 // context


@pytest.mark.usefixtures("interpreted")
def test_few_sequences_are_split_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tokens_of(*PASSES["decode"])
    q_BTNH = random(3, 3, 1, GROUPED.n_heads, WIDTH).astype(jnp.bfloat16)
    outputs = []
    for n_programs in (1, 4 * 3 * GROUPED.n_kv_heads):
        monkeypatch.setattr(paged_gpu, "PROGRAMS", n_programs)
        outputs.append(
            attend(
                q_BTNH,
                cache(GROUPED, "bfloat16"),
                tokens,
                GROUPED,
                "gpu",
                sinks_N=random(4, GROUPED.n_heads),
            ).astype(jnp.float32)
        )
    for row in (0, 2):
        np.testing.assert_allclose(outputs[0][row], outputs[1][row], atol=0.01)
