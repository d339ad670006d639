"""A pass whose arrays are by layer, of models with experts, has the logits of one over stacks."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from shardwise.runtime.serving.forward import PagedForward
from shardwise.runtime.weights.descriptions import describe
from shardwise.strategy.mesh import Mesh
from tests.unit.runtime.drawn import drawn_weights
from tests.unit.runtime.paged_cases import FP32, MODELS, engine

TOKENS = np.arange(8, dtype=np.int32).reshape(2, 4)


@pytest.mark.oracle
@pytest.mark.parametrize("model", ["deepseek", "mixtral"])
def test_experts_by_layer(model: str) -> None:
    state = engine((MODELS[model], Mesh(), "copied", FP32))
    held = state.quantize_weights(jax.device_put(drawn_weights(describe(MODELS[model]))))
    rows = (np.zeros(2, np.int32), np.full(2, 4, np.int32), np.arange(2, dtype=np.int32)[:, None])
    logits = []
    for by_layer in (False, True):
        forward = PagedForward(engine=state, n_blocks=2, block_tokens=8, by_layer=by_layer)
        arrays = forward.weights_by_layer(held) if by_layer else held
        logits.append(jax.jit(forward.function())(arrays, forward.init_cache(), TOKENS, *rows)[1])
    np.testing.assert_allclose(*logits, atol=1e-4)
