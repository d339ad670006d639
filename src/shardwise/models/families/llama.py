"""Llama 1 to 3.3 and Mistral: grouped-query attention, gated MLP, a norm before each block."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, LayerGroup, Mlp
from shardwise.models.families._names import OUTER_NAMES as OUTER_NAMES
from shardwise.models.families._names import llama_tensors
from shardwise.models.families._numbers import activation, rms_norm, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig

MODEL_TYPES = ("llama", "mistral")
ARCHITECTURES = ("LlamaForCausalLM", "LLaMAForCausalLM", "MistralForCausalLM")

_DEFAULTS = {
    "llama": {"max_position_embeddings": 2048},
    "mistral": {
        "max_position_embeddings": 131_072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
}


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of LlamaConfig or MistralConfig."""
    family = "mistral" if keys.is_type("mistral") else "llama"
    keys.set_defaults(_DEFAULTS[family])
    window = None
    if family == "mistral":
        window = keys.optional_integer("sliding_window")
    D = keys.integer("hidden_size")
    N = keys.integer("num_attention_heads")
    bias = keys.flag("attention_bias", False)
    max_seq = keys.integer("max_position_embeddings")
    attention = Attention(
        n_heads=N,
        n_kv_heads=keys.integer("num_key_value_heads", default=N),
        d_head=keys.head_dim(D, N),
        window=window,
        q_bias=bias,
        kv_bias=bias,
        o_bias=bias,
        rotary=rope(keys, max_seq=max_seq),
    )
    ffn = Mlp(
        d_ff=keys.integer("intermediate_size"),
        bias=keys.flag("mlp_bias", False),
        activation=activation(keys),
    )
    layer = Layer(attention=attention, ffn=ffn)
    return ModelConfig(
        name=name,
        family=family,
        d_model=D,
        vocab=keys.integer("vocab_size"),
        groups=(LayerGroup(layer=layer, count=keys.layer_count("num_hidden_layers")),),
        tied_embeddings=keys.flag("tie_word_embeddings", False),
        max_seq=max_seq,
        norm=rms_norm(keys),
    )


layer_tensors = llama_tensors
