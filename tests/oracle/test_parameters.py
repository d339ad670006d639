"""Parameters of every preset against transformers models built without storage.

The meta device holds shapes only, so the largest presets are built whole.
"""

from __future__ import annotations

import warnings

import pytest

from shardwise.models import count, load, names
from shardwise.models.presets import presets

pytestmark = pytest.mark.oracle

# No class of transformers builds these, so no oracle can speak for them.
OUTSIDE = {"palm-8b", "palm-62b", "palm-540b"}

# Keys that would make transformers fetch code or swap layers for quantised ones.
NOT_ARCHITECTURE = ("auto_map", "quantization_config", "torch_dtype", "transformers_version")


def numel(data):
    """Parameters of the text model that transformers builds from a config.json, tied ones once."""
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    text = data.get("text_config", data)
    keys = {k: v for k, v in text.items() if k not in NOT_ARCHITECTURE}
    if isinstance(keys.get("rope_scaling"), dict) and "type" in keys["rope_scaling"]:
        keys["rope_scaling"] = keys["rope_scaling"] | {"rope_type": keys["rope_scaling"]["type"]}
    config = AutoConfig.for_model(keys.pop("model_type"), **keys)
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_config(config)
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert tied == bool(getattr(config, "tie_word_embeddings", False))
    return sum(p.numel() for p in {id(p): p for p in model.parameters()}.values())


def test_only_these_presets_have_no_oracle_and_each_says_why():
    said = {name: p.outside_transformers for name, p in presets().items() if p.outside_transformers}
    assert set(said) == OUTSIDE
    assert all(len(reason) > 20 for reason in said.values())


@pytest.mark.parametrize("name", [n for n in names() if n not in OUTSIDE])
def test_parameters_equal_transformers(name):
    assert count.parameters(load(name)).total == numel(presets()[name].read())


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("llama3-8b", {"attention_bias": True, "mlp_bias": True, "head_dim": 96}),
        ("qwen3-8b", {"attention_bias": True}),
        ("gemma2-2b", {"attention_bias": True}),
        ("olmo2-7b", {"attention_bias": True}),
        ("deepseek-v3", {"attention_bias": True, "first_k_dense_replace": 5}),
        ("qwen1.5-moe-a2.7b", {"mlp_only_layers": [0, 3], "decoder_sparse_step": 2}),
        ("llama4-maverick", {"interleave_moe_layer_step": 3}),
        ("gpt2", {"tie_word_embeddings": False, "n_inner": 1000}),
        ("falcon-40b", {"bias": True, "num_ln_in_parallel_attn": 1}),
        ("falcon-7b", {"parallel_attn": False, "multi_query": False}),
    ],
)
def test_parameters_follow_keys_that_no_preset_sets(name, change):
    from shardwise.models import from_dict

    data = presets()[name].read()
    data = (
        data | {"text_config": data["text_config"] | change}
        if "text_config" in data
        else (data | change)
    )
    assert count.parameters(from_dict(data, name=name)).total == numel(data)
    assert count.parameters(from_dict(data, name=name)).total != count.parameters(load(name)).total


@pytest.mark.parametrize("name", ["gemma2-9b", "gemma3-27b", "gpt-oss-20b", "llama4-scout"])
def test_local_layers_and_their_window_equal_transformers(name):
    transformers = pytest.importorskip("transformers")
    data = presets()[name].read()
    text = dict(data.get("text_config", data))
    config = transformers.AutoConfig.for_model(text.pop("model_type"), **text)
    window = getattr(config, "sliding_window", None) or config.attention_chunk_size
    local = sum(kind != "full_attention" for kind in config.layer_types)
    ours = {g.layer.attention.window: 0 for g in load(name).groups}
    for group in load(name).groups:
        ours[group.layer.attention.window] += group.count
    assert ours == {window: local, None: config.num_hidden_layers - local}
