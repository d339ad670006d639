"""Nemotron 3 and 4, Minitron (LayerNorm that stores scale - 1, partial rotary) and Arcee: MLPs with
squared ReLU and without a gate.
"""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, Mlp
from shardwise.models.families._layers import uniform_model
from shardwise.models.families._names import OUTER_NAMES as OUTER_NAMES
from shardwise.models.families._names import llama_tensors
from shardwise.models.families._numbers import (
    activation,
    layer_norm,
    partial_rope,
    rms_norm,
    rope,
)
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig

MODEL_TYPES = ("nemotron", "arcee")
ARCHITECTURES = ("NemotronForCausalLM", "ArceeForCausalLM")


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of NemotronConfig or ArceeConfig."""
    is_arcee = keys.is_type("arcee")
    N = keys.integer("num_attention_heads")
    H = keys.head_dim(keys.integer("hidden_size"), N)
    bias = keys.flag("attention_bias", False)
    max_seq = keys.integer("max_position_embeddings", default=4096)
    rotary = rope(keys, max_seq=max_seq)
    if not is_arcee:
        rotary = partial_rope(keys, rotary, H, 0.5)
    attention = Attention(
        n_heads=N,
        n_kv_heads=keys.integer("num_key_value_heads", default=N),
        d_head=H,
        q_bias=bias,
        kv_bias=bias,
        o_bias=bias,
        rotary=rotary,
    )
    ffn = Mlp(
        d_ff=keys.integer("intermediate_size"),
        gated=False,
        bias=keys.flag("mlp_bias", False),
        activation=activation(keys, default="relu2"),
    )
    layer = Layer(attention=attention, ffn=ffn, norm_bias=not is_arcee)
    if is_arcee:
        norm = rms_norm(keys, 1e-5)
        return uniform_model(keys, name, "arcee", layer, max_seq=max_seq, norm=norm)
    norm = layer_norm(keys, "norm_eps", plus_one=True)
    return uniform_model(
        keys, name, "nemotron", layer, final_norm_bias=True, max_seq=max_seq, norm=norm
    )


layer_tensors = llama_tensors
