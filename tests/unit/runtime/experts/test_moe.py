"""Models with experts and latent attention: logits of NumPy, and on eight devices as on one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwise.models import ModelConfig
from shardwise.models.numerics import ClampedGlu, Routing
from shardwise.runtime.layout.mesh import role_mesh
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.weights.descriptions import describe, map_infos
from shardwise.strategy.layout import Layout, rules_of
from shardwise.strategy.mesh import Mesh
from tests.oracle import forward
from tests.unit.runtime.distance import beyond
from tests.unit.runtime.expert_cases import DEEPSEEK, LAYOUTS, MIXTRAL, RUNS, VOCAB
from tests.unit.runtime.logits import logits
from tests.unit.runtime.scripts import answer, rows, selected

LOGIT = 1e-4  # in fp32
SEQ = 32
QUICK = ("mixtral: expert 4, zero 2, accumulated",)
ONE = Layout(mesh=Mesh())


def _changed(config: ModelConfig, **routed: Any) -> ModelConfig:
    """With other experts in the last kind of layer."""
    *before, last = config.groups
    layer = replace(last.layer, ffn=replace(last.layer.ffn, **routed))
    return replace(config, groups=(*before, replace(last, layer=layer)))


MODELS = {
    "mixtral": MIXTRAL,
    "deepseek": DEEPSEEK,
    "gpt-oss": _changed(
        MIXTRAL, bias=True, router_bias=True, clamp=ClampedGlu(alpha=1.702, limit=7.0)
    ),
    "qwen, llama 4": _changed(
        MIXTRAL,
        n_shared_experts=1,
        d_ff_shared=16,
        shared_gate=True,
        routing=Routing(score="sigmoid", normalized=False, on_input=True),
    ),
}


@pytest.mark.parametrize("family", MODELS)
def test_logits_are_those_of_numpy(family: str) -> None:
    config = MODELS[family]
    on = role_mesh(ONE.sizes, np.array(jax.devices()[:1]))
    table = Table(rules=rules_of(ONE), mesh=on)
    infos = describe(config)
    weights = map_infos(lambda info: np.full(info.shape, float(not info.is_matrix), "f"), infos)
    random = np.random.default_rng(1)
    weights = jax.tree.map(lambda w: w + 0.1 * random.normal(size=w.shape).astype("f"), weights)
    tokens = np.random.default_rng(2).integers(0, VOCAB, SEQ)
    of = jax.jit(logits(config, table, SEQ, jnp.float32))
    found = of(weights, jnp.asarray(tokens)[None])[0]
    wide = jax.tree.map(lambda w: np.asarray(w, np.float64), weights)
    layers = [
        {name: w[i] for name, w in stacked.items()}
        for group, stacked in zip(config.groups, wide["layers"], strict=True)
        for i in range(group.count)
    ]
    expected = forward.logits(config, wide["outer"], layers, tokens)
    np.testing.assert_allclose(found, expected, atol=LOGIT * np.abs(expected).max())


@pytest.fixture(scope="module")
def runs(root: Path, request: pytest.FixtureRequest) -> Any:
    return answer(root, "parity_experts", *selected(request))


@pytest.mark.parametrize("name", rows(RUNS, QUICK))
def test_numbers_are_those_of_one_device(runs: Any, name: str) -> None:
    run = runs[name]
    assert run["one"][0] != run["one"][1] != run["one"][2]
    assert beyond(run) == {}


def test_every_layout_runs_with_one_of_the_models() -> None:
    assert {layout for _, layout in RUNS.values()} == {*LAYOUTS}
