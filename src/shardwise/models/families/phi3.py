"""Phi-3 mini and medium: Llama with fused projections."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, LayerGroup, Mlp
from shardwise.models.families._names import (
    LAYER_PREFIX,
    fused_pair,
    fused_projection,
    llama_tensors,
)
from shardwise.models.families._names import OUTER_NAMES as OUTER_NAMES
from shardwise.models.families._numbers import activation, partial_rope, rms_norm, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.tensor_layout import AxisSlice, TensorLayout
from shardwise.models.weights import layer_weights

MODEL_TYPES = ("phi3",)
ARCHITECTURES = ("Phi3ForCausalLM",)

# Kinds of scaling in earlier files -> their current names.
_SCALING_ALIASES = {"su": "longrope", "yarn": "longrope"}


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of Phi3Config."""
    D = keys.integer("hidden_size")
    N = keys.integer("num_attention_heads")
    H = keys.head_dim(D, N)
    keys.flag("attention_bias", False)  # published files state it; the family has no biases
    max_seq = keys.integer("max_position_embeddings", default=4096)
    rotary = rope(keys, max_seq=max_seq, kind_aliases=_SCALING_ALIASES)
    attention = Attention(
        n_heads=N,
        n_kv_heads=keys.integer("num_key_value_heads", default=N),
        d_head=H,
        window=keys.optional_integer("sliding_window"),
        rotary=partial_rope(keys, rotary, H, 1.0),
    )
    ffn = Mlp(d_ff=keys.integer("intermediate_size"), activation=activation(keys))
    layer = Layer(attention=attention, ffn=ffn)
    return ModelConfig(
        name=name,
        family="phi3",
        d_model=D,
        vocab=keys.integer("vocab_size"),
        groups=(LayerGroup(layer=layer, count=keys.layer_count("num_hidden_layers")),),
        tied_embeddings=keys.flag("tie_word_embeddings", False),
        max_seq=max_seq,
        norm=rms_norm(keys, 1e-5),
    )


def layer_tensors(config: ModelConfig, layer: Layer) -> dict[str, TensorLayout]:
    """Layouts of a layer's weights; qkv_proj fuses wq, wk and wv, gate_up_proj w_gate and w_up."""
    layouts = llama_tensors(config, layer)
    attention = layer.attention
    if attention is None:
        return layouts
    N = attention.n_heads
    K = attention.n_kv_heads
    heads = {"wq": (0, N), "wk": (N, N + K), "wv": (N + K, N + 2 * K)}
    module = f"{LAYER_PREFIX}self_attn.qkv_proj"
    for weight in layer_weights(config, layer):
        if weight.name in heads:
            start, stop = heads[weight.name]
            part = AxisSlice(axis=0, start=start, stop=stop)
            outputs = (N + 2 * K, attention.d_head)
            layouts[weight.name] = fused_projection(weight, module, outputs, part)
    gate_up = f"{LAYER_PREFIX}mlp.gate_up_proj"
    return layouts | fused_pair(config, layer, gate_up, "w_gate", "w_up")
