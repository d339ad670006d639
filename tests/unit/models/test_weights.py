"""Weights: names and dims that einsums rely on, and sizes that add up."""

from __future__ import annotations

import pytest

from shardwise.models import count, load, names
from shardwise.models.weights import PARTS, layer_weights, outer_weights


def dims(config, group=0):
    weights = layer_weights(config, config.groups[group].layer)
    return {w.name: "".join(w.dims) if max(map(len, w.dims)) == 1 else w.dims for w in weights}


def test_grouped_query_attention_and_gated_mlp():
    assert dims(load("llama3-70b")) == {
        "wq": "DNH", "wk": "DKH", "wv": "DKH", "wo": "NHD",
        "w_gate": "DF", "w_up": "DF", "w_down": "FD",
        "attention_norm": "D", "ffn_norm": "D",
    }  # fmt: skip


def test_biases_and_plain_mlp():
    assert dims(load("gpt2")) == {
        "wq": "DNH", "wk": "DKH", "wv": "DKH", "wo": "NHD",
        "bq": "NH", "bk": "KH", "bv": "KH", "bo": "D",
        "w_up": "DF", "w_down": "FD", "b_up": "F", "b_down": "D",
        "attention_norm": "D", "ffn_norm": "D", "b_attention_norm": "D", "b_ffn_norm": "D",
    }  # fmt: skip


def test_latent_attention_and_shared_experts():
    assert dims(load("deepseek-v3"), group=1) == {
        "w_dq": "DQ", "q_norm": "Q", "w_uq": "QNH", "w_dkv": "DC", "kv_norm": ("C'",),
        "w_uk": ("C'", "N", "Hn"), "w_uv": ("C'", "N", "Hv"), "wo": ("N", "Hv", "D"),
        "router": "DE", "w_gate": "EDF", "w_up": "EDF", "w_down": "EFD",
        "shared_gate": "DF", "shared_up": "DF", "shared_down": "FD",
        "attention_norm": "D", "ffn_norm": "D",
    }  # fmt: skip
    assert "wq" in dims(load("deepseek-v2-lite"))


def test_sinks_and_expert_biases():
    found = dims(load("gpt-oss-20b"))
    assert {"sinks": "N", "b_router": "E", "b_gate": "EF", "b_down": "ED"}.items() <= found.items()


def test_norms_of_queries_and_keys():
    per_head, over_all = dims(load("qwen3-8b")), dims(load("olmo2-7b"))
    assert (per_head["q_norm"], per_head["k_norm"]) == ("H", "H")
    assert (over_all["q_norm"], over_all["k_norm"]) == ("NH", "KH")


def test_outer_weights():
    assert [w.name for w in outer_weights(load("llama3-70b"))] == [
        "embedding", "final_norm", "unembedding",
    ]  # fmt: skip
    assert [w.name for w in outer_weights(load("gpt2"))] == [
        "embedding", "position", "final_norm", "b_final_norm",
    ]  # fmt: skip


@pytest.mark.parametrize("name", names())
def test_every_preset(name):
    config = load(name)
    total = sum(w.size for w in outer_weights(config))
    for group in config.groups:
        weights = layer_weights(config, group.layer)
        total += group.count * sum(w.size for w in weights)
        assert len({w.name for w in weights}) == len(weights)
        assert {w.part for w in weights} <= set(PARTS)
        assert all(len(w.dims) == len(w.shape) for w in weights)
        size_of = {}
        for weight in weights:  # a letter is one size, but for the F of shared experts
            if not weight.name.startswith("shared"):
                for dim, size in zip(weight.dims, weight.shape, strict=True):
                    assert size_of.setdefault(dim, size) == size
    assert total == count.parameters(config).total
