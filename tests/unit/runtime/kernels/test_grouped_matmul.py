"""Megablox in Pallas' interpreter over the experts of one layer of a stack, held against XLA."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwise.runtime.kernels.grouped_matmul import by_megablox, by_xla, stored_transposed

LAYERS, EXPERTS, ROWS = 3, 4, 256
SIZES = jnp.array([100, 0, 30, 126], jnp.int32)


@pytest.mark.parametrize("layer", [0, LAYERS - 1])
@pytest.mark.parametrize(("inputs", "outputs"), [(128, 192), (192, 128)])
def test_the_experts_of_a_layer_are_found_in_the_stack(
    layer: int, inputs: int, outputs: int
) -> None:
    keys = jax.random.split(jax.random.key(layer))
    x_RI = jax.random.normal(keys[0], (ROWS, inputs))
    w_LEIJ = jax.random.normal(keys[1], (LAYERS, EXPERTS, inputs, outputs))
    stack = w_LEIJ.reshape(-1, inputs, outputs)
    y_RJ = by_megablox(x_RI, stack, SIZES, jnp.int32(layer * EXPERTS), interpret=True)
    np.testing.assert_allclose(y_RJ, by_xla(x_RI, w_LEIJ[layer], SIZES), atol=1e-3)


def test_matrices_are_stored_as_pads_least() -> None:
    assert stored_transposed((2, 8, 2048, 192))
    assert not stored_transposed((2, 8, 192, 2048))
    assert not stored_transposed((2, 8, 2048, 256))
    assert not stored_transposed((2, 8, 100, 192))
