"""Attention by the TPU's kernel, interpreted, and by blocks: against scores written out whole."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwise.models import Attention
from shardwise.runtime.kernels import attention as kernels
from shardwise.runtime.kernels import blockwise, splash
from shardwise.runtime.layout.context_order import ContextOrder
from tests.unit.runtime.scripts import rows

B, N, K, H = 1, 2, 1, 32
NEAR = {"abs": 1e-4}  # of numbers about 1, in fp32


def normal(*shape: int) -> Any:
    seed = int(np.prod(shape)) + len(shape)
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def inputs(n_tokens: int, n_keys: int) -> tuple[Any, ...]:
    keys, values = normal(2, B, K, n_keys, H)
    return normal(B, N, n_tokens, H) * H**-0.5, keys, values


def plain(q: Any, k: Any, v: Any, seen: Any) -> tuple[Any, Any]:
    """(o, l) of scores that are written down."""
    k, v = (jnp.repeat(x, N // K, axis=1) for x in (k, v))
    s = jnp.where(seen, jnp.einsum("bnth,bnsh->bnts", q, k), -jnp.inf)
    l = jax.nn.logsumexp(s, axis=-1)
    return jnp.einsum("bnts,bnsh->bnth", jnp.exp(s - l[..., None]), v), l


def near(found: Any, wanted: Any) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert np.asarray(one) == pytest.approx(np.asarray(other), **NEAR)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("by", ["blocks", "splash"])
def test_some_of_the_keys(by: str, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums, and gradients under the sums of all keys: another chip has keys of its own."""
    monkeypatch.setattr(blockwise, "BLOCK", 64)
    kernel: Any = blockwise if by == "blocks" else splash
    given = {} if by == "blocks" else {"interpret": True}
    here, there = 128, 128 if causal else 256
    q, k, v = inputs(here, there)
    seen = np.tri(here, there, dtype=bool) if causal else np.ones((here, there), bool)
    far_k, far_v = normal(2, B, K, 64, H) * 0.5

    def every(q: Any, k: Any, v: Any) -> Any:
        both = [jnp.concatenate(x, axis=2) for x in ((k, far_k), (v, far_v))]
        return plain(q, *both, np.concatenate([seen, np.ones((here, 64), bool)], axis=1))

    sums = kernel.forward(q, k, v, causal=causal, **given)
    near(sums, plain(q, k, v, seen))
    o, l = every(q, k, v)
    near(blockwise.merge(sums, plain(q, far_k, far_v, True)), (o, l))
    do = normal(B, N, here, H)
    _, d_k, d_v = jax.vjp(lambda *x: every(*x)[0], q, k, v)[1](do)
    q_here = jax.vjp(lambda q: every(q, k, v)[0], q)[1](do)[0]
    away = blockwise.backward(q, far_k, far_v, o, l, do, causal=False)[0]
    found = kernel.backward(q, k, v, o, l, do, causal=causal, **given)
    near(found, (q_here - away, d_k, d_v))


CASES = {
    "causal, paired": ({}, ContextOrder(n=2, paired=True)),
    "window, paired": ({"window": 200}, ContextOrder(n=2, paired=True)),
    "chunks, paired": ({"window": 256, "chunked": True}, ContextOrder(n=2, paired=True)),
    "not causal": ({"causal": False}, ContextOrder(n=2)),
}


@pytest.mark.parametrize("name", rows(CASES, {*CASES} - {"chunks, paired"}))
def test_a_chips_tokens_over_all_keys(name: str) -> None:
    words, order = CASES[name]
    attention = Attention(n_heads=N, n_kv_heads=K, d_head=H, **words)
    each, index = 256, order.n - 1
    q, k, v = inputs(each, each * order.n)
    do, width = normal(B, N, each, H), attention.window or each * order.n
    rows, columns = order.positions(index, each)[:, None], np.arange(each * order.n)
    seen = (rows >= columns) & (rows - columns < width) | (not attention.causal)
    if attention.chunked:
        seen = (rows >= columns) & (rows // width == columns // width)

    def by_kernel(q: Any, k: Any, v: Any) -> Any:
        given = {"name": "attended", "interpret": True}
        return splash.attend(q, k, v, attention, order, jnp.int32(index), **given)

    def by_xla(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        o = kernels.attend(q, k, v, attention, "cpu", 1.0, order=order, index=index)
        return o.swapaxes(1, 2)

    wanted = jax.vjp(lambda *x: plain(*x, seen)[0], q, k, v)
    for run in (by_kernel, by_xla):
        o, back = jax.vjp(jax.jit(run), q, k, v)
        near((o, back(do)), (wanted[0], wanted[1](do)))
