"""Attention with sinks by a kernel without them, against scores written out whole."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwise.models import Attention
from shardwise.runtime.kernels import attention, attention_sinks, blockwise
from shardwise.runtime.layout.context_order import ContextOrder

B, N, K, H, T = 2, 4, 2, 8, 12


def normal(seed: int, *shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def whole(q: Any, k: Any, v: Any, sinks: Any) -> Any:
    """o_BNTH with all scores in memory, and the sink as one of them."""
    k, v = (jnp.repeat(x, N // K, axis=1) for x in (k, v))
    s = jnp.einsum("bnth,bnsh->bnts", q, k)
    s = jnp.where(jnp.arange(T)[:, None] >= jnp.arange(T), s, -jnp.inf)
    sink = jnp.broadcast_to(sinks[:, None, None], (B, N, T, 1))
    p = jax.nn.softmax(jnp.concatenate([s, sink], axis=-1))[..., :-1]
    return jnp.einsum("bnts,bnsh->bnth", p, v)


def test_output_and_gradients() -> None:
    arrays = (normal(1, B, N, T, H), normal(2, B, K, T, H), normal(3, B, K, T, H), normal(4, N))
    kernel = tuple(partial(f, causal=True) for f in (blockwise.forward, blockwise.backward))
    by_kernel = partial(attention_sinks.attend, kernel=kernel, name="o")

    def results(attend: Any) -> list[Any]:
        o, vjp = jax.vjp(attend, *arrays)
        return [o, *vjp(jnp.cos(o))]

    for one, other in zip(results(by_kernel), results(whole), strict=True):
        assert np.asarray(one) == pytest.approx(np.asarray(other), abs=1e-5)


@pytest.mark.usefixtures("with_cudnn")
@pytest.mark.parametrize("window", [None, 8])
def test_both_passes_take_the_window(window: int | None) -> None:
    a = Attention(n_heads=N, n_kv_heads=K, d_head=H, sinks=True, window=window)
    q, k = (jnp.zeros((B, T, n, H), jnp.bfloat16) for n in (N, K))
    sinks_N = jnp.zeros(N, jnp.bfloat16)

    def step(q: Any, k: Any, v: Any, sinks_N: Any) -> Any:
        def attend(q: Any, k: Any, v: Any, sinks_N: Any) -> Any:
            return attention.attend(q, k, v, a, "gpu", H**-0.5, sinks_N=sinks_N)

        return jax.vjp(attend, q, k, v, sinks_N)[1](q)

    program = jax.make_jaxpr(step)(q, k, k, sinks_N)
    text = str(program)
    assert text.count(f"sliding_window_length={window}") == 2
    assert text.count("dot_product_attention_fwd_wrapper[") == 1
    assert text.count("dot_product_attention_bwd_wrapper[") == 1
    shapes = [x.aval.shape for x in program.jaxpr.outvars]
    assert shapes == [q.shape, k.shape, k.shape, sinks_N.shape]
    assert {x.aval.dtype for x in program.jaxpr.outvars} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.usefixtures("with_cudnn")
@pytest.mark.parametrize(
    ("changes", "n", "expected"),
    [
        ({}, 1, True),
        ({"window": 8}, 1, True),
        ({}, 2, False),
        ({"softcap": 30.0}, 1, False),
        ({"causal": False}, 1, False),
    ],
)
def test_what_the_kernel_supports(changes: dict[str, Any], n: int, expected: bool) -> None:
    a = Attention(n_heads=N, n_kv_heads=K, d_head=H, sinks=True, **changes)
    q = jnp.zeros((B, T, N, H), jnp.bfloat16)
    assert attention_sinks.supports(a, q, q, ContextOrder(n=n)) == expected
