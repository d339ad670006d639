"""GLM-4 (`glm`, and `glm4` with norms after each block too): partial, interleaved rotary."""

from __future__ import annotations

import dataclasses

from shardwise.models.config import Attention, Layer, Mlp
from shardwise.models.families._layers import uniform_model
from shardwise.models.families._names import (
    LAYER_PREFIX,
    fused_pair,
    llama_tensors,
    parameter_names,
)
from shardwise.models.families._names import OUTER_NAMES as OUTER_NAMES
from shardwise.models.families._numbers import activation, partial_rope, rms_norm, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.tensor_layout import TensorLayout

MODEL_TYPES = ("glm", "glm4")
ARCHITECTURES = ("GlmForCausalLM", "Glm4ForCausalLM")

_DEFAULTS = {"head_dim": 128}


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of GlmConfig or Glm4Config."""
    keys.set_defaults(_DEFAULTS)
    is_glm4 = keys.is_type("glm4")
    N = keys.integer("num_attention_heads")
    H = keys.head_dim(keys.integer("hidden_size"), N)
    bias = keys.flag("attention_bias", True)
    max_seq = keys.integer("max_position_embeddings", default=131_072)
    rotary = partial_rope(keys, rope(keys, max_seq=max_seq, interleaved=True), H, 0.5)
    attention = Attention(
        n_heads=N,
        n_kv_heads=keys.integer("num_key_value_heads", default=2),
        d_head=H,
        q_bias=bias,
        kv_bias=bias,
        rotary=rotary,
    )
    ffn = Mlp(d_ff=keys.integer("intermediate_size"), activation=activation(keys))
    layer = Layer(attention=attention, ffn=ffn)
    family = "glm"
    if is_glm4:
        layer = dataclasses.replace(layer, norms="both")
        family = "glm4"
    norm = rms_norm(keys, 1.5625e-07)
    return uniform_model(keys, name, family, layer, max_seq=max_seq, norm=norm)


# Weight -> module, for the norms of `glm4`.
_NORM_MODULES = {
    "attention_norm": "input_layernorm",
    "post_attention_norm": "post_self_attn_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "post_ffn_norm": "post_mlp_layernorm",
}


def layer_tensors(config: ModelConfig, layer: Layer) -> dict[str, TensorLayout]:
    """Layouts of a layer's weights; gate_up_proj fuses w_gate and w_up."""
    names = parameter_names(_NORM_MODULES, scale_prefix="", bias_prefix="b_")
    layouts = llama_tensors(config, layer, names)
    gate_up = f"{LAYER_PREFIX}mlp.gate_up_proj"
    return layouts | fused_pair(config, layer, gate_up, "w_gate", "w_up")
