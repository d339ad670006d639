"""Where weights stand in published checkpoints: names, shapes, and what is made of a tensor."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shardwise.errors import BadInput
from shardwise.models import Moe, load, names
from shardwise.models.count import parameters
from shardwise.models.tensor_names import entries, weight_names
from shardwise.models.weights import layer_weights
from tests.hybrid import hybrid

UNPUBLISHED = {"palm-8b", "palm-62b", "palm-540b"}


@pytest.mark.parametrize("name", [n for n in names() if n not in UNPUBLISHED])
def test_every_parameter_of_a_preset_has_its_place(name):
    config = load(name)
    found = weight_names(config)
    total = sum(math.prod(stored.shape) for stored in found.outer.values())
    for group, stored in zip(config.groups, found.groups, strict=True):
        ours = {weight.name for weight in layer_weights(config, group.layer)}
        assert set(stored) - {"router_correction"} == ours
        ffn = group.layer.ffn
        E = ffn.n_experts if isinstance(ffn, Moe) else 1
        sizes = {n: math.prod(s.shape) * (E if s.per_expert else 1) for n, s in stored.items()}
        total += group.count * sum(n for name, n in sizes.items() if name in ours)
    assert total == parameters(config).total


def test_entries_name_layers_and_experts():
    found = list(entries(load("mixtral-8x7b,n_layers=2,n_experts=4")))
    assert len({entry.tensor for entry in found}) == len(found) == 3 + 2 * (4 + 1 + 3 * 4 + 2)
    (one,) = (e for e in found if e.weight == "w_up" and (e.layer, e.expert) == (1, 3))
    assert one.tensor == "model.layers.1.block_sparse_moe.experts.3.w3.weight"


def test_kinds_of_layers_have_the_tensors_of_their_places():
    tensors = {e.tensor for e in entries(load("deepseek-v3,n_layers=2"))}
    assert "model.layers.0.mlp.gate_proj.weight" in tensors
    assert "model.layers.1.mlp.gate.e_score_correction_bias" in tensors
    assert "model.layers.1.mlp.gate_proj.weight" not in tensors


def test_heads_are_extracted_from_a_fused_tensor():
    """GPT-NeoX: for each head its query, key and value; ours are [D, N, H]."""
    config = load("pythia-70m")
    layout = weight_names(config).groups[0]["wk"]
    D, N, H = config.d_model, config.n_heads, config.d_head
    rows = np.arange(3 * N * H)[:, None] * np.ones((1, D), dtype=int)
    made = layout.extract(rows)
    assert made.shape == (D, N, H)
    assert made[0, 0, 0] == H
    assert made[7, 2, 5] == 2 * 3 * H + H + 5


def test_interleaved_gate_and_up():
    layouts = weight_names(load("gpt-oss-20b")).groups[0]
    assert layouts["w_gate"].axis_slice != layouts["w_up"].axis_slice
    pairs = np.arange(32 * 5760).reshape(32, 5760)
    assert list(layouts["b_up"].extract(pairs)[0, :3]) == [1, 3, 5]


@pytest.mark.parametrize("config", [load("palm-8b"), hybrid()], ids=["palm", "hybrid"])
def test_models_without_published_checkpoints_are_told(config):
    with pytest.raises(BadInput, match=r"are not known\. Known families: .*deepseek_v3"):
        weight_names(config)
