"""Saved activations: which arrays, under which policy, how many bytes."""

from __future__ import annotations

import numpy as np
import pytest

from shardwise.errors import UnknownName
from shardwise.models import load, names
from shardwise.models.activations import POLICIES, activation_bytes, layer_activations


def saved(name, policy, group=0):
    config = load(name)
    return [row.name for row in layer_activations(config, config.groups[group].layer, policy)]


def test_full_keeps_the_input_of_a_layer():
    assert saved("llama3-70b", "full") == ["layer_input"]
    assert activation_bytes(load("llama3-70b"), 4096, "full") == 4096 * 2 * 80 * 8192


def test_dots_keeps_outputs_of_matmuls():
    assert saved("llama3-70b", "dots") == [
        "layer_input", "q", "k", "v", "attended", "attention_output", "gate", "up",
    ]  # fmt: skip


def test_none_keeps_what_the_backward_pass_reads():
    D, F, NH, KH = 8192, 28672, 64 * 128, 8 * 128
    around = 4 * D  # layer input, two block inputs, the middle
    per_token = 80 * (around + 2 * NH + 2 * KH + 3 * F)
    assert activation_bytes(load("llama3-70b"), 1, "none", 1) == per_token == 80 * 16.75 * D


def test_block_outputs_are_kept_where_a_norm_reads_them():
    assert {"attention_output", "ffn_output"} <= set(saved("gemma2-9b", "none"))
    assert not {"attention_output", "ffn_output"} & set(saved("llama3-8b", "none"))
    assert "attention_output" not in saved("palm-8b", "dots")


def test_arrays_that_are_others_are_not_kept_twice():
    assert "middle" not in saved("palm-8b", "none")
    assert "ffn_input" not in saved("palm-8b", "none")
    assert "attention_input" not in saved("olmo2-7b", "none")
    assert {"middle", "ffn_input"} <= set(saved("llama3-8b", "none"))


def test_routed_layers_keep_a_copy_per_expert_of_a_token():
    config = load("mixtral-8x7b")
    rows = {r.name: r for r in layer_activations(config, config.groups[0].layer, "none")}
    assert rows["expert_input"].shape == (2, 4096)
    assert rows["hidden"].shape == (2, 14336)
    assert "shared_up" in saved("deepseek-v3", "none", group=1)
    assert {"q_latent", "kv_latent", "k", "v"} <= set(saved("deepseek-v3", "dots"))


def test_unknown_policy():
    with pytest.raises(UnknownName, match=r'policy "ful"\. Close: "full"'):
        activation_bytes(load("gpt2"), 1, "ful")


@pytest.mark.parametrize("name", names())
def test_each_policy_keeps_less(name):
    model = load(name)
    none, dots, full = (activation_bytes(model, 1024, policy) for policy in POLICIES)
    assert none > dots > full == 1024 * 2 * model.n_layers * model.d_model
    tokens = np.array([1, 1024])
    assert activation_bytes(model, tokens)[1] == none
