"""Llama 1 to 3.3 and Mistral: grouped-query attention, gated MLP, a norm before each block."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, LayerGroup, Mlp
from shardwise.models.families._names import OUTER as OUTER
from shardwise.models.families._names import usual
from shardwise.models.families._numbers import activation, rms_norm, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.stored import Stored

MODEL_TYPES = ("llama", "mistral")
ARCHITECTURES = ("LlamaForCausalLM", "LLaMAForCausalLM", "MistralForCausalLM")


def build(keys: Keys, name: str) -> ModelConfig:
    """Keys of LlamaConfig and MistralConfig."""
    mistral = keys.says("mistral")
    D, N = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    bias = keys.flag("attention_bias", False)
    max_seq = keys.whole("max_position_embeddings", default=4096 * 32 if mistral else 2048)
    attention = Attention(
        n_heads=N,
        n_kv_heads=keys.whole("num_key_value_heads", default=8 if mistral else N),
        d_head=keys.head_dim(D, N),
        window=keys.maybe("sliding_window", 4096) if mistral else None,
        q_bias=bias,
        kv_bias=bias,
        o_bias=bias,
        rotary=rope(keys, max_seq=max_seq),
    )
    ffn = Mlp(
        d_ff=keys.whole("intermediate_size"),
        bias=keys.flag("mlp_bias", False),
        activation=activation(keys),
    )
    layer = Layer(attention=attention, ffn=ffn)
    return ModelConfig(
        name=name,
        family="mistral" if mistral else "llama",
        d_model=D,
        vocab=keys.whole("vocab_size"),
        groups=(LayerGroup(layer=layer, count=keys.layers("num_hidden_layers")),),
        tied_embeddings=keys.flag("tie_word_embeddings", False),
        max_seq=max_seq,
        norm=rms_norm(keys),
    )


def layer_names(config: ModelConfig, layer: Layer) -> dict[str, Stored]:
    """Tensors of a layer."""
    return usual(config, layer)
