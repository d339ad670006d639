"""Overrides change what they name, in every layer that has it, and nothing else."""

from __future__ import annotations

import pytest

from shardwise.errors import BadInput, BadShape, BadUnit, UnknownName
from shardwise.models import Moe, load
from shardwise.models.overrides import FIELDS


def counts(model):
    return [group.count for group in load(model).groups]


def test_fields_change_and_the_name_says_so():
    model = load("llama3-70b,n_kv_heads=1, d_ff=16k ,vocab=32000,tied_embeddings=true")
    assert model.name == "llama3-70b,n_kv_heads=1, d_ff=16k ,vocab=32000,tied_embeddings=true"
    assert (model.n_kv_heads, model.d_ff, model.vocab) == (1, 16000, 32000)
    assert model.tied_embeddings
    assert (model.n_heads, model.n_layers) == (64, 80)


def test_layers_keep_their_proportion():
    assert counts("llama3-70b,n_layers=3") == [3]
    assert counts("gemma3-27b") == [52, 10]
    assert counts("gemma3-27b,n_layers=31") == [26, 5]
    assert counts("deepseek-v3,n_layers=4") == [1, 3]
    assert counts("llama4-maverick,n_layers=3") == [1, 1, 1]


def test_each_layer_takes_the_fields_it_has():
    model = load("deepseek-v3,d_ff=1024,n_experts=64,n_heads=32")
    dense, routed = (group.layer for group in model.groups)
    assert dense.ffn.d_ff == 18432
    assert isinstance(routed.ffn, Moe)
    assert (routed.ffn.d_ff, routed.ffn.n_experts, routed.ffn.d_ff_shared) == (1024, 64, 2048)
    assert dense.attention.n_heads == dense.attention.n_kv_heads == 32
    local, full = (group.layer.attention.window for group in load("gpt-oss-20b,window=64").groups)
    assert (local, full) == (64, None)


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_works_on_some_model(field):
    value = "true" if field == "tied_embeddings" else "8"
    models = ("llama3-70b", "gpt2", "gpt-oss-20b", "deepseek-v3")
    took = []
    for model in models:
        try:
            took.append(load(f"{model},{field}={value}") != load(model))
        except BadInput:
            continue
    assert any(took)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ("n_head=8", UnknownName, 'unknown model field "n_head". Close: "n_heads"'),
        ("n_heads", BadUnit, 'override "n_heads" of llama3-70b has no "="'),
        ("", BadUnit, 'override "" of llama3-70b has no "="'),
        ("n_heads=many", BadUnit, 'n_heads "many" is not a number'),
        ("n_heads=0", BadUnit, 'n_heads "0" is below 1'),
        ("n_heads=-8", BadUnit, 'n_heads "-8" is negative'),
        ("n_heads=2.5", BadUnit, "is not a whole number"),
        ("n_heads=8,n_heads=16", BadUnit, "n_heads of llama3-70b is given twice."),
        ("n_kv_heads=7", BadShape, "n_kv_heads 7 does not divide n_heads 64"),
        ("n_layers=1e20", BadShape, "n_layers 1.000e+20 of llama3-70b is above 100,000."),
        ("tied_embeddings=maybe", BadUnit, 'tied_embeddings "maybe" is neither true nor false.'),
        ("n_experts=8", BadUnit, "n_experts: llama3-70b has no experts."),
        ("window=8", BadUnit, "window: no layer of llama3-70b has local attention."),
        ("n_positions=8", BadUnit, "n_positions: llama3-70b has no learned positions."),
    ],
)
def test_refused(change, error, said):
    with pytest.raises(error) as caught:
        load(f"llama3-70b,{change}")
    assert said in str(caught.value)


def test_refused_by_the_model():
    with pytest.raises(BadUnit, match="rebuilds keys and values from a latent"):
        load("deepseek-v3,n_kv_heads=8")
    with pytest.raises(BadShape, match="n_layers 1 of gemma3-27b is below 2"):
        load("gemma3-27b,n_layers=1")


def test_all_problems_are_told_together():
    with pytest.raises(BadUnit) as caught:
        load("llama3-70b,n_head=8,d_ff=x,window=3")
    assert len(caught.value.problems) == 3
