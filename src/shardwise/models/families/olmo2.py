"""OLMo-2: norms after each block, and norms of queries and keys over all heads."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, LayerGroup, Mlp
from shardwise.models.families._names import OUTER_NAMES as OUTER_NAMES
from shardwise.models.families._names import llama_tensors
from shardwise.models.families._numbers import activation, rms_norm, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig

MODEL_TYPES = ("olmo2",)
ARCHITECTURES = ("Olmo2ForCausalLM",)


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of Olmo2Config."""
    D = keys.integer("hidden_size")
    N = keys.integer("num_attention_heads")
    bias = keys.flag("attention_bias", False)
    max_seq = keys.integer("max_position_embeddings", default=2048)
    attention = Attention(
        n_heads=N,
        n_kv_heads=keys.integer("num_key_value_heads", default=N),
        d_head=keys.head_dim(D, N),
        q_bias=bias,
        kv_bias=bias,
        o_bias=bias,
        qk_norm="full",
        rotary=rope(keys, max_seq=max_seq),
    )
    ffn = Mlp(d_ff=keys.integer("intermediate_size"), activation=activation(keys))
    layer = Layer(attention=attention, ffn=ffn, norms="post")
    return ModelConfig(
        name=name,
        family="olmo2",
        d_model=D,
        vocab=keys.integer("vocab_size"),
        groups=(LayerGroup(layer=layer, count=keys.layer_count("num_hidden_layers")),),
        tied_embeddings=keys.flag("tie_word_embeddings", False),
        max_seq=max_seq,
        norm=rms_norm(keys, 1e-5),
    )


layer_tensors = llama_tensors
