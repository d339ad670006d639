"""A model as plain data inside a plan: short, and back the same, old plans too."""

from __future__ import annotations

import dataclasses
import json

import msgspec
import pytest

from shardwise.errors import BadFile, BadShape, ShardwiseError
from shardwise.models import load, names
from shardwise.plan.schema.architecture import model_of, plain_data
from tests.hybrid import hybrid, paired

# Fields that plans of the first versions do not have.
NEW = {
    "ModelConfig": ("order", "norm", "scaled_embeddings", "logit_softcap"),
    "attention": ("rotary", "alibi", "scale", "softcap", "qk_unit", "temperature"),
    "ffn": ("activation", "clamp", "routing"),
}


@pytest.mark.parametrize("name", names())
def test_every_preset_comes_back(name):
    assert model_of(json.loads(json.dumps(plain_data(load(name))))) == load(name)


@pytest.mark.parametrize("config", [hybrid(), paired()], ids=["hybrid", "paired"])
def test_models_of_mamba_blocks_come_back(config):
    assert model_of(json.loads(json.dumps(plain_data(config)))) == config


def test_defaults_are_left_out():
    assert plain_data(load("llama3-8b")) == {
        "name": "llama3-8b",
        "family": "llama",
        "d_model": 4096,
        "vocab": 128_256,
        "groups": [
            {
                "layer": {
                    "attention": {
                        "n_heads": 32,
                        "n_kv_heads": 8,
                        "d_head": 128,
                        "rotary": {"theta": 500_000.0},
                    },
                    "ffn": {"d_ff": 14_336},
                },
                "count": 32,
            }
        ],
        "max_seq": 8192,
        "norm": {"eps": 1e-05},
        "ignored_keys": list(load("llama3-8b").ignored_keys),
        "source": "meta-llama/Meta-Llama-3-8B",
    }


def without(data, fields):
    return {k: v for k, v in data.items() if k not in fields}


@pytest.mark.parametrize("name", ["gemma2-2b", "deepseek-v3", "gpt2"])
def test_plans_from_before_these_fields_give_the_same_sizes(name):
    """Every size was plain_data then, at its default too, and nothing of what is computed."""
    config = load(name)
    old = without(msgspec.to_builtins(config), NEW["ModelConfig"])
    for group in old["groups"]:
        for part in ("attention", "ffn"):
            group["layer"][part] = without(group["layer"][part], NEW[part])
        if group["layer"]["attention"]["mla"]:
            del group["layer"]["attention"]["mla"]["norm_eps"]
    read = model_of(json.loads(json.dumps(old)))
    assert [g.count for g in read.groups] == [g.count for g in config.groups]
    assert dataclasses.replace(read, groups=config.groups) == dataclasses.replace(
        config, order=(), norm=read.norm, scaled_embeddings=False, logit_softcap=None
    )


def test_numbers_of_a_wrong_kind_are_told():
    data = plain_data(load("gemma2-2b"))
    for key, value in (("norm", {"eps": "x"}), ("order", [{"kinds": "x"}]), ("order", 3)):
        with pytest.raises(BadFile, match=f"^{key}: Expected"):
            model_of(data | {key: value})


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("groups", None, "groups is not a list of objects"),
        ("groups", [{"count": 2}], "groups[0].layer is not an object"),
        ("groups", [{"layer": {"attention": None}, "count": 2}], "is empty"),
        ("groups", [{"layer": {"ffn": {"d_ff": 8}}, "count": "2"}], "groups[0].count: Expected"),
        ("groups", [{"layer": {"ffn": [8]}, "count": 2}], "groups[0].layer.ffn: Expected `object`"),
        ("name", ["gemma"], "name: Expected `str`, got `array`"),
        ("source", {}, "source: Expected `str`, got `object`"),
        ("ignored_keys", [["x"]], "ignored_keys: Expected `str`, got `array`"),
        ("d_model", "64", "d_model: Expected `int`, got `str`"),
    ],
)
def test_parts_that_describe_no_model(key, value, told):
    with pytest.raises(ShardwiseError) as error:
        model_of(plain_data(load("gemma2-2b")) | {key: value})
    assert told in str(error.value)


def test_a_key_without_default_is_missing():
    data = plain_data(load("gemma2-2b"))
    with pytest.raises(BadFile, match=r"^vocab is missing\.$"):
        model_of(without(data, ("vocab",)))


def test_a_huge_number_of_repeats_is_refused_at_once():
    """It once was a list of every layer."""
    order = [{"kinds": [0, 1], "repeats": 10**12}]
    with pytest.raises(BadShape, match="does not match the layer counts of its groups, 13, 13"):
        model_of(plain_data(load("gemma2-2b")) | {"order": order})
