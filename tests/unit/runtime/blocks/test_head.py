"""The loss of some tokens after the other is the loss of all at once, with its gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from shardwise.runtime.blocks.head import chunked_loss

B, T, D, V = 2, 12, 8, 32


def loss(given: Any, n_BTD: jax.Array, targets_BT: jax.Array) -> jax.Array:
    logits_BTV = jnp.tanh(n_BTD @ given["w"] + given["b"])
    own_BT = jnp.take_along_axis(logits_BTV, targets_BT[..., None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(logits_BTV, axis=-1) - own_BT).sum()


@pytest.fixture(scope="module")
def given() -> tuple[Any, jax.Array, jax.Array]:
    random = np.random.default_rng(0)
    w, b, n = (random.normal(size=s).astype(np.float32) for s in ((D, V), (V,), (B, T, D)))
    targets = random.integers(0, V, (B, T)).astype(np.int32)
    return {"w": jnp.asarray(w), "b": jnp.asarray(b)}, jnp.asarray(n), jnp.asarray(targets)


@pytest.mark.parametrize("n", [3, 24])
def test_loss_and_gradients_are_those_of_one_chunk(given: Any, n: int) -> None:
    chunked = chunked_loss(loss, n, jnp.float32)
    of = {
        f: jax.jit(jax.value_and_grad(lambda w, x, f=f: 0.5 * f(w, x, given[2]), argnums=(0, 1)))
        for f in (loss, chunked)
    }
    (whole, gradients), (found, others) = (of[f](*given[:2]) for f in (loss, chunked))
    assert found == pytest.approx(float(whole), rel=1e-6)
    assert float(jax.jit(chunked)(*given)) == pytest.approx(2 * float(whole), rel=1e-6)
    for one, other in zip(jax.tree.leaves(gradients), jax.tree.leaves(others), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


def test_logits_of_one_chunk_exist_at_a_time(given: Any) -> None:
    def largest(fn: Any) -> int:
        def sizes(jaxpr: Any) -> Any:
            for eqn in jaxpr.eqns:
                yield from (v.aval.size for v in eqn.outvars)
                for inner in jaxprs_in_params(eqn.params):
                    yield from sizes(inner)

        made = jax.make_jaxpr(jax.grad(fn, argnums=(0, 1)))(*given)
        return max(sizes(made.jaxpr))

    assert largest(loss) == B * T * V
    assert largest(chunked_loss(loss, 3, jnp.float32)) == B * T * V // 3 == D * V


def test_sums_of_gradients_are_as_wide_as_asked(given: Any) -> None:
    """2,048 tokens with the same gradient: a sum in bf16 stops where one more is less than half of
    its last digit."""
    narrow = {"w": jnp.ones((1, 2), jnp.bfloat16), "b": jnp.zeros(2, jnp.bfloat16)}
    n_BTD, targets_BT = jnp.ones((1, 2048, 1), jnp.bfloat16), jnp.zeros((1, 2048), jnp.int32)
    found = {}
    for wide in (jnp.bfloat16, jnp.float32):
        chunked = chunked_loss(loss, 2048, wide)
        found[wide] = float(jax.grad(chunked)(narrow, n_BTD, targets_BT)["w"][0, 1])
    one = float(jax.grad(chunked_loss(loss, 1, jnp.float32))(narrow, n_BTD, targets_BT)["w"][0, 1])
    assert found[jnp.float32] == pytest.approx(one, rel=2**-8)
    assert found[jnp.bfloat16] < one / 2
