"""Adafactor and Muon on eight devices are those of one; which dims are a matrix to Muon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from shardwise.models import ModelConfig
from shardwise.runtime.training.optimizers import WHOLE_ARRAY, matrix_dims, optimizer, state_specs
from shardwise.runtime.weights.descriptions import describe, map_infos
from tests.unit.runtime.parity_optimizers import LAYOUTS
from tests.unit.runtime.scripts import answer, rows, selected

LOSS = 1e-5  # in fp32, as for the others
SHARE = 0.01  # of the way that five steps take a weight: Muon enlarges what rounding leaves
MODEL = ModelConfig.dense(n_layers=2, d_model=128, d_ff=256, n_heads=8, n_kv_heads=4, vocab=256)


@pytest.fixture(scope="module")
def runs(root: Path, request: pytest.FixtureRequest) -> Any:
    return answer(root, "parity_optimizers", *selected(request))


@pytest.mark.parametrize("name", rows(LAYOUTS, []))
@pytest.mark.parametrize("optimizer", WHOLE_ARRAY)
def test_steps_are_those_of_one_device(runs: Any, optimizer: str, name: str) -> None:
    one, found = runs[optimizer]["one"], runs[optimizer][name]
    assert found["losses"] == pytest.approx(one["losses"], abs=LOSS)
    assert found["apart"] < SHARE * one["apart"]


def test_matrices_of_muon() -> None:
    infos = describe(MODEL)
    layer = infos["layers"][0]
    found = {name: matrix_dims(info) for name, info in layer.items()}
    assert (found["wq"].reduction_axis, found["wq"].output_axis) == ((1,), (2, 3))
    assert (found["wo"].reduction_axis, found["wo"].output_axis) == ((1, 2), (3,))
    assert found["ffn_norm"] is None
    assert matrix_dims(infos["outer"]["embedding"]) is None


def test_state_lies_as_its_weights_do() -> None:
    """Factors of Adafactor, which have another shape, are on every chip."""
    infos = describe(MODEL)
    whole = map_infos(lambda i: jax.ShapeDtypeStruct(i.shape, jnp.float32), infos)
    parts = map_infos(lambda i: jax.sharding.PartitionSpec(*i.dims), infos)

    def specs(name: str) -> Any:
        made: optax.GradientTransformation = optimizer(name, 1e-3, infos)
        state = jax.eval_shape(made.init, whole)
        return state, state_specs(state, whole, parts)

    for name in ("adamw", *WHOLE_ARRAY):
        state, found = specs(name)
        for x, spec in zip(jax.tree.leaves(state), jax.tree.leaves(found), strict=True):
            assert len(spec) in (0, len(x.shape))
    _, adamw = specs("adamw")
    assert adamw[0].mu["layers"][0]["wq"] == parts["layers"][0]["wq"]
    _, adafactor = specs("adafactor")
    paths = jax.tree_util.tree_leaves_with_path(adafactor)
    rows = [spec for path, spec in paths if "v_row" in jax.tree_util.keystr(path)]
    assert len(rows) == len(jax.tree.leaves(infos))
    assert not any(any(spec) for spec in rows)
