"""Seed-OSS: Llama with biases of queries, keys and values."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, Mlp
from shardwise.models.families._layers import uniform_model
from shardwise.models.families._names import OUTER_NAMES as OUTER_NAMES
from shardwise.models.families._names import llama_tensors
from shardwise.models.families._numbers import activation, rms_norm, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig

MODEL_TYPES = ("seed_oss",)
ARCHITECTURES = ("SeedOssForCausalLM",)

_DEFAULTS = {"head_dim": 128}


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of SeedOssConfig."""
    keys.set_defaults(_DEFAULTS)
    N = keys.integer("num_attention_heads")
    bias = keys.flag("attention_bias", True)
    max_seq = keys.integer("max_position_embeddings", default=524_288)
    attention = Attention(
        n_heads=N,
        n_kv_heads=keys.integer("num_key_value_heads", default=8),
        d_head=keys.head_dim(keys.integer("hidden_size"), N),
        q_bias=bias,
        kv_bias=bias,
        o_bias=keys.flag("attention_out_bias", False),
        rotary=rope(keys, max_seq=max_seq),
    )
    ffn = Mlp(
        d_ff=keys.integer("intermediate_size"),
        bias=keys.flag("mlp_bias", False),
        activation=activation(keys),
    )
    layer = Layer(attention=attention, ffn=ffn)
    norm = rms_norm(keys)
    return uniform_model(keys, name, "seed_oss", layer, max_seq=max_seq, norm=norm)


layer_tensors = llama_tensors
