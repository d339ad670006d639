"""Descriptions refuse what no model can have, and say so."""

from __future__ import annotations

import dataclasses

import pytest

from shardwise.errors import BadShape
from shardwise.models import Attention, Layer, LayerGroup, Mla, Mlp, ModelConfig, Moe

ATTENTION = Attention(n_heads=8, n_kv_heads=2, d_head=16)
LAYER = Layer(attention=ATTENTION, ffn=Mlp(d_ff=256))


def config(*groups, **fields):
    return ModelConfig(name="tiny", d_model=128, vocab=1000, groups=groups, **fields)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            lambda: Attention(n_heads=0, n_kv_heads=1, d_head=4),
            "n_heads 0 of attention is below 1.",
        ),
        (lambda: Attention(n_heads=8, n_kv_heads=-2, d_head=4), "n_kv_heads -2 of attention is"),
        (
            lambda: Attention(n_heads=8, n_kv_heads=2, d_head=2.5),
            "d_head 2.5 of attention is not a",
        ),
        (lambda: Attention(n_heads=True, n_kv_heads=1, d_head=4), "n_heads True of attention"),
        (lambda: Attention(n_heads=64, n_kv_heads=7, d_head=4), "Nearest that do: 1, 2, 4, 8."),
        (lambda: Attention(n_heads=8, n_kv_heads=8, d_head=4, window=0), "window 0 of attention"),
        (
            lambda: Attention(n_heads=8, n_kv_heads=8, d_head=4, causal=1),
            "causal 1 of attention is",
        ),
        (lambda: Attention(n_heads=8, n_kv_heads=8, d_head=4, qk_norm="x"), 'qk_norm "x" is not'),
        (
            lambda: Mlp(d_ff=10**30),
            "d_ff 1.000e+30 of mlp is above 2,147,483,647, the largest dim.",
        ),
        (lambda: Moe(n_experts=4, experts_per_token=5, d_ff=8), "a token uses an expert once"),
        (
            lambda: Moe(n_experts=4, experts_per_token=2, d_ff=8, n_shared_experts=1),
            "both are zero or neither is",
        ),
        (
            lambda: Mla(kv_lora_rank=0, d_nope=1, d_rope=1, d_v=1),
            "kv_lora_rank 0 of mla is below 1",
        ),
        (lambda: Layer(attention=ATTENTION, ffn=Mlp(d_ff=8), norms="none"), 'norms "none" is not'),
        (lambda: LayerGroup(layer=LAYER, count=0), "count 0 of layer group is below 1."),
        (lambda: config(), "tiny has no layers."),
        (
            lambda: config(LayerGroup(layer=LAYER, count=1), n_positions=-1),
            "n_positions -1 of tiny",
        ),
    ],
)
def test_refused(build, said):
    with pytest.raises(BadShape) as caught:
        build()
    assert said in str(caught.value)


def test_all_problems_are_told_together():
    with pytest.raises(BadShape) as caught:
        Attention(n_heads=0, n_kv_heads=0, d_head=0)
    assert len(caught.value.problems) == 3


def test_latent_attention_needs_the_width_it_is_made_of():
    mla = Mla(kv_lora_rank=32, d_nope=16, d_rope=8, d_v=12)
    with pytest.raises(BadShape, match=r"d_head 20 is not d_nope 16 \+ d_rope 8"):
        Attention(n_heads=4, n_kv_heads=4, d_head=20, mla=mla)
    assert Attention(n_heads=4, n_kv_heads=4, d_head=24, mla=mla).d_head_v == 12
    assert ATTENTION.d_head_v == ATTENTION.d_head


def test_fields_of_a_model_are_those_of_its_most_common_layer():
    local = dataclasses.replace(LAYER, attention=dataclasses.replace(ATTENTION, window=64))
    moe = Layer(attention=ATTENTION, ffn=Moe(n_experts=4, experts_per_token=2, d_ff=32))
    model = config(LayerGroup(layer=local, count=2), LayerGroup(layer=moe, count=3))
    assert (model.n_layers, model.n_heads, model.n_kv_heads, model.d_head) == (5, 8, 2, 16)
    assert (model.d_ff, model.n_experts, model.experts_per_token) == (32, 4, 2)
    assert model.is_moe
    dense = config(LayerGroup(layer=LAYER, count=1))
    assert (dense.n_experts, dense.experts_per_token, dense.is_moe) == (0, 0, False)


def test_dense_fills_in_heads():
    model = ModelConfig.dense(n_layers=2, d_model=64, d_ff=256, n_heads=4, vocab=10)
    assert (model.n_kv_heads, model.d_head, model.name, model.family) == (4, 16, "dense", "dense")
    with pytest.raises(BadShape, match="n_heads 5 does not divide d_model 64"):
        ModelConfig.dense(n_layers=2, d_model=64, d_ff=256, n_heads=5, vocab=10)
    with pytest.raises(BadShape, match="n_kv_heads 0"):
        ModelConfig.dense(n_layers=2, d_model=64, d_ff=9, n_heads=4, n_kv_heads=0, vocab=10)


def test_values_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        LAYER.norms = "post"  # type: ignore[misc]
