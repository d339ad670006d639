"""ERNIE 4.5 (dense): Llama with interleaved rotary positions."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, Mlp
from shardwise.models.families._layers import uniform_model
from shardwise.models.families._names import OUTER_NAMES as OUTER_NAMES
from shardwise.models.families._names import llama_tensors
from shardwise.models.families._numbers import activation, rms_norm, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig

MODEL_TYPES = ("ernie4_5",)
ARCHITECTURES = ("Ernie4_5ForCausalLM",)

_DEFAULTS = {"head_dim": 128}


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of Ernie4_5Config."""
    keys.set_defaults(_DEFAULTS)
    N = keys.integer("num_attention_heads")
    bias = keys.flag("use_bias", False)
    max_seq = keys.integer("max_position_embeddings", default=131_072)
    attention = Attention(
        n_heads=N,
        n_kv_heads=keys.integer("num_key_value_heads", default=2),
        d_head=keys.head_dim(keys.integer("hidden_size"), N),
        q_bias=bias,
        kv_bias=bias,
        o_bias=bias,
        rotary=rope(keys, max_seq=max_seq, theta=500_000.0, interleaved=True),
    )
    ffn = Mlp(d_ff=keys.integer("intermediate_size"), bias=bias, activation=activation(keys))
    layer = Layer(attention=attention, ffn=ffn)
    norm = rms_norm(keys, 1e-5)
    return uniform_model(keys, name, "ernie4_5", layer, tied=True, max_seq=max_seq, norm=norm)


layer_tensors = llama_tensors
