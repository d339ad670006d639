"""Weights as an engine has them: blocks of GGUF files that are its groups are kept exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from shardwise.runtime.serving.engine_state import EngineState
from shardwise.runtime.weights.published_weights import entries_by_layer
from shardwise.runtime.weights.quantized import Grouped, Scaled
from shardwise.serve.model_files import ServedModel, find_model
from shardwise.serve.model_files.gguf.blocks import StoredBlocks
from shardwise.serve.model_files.gguf.weights import GgufWeights
from shardwise.strategy.mesh import Mesh
from tests.unit.runtime import paged_cases
from tests.unit.serve.model_files import tiny


def engine_of(model: ServedModel, weights: str, group: int | None = None) -> EngineState:
    dtypes = paged_cases.FP32 | {"weights": weights}
    return paged_cases.engine((model.config, Mesh(), "copied", dtypes), group)


def is_quantized(weight: Any) -> bool:
    return isinstance(weight, Grouped | Scaled)


def exact(weight: Any) -> Any:
    """The numbers that a weight stands for, by NumPy."""
    if not isinstance(weight, Grouped):
        return weight
    values, scale, minimum = (np.asarray(part).astype(np.float32) for part in weight)
    for dim, size in enumerate(values.shape):
        extent = size // scale.shape[dim]
        scale, minimum = scale.repeat(extent, dim), minimum.repeat(extent, dim)
    return values * scale + minimum


@pytest.mark.parametrize(
    ("kind", "weights"),
    [("Q4_0", "int4"), ("Q4_1", "int4"), ("Q8_0", "int8"), ("Q4_1", "int8")],
)
def test_blocks_are_kept(tmp_path: Path, kind: str, weights: str) -> None:
    path = tiny.write_gguf(tmp_path / "tiny.gguf", "llama", GGMLQuantizationType[kind])
    model = find_model(str(path))
    engine = engine_of(model, weights, group=32)
    tree = model.weights.load_for(engine)
    assert {name for name, w in tree["layers"][0].items() if is_quantized(w)} == {
        *("wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down")
    }
    numbers = jax.tree.map(exact, tree, is_leaf=is_quantized)
    expected = model.weights.load(engine.table, jnp.float32)
    jax.tree.map(np.testing.assert_array_equal, numbers, expected)
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), tree)
    assert shapes == jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), engine.weight_shapes())


@pytest.mark.parametrize(
    ("kind", "weights", "group"),
    [("Q8_0", "int4", 32), ("Q5_1", "int8", 32), ("Q4_1", "int4", 64), ("Q4_1", "int8", None)],
)
def test_other_blocks_are_not_kept(
    tmp_path: Path, kind: str, weights: str, group: int | None
) -> None:
    path = tiny.write_gguf(tmp_path / "tiny.gguf", "llama", GGMLQuantizationType[kind])
    model = find_model(str(path))
    assert isinstance(model.weights, GgufWeights)
    engine = engine_of(model, weights, group)
    stored = StoredBlocks(tensors=model.weights.tensors(), engine=engine)
    dims = engine.contracted_dims["layers"][0]["w_down"]
    tensors = entries_by_layer(model.config)["layers"][0]["w_down"]
    assert dims == (-2,)
    assert stored.groups(engine.infos["layers"][0]["w_down"], dims, tensors) is None


def test_chips_that_share_a_block_have_its_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny.write_gguf(tmp_path / "tiny.gguf", "llama", GGMLQuantizationType.Q4_1)
    model = find_model(str(path))
    assert isinstance(model.weights, GgufWeights)
    engine = engine_of(model, "int4", group=32)
    # As on two chips, with 48 of the 96 inputs each.
    monkeypatch.setattr(EngineState, "extents", lambda self, info, dims: (1, 16, 1))
    stored = StoredBlocks(tensors=model.weights.tensors(), engine=engine)
    tensors = entries_by_layer(model.config)["layers"][0]["w_down"]
    groups = stored.groups(engine.infos["layers"][0]["w_down"], (-2,), tensors)
    assert groups is not None
    assert groups.scale.shape == (2, 6, 64)
    expected = model.weights.load(engine.table, jnp.float32)["layers"][0]["w_down"]
    np.testing.assert_array_equal(exact(groups), expected)


def test_weights_are_quantized_one_after_the_other(tmp_path: Path) -> None:
    model = find_model(str(tiny.write_folder(tmp_path / "tiny")))
    engine = engine_of(model, "int8")
    expected = jax.jit(engine.quantize_weights)(model.weights.load(engine.table, jnp.float32))
    jax.tree.map(np.testing.assert_array_equal, model.weights.load_for(engine), expected)


def test_weights_of_a_folder(tmp_path: Path) -> None:
    model = find_model(str(tiny.write_folder(tmp_path / "tiny")))
    engine = engine_of(model, "bf16")
    expected = model.weights.load(engine.table, jnp.bfloat16)
    jax.tree.map(np.testing.assert_array_equal, model.weights.load_for(engine), expected)
