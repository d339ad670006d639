"""Attention of a chip's two chunks over gathered keys, against scores written out whole."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwise.models import Attention
from shardwise.runtime.kernels import attention, blockwise, cudnn, paired_chunks
from shardwise.runtime.layout.context_order import ContextOrder
from tests.unit.runtime.near import assert_near

B, N, K, H = 2, 4, 2, 8
CHUNK = 6


def normal(seed: int, *shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def whole(q: Any, k: Any, v: Any, positions: Any) -> Any:
    """o_BNTH of queries at `positions`, with all scores in memory."""
    k, v = (jnp.repeat(x, N // K, axis=1) for x in (k, v))
    s = jnp.einsum("bnth,bnsh->bnts", q, k)
    s = jnp.where(positions[:, None] >= jnp.arange(k.shape[2]), s, -jnp.inf)
    return jnp.einsum("bnts,bnsh->bnth", jax.nn.softmax(s), v)


@pytest.mark.parametrize(("n", "index"), [(2, 0), (2, 1), (4, 0), (4, 2), (4, 3)])
def test_output_and_gradients_of_every_chip(n: int, index: int) -> None:
    order = ContextOrder(n=n, paired=True)
    positions = order.positions(index, 2 * CHUNK, jnp)
    arrays = (
        normal(1, B, N, 2 * CHUNK, H) * H**-0.5,
        normal(2, B, K, 2 * n * CHUNK, H),
        normal(3, B, K, 2 * n * CHUNK, H),
    )
    kernel = blockwise.forward, blockwise.backward

    def told(attend: Any, *arrays: Any) -> Any:
        o, vjp = jax.vjp(attend, *arrays)
        return o, vjp(jnp.cos(o))

    @jax.jit
    def found(index: Any, *arrays: Any) -> Any:
        return told(lambda *x: paired_chunks.attend(*x, index, n, kernel, name="o"), *arrays)

    @jax.jit
    def wanted(*arrays: Any) -> Any:
        return told(lambda *x: whole(*x, positions), *arrays)

    assert_near(found(index, *arrays), wanted(*arrays), abs=1e-5)


@pytest.mark.usefixtures("with_cudnn")
def test_a_gpu_takes_three_calls_of_cudnn_in_each_pass() -> None:
    """Three calls forward and three backward; shapes and dtypes are those of the arguments."""
    order = ContextOrder(n=4, paired=True)
    a = Attention(n_heads=N, n_kv_heads=K, d_head=H)
    q = jnp.zeros((B, 2 * CHUNK, N, H), jnp.bfloat16)
    k = jnp.zeros((B, 8 * CHUNK, K, H), jnp.bfloat16)

    def step(q: Any, k: Any, v: Any) -> Any:
        def attend(*arrays: Any) -> Any:
            return attention.attend(*arrays, a, "gpu", H**-0.5, order=order, index=1)

        return jax.vjp(attend, q, k, v)[1](q)

    program = jax.make_jaxpr(step)(q, k, k)
    text = str(program)
    assert text.count("dot_product_attention_fwd_wrapper[") == 3
    assert text.count("dot_product_attention_bwd_wrapper[") == 3
    assert [x.aval.shape for x in program.jaxpr.outvars] == [q.shape, k.shape, k.shape]
    assert {x.aval.dtype for x in program.jaxpr.outvars} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.usefixtures("with_cudnn")
@pytest.mark.parametrize(
    ("changes", "dtype", "expected"),
    [
        ({}, jnp.bfloat16, True),
        ({}, jnp.float32, False),
        ({"window": 8}, jnp.bfloat16, False),
        ({"softcap": 30.0}, jnp.bfloat16, False),
        ({"sinks": True}, jnp.bfloat16, False),
        ({"causal": False}, jnp.bfloat16, False),
    ],
)
def test_what_the_kernel_supports(changes: dict[str, Any], dtype: Any, expected: bool) -> None:
    a = Attention(n_heads=N, n_kv_heads=K, d_head=H, **changes)
    q = jnp.zeros((B, 2 * CHUNK, N, H), dtype)
    order = ContextOrder(n=2, paired=True)
    assert paired_chunks.supports(a, q, q, order) == expected
    assert not paired_chunks.supports(a, q, q, ContextOrder(n=2))


def test_this_version_of_jax_has_the_gradients() -> None:
    assert cudnn._gradient_function() is not None
