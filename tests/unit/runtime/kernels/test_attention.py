"""Attention by the TPU's kernel, interpreted, and by blocks: against scores written out whole."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.estimate import kernels as kernel_arithmetic
from shardwise.models import Attention
from shardwise.runtime.kernels import attention as kernels
from shardwise.runtime.kernels import blockwise, splash
from shardwise.runtime.layout.context_order import ContextOrder
from tests.unit.runtime.near import assert_near
from tests.unit.runtime.scripts import rows

B, N, K, H = 1, 2, 1, 32
NEAR = {"abs": 1e-4}  # of numbers about 1, in fp32


def normal(*shape: int) -> Any:
    seed = int(np.prod(shape)) + len(shape)
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def inputs(n_tokens: int, n_keys: int) -> tuple[Any, ...]:
    keys, values = normal(2, B, K, n_keys, H)
    return normal(B, N, n_tokens, H) * H**-0.5, keys, values


@jax.jit
def plain(q: Any, k: Any, v: Any, seen: Any) -> tuple[Any, Any]:
    """(o, l) of scores that are written down."""
    k, v = (jnp.repeat(x, N // K, axis=1) for x in (k, v))
    s = jnp.where(seen, jnp.einsum("bnth,bnsh->bnts", q, k), -jnp.inf)
    l = jax.nn.logsumexp(s, axis=-1)
    return jnp.einsum("bnts,bnsh->bnth", jnp.exp(s - l[..., None]), v), l


def near(found: Any, wanted: Any) -> None:
    assert_near(found, wanted, **NEAR)


def differentiated(run: Any, *arrays: Any, do: Any) -> Any:
    """(o, gradients under `do`, what else `run` returns beside o) by one program."""

    def told(*arrays: Any) -> Any:
        o, back, more = jax.vjp(run, *arrays, has_aux=True)
        return o, back(do), more

    return jax.jit(told)(*arrays)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("by", ["blocks", "splash"])
def test_some_of_the_keys(by: str, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums, and gradients under the sums of all keys: another chip has keys of its own."""
    monkeypatch.setattr(blockwise, "BLOCK", 64)
    kernel: Any = blockwise if by == "blocks" else splash
    options = {} if by == "blocks" else {"interpret": True}
    here, there = 128, 128 if causal else 256
    q, k, v = inputs(here, there)
    seen = np.tri(here, there, dtype=bool) if causal else np.ones((here, there), bool)
    far_k, far_v = normal(2, B, K, 64, H) * 0.5

    def every(q: Any, k: Any, v: Any) -> Any:
        both = [jnp.concatenate(x, axis=2) for x in ((k, far_k), (v, far_v))]
        return plain(q, *both, np.concatenate([seen, np.ones((here, 64), bool)], axis=1))

    forward = jax.jit(functools.partial(kernel.forward, causal=causal, **options))
    backward = jax.jit(functools.partial(kernel.backward, causal=causal, **options))
    of_far_keys = jax.jit(functools.partial(blockwise.backward, causal=False))
    sums = forward(q, k, v)
    near(sums, plain(q, k, v, seen))
    do = normal(B, N, here, H)
    o, (d_q, d_k, d_v), l = differentiated(every, q, k, v, do=do)
    near(jax.jit(blockwise.merge)(sums, plain(q, far_k, far_v, True)), (o, l))
    away = of_far_keys(q, far_k, far_v, o, l, do)[0]
    near(backward(q, k, v, o, l, do), (d_q - away, d_k, d_v))


CASES = {
    "causal, paired": ({}, ContextOrder(n=2, paired=True)),
    "window, paired": ({"window": 200}, ContextOrder(n=2, paired=True)),
    "chunks, paired": ({"window": 256, "chunked": True}, ContextOrder(n=2, paired=True)),
    "not causal": ({"causal": False}, ContextOrder(n=2)),
}


@pytest.mark.parametrize("name", rows(CASES, {*CASES} - {"chunks, paired"}))
def test_a_chips_tokens_over_all_keys(name: str) -> None:
    assert_attention(*CASES[name], each=256)


@pytest.mark.parametrize("name", rows(CASES, {"window, paired"}))
def test_more_keys_than_queries_in_a_block_of_the_backward_pass(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splash, "BLOCK", 128)
    monkeypatch.setattr(kernel_arithmetic, "KEY_BLOCKS", ((1024, 256),))
    assert splash._block_sizes(128, 128, 1024).block_kv_dkv == 256
    assert_attention(*CASES[name], each=512)


@given(
    window=st.integers(1, 700),
    chunked=st.booleans(),
    block=st.tuples(st.integers(0, 7), st.integers(0, 3)),
    longer=st.sampled_from([1, 2, 4]),
)
def test_a_mask_at_the_corners_of_squares(
    window: int, chunked: bool, block: tuple[int, int], longer: int
) -> None:
    """A block is empty, or visible everywhere, if its sampled scores are."""
    attention = Attention(n_heads=N, n_kv_heads=K, d_head=H, window=window, chunked=chunked)
    n, side = 512, 64
    mask = splash.Mask(attention, np.arange(n), n)
    start = block[0] * side, block[1] % (n // side // longer) * side * longer
    index = slice(start[0], start[0] + side), slice(start[1], start[1] + side * longer)
    scores = mask.mask_function(np.arange(n)[:, None], np.arange(n))[index]
    assert mask[index].any() == scores.any()
    assert mask[index].all() == scores.all()


def assert_attention(words: dict[str, Any], order: ContextOrder, each: int) -> None:
    attention = Attention(n_heads=N, n_kv_heads=K, d_head=H, **words)
    index = order.n - 1
    q, k, v = inputs(each, each * order.n)
    do, width = normal(B, N, each, H), attention.window or each * order.n
    rows, columns = order.positions(index, each)[:, None], np.arange(each * order.n)
    seen = (rows >= columns) & (rows - columns < width) | (not attention.causal)
    if attention.chunked:
        seen = (rows >= columns) & (rows // width == columns // width)

    def by_kernel(q: Any, k: Any, v: Any) -> Any:
        options = {"name": "attended", "interpret": True}
        return splash.attend(q, k, v, attention, order, jnp.int32(index), **options), ()

    def by_xla(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        o = kernels.attend(q, k, v, attention, "cpu", 1.0, order=order, index=index)
        return o.swapaxes(1, 2), ()

    wanted = differentiated(lambda *x: plain(*x, seen), q, k, v, do=do)[:2]
    for run in (by_kernel, by_xla):
        near(differentiated(run, q, k, v, do=do)[:2], wanted)
