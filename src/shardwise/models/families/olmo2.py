"""OLMo-2: norms after each block, and over all query and key heads."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, LayerGroup, Mlp
from shardwise.models.families._names import OUTER as OUTER
from shardwise.models.families._names import usual
from shardwise.models.families._numbers import activation, rms_norm, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.stored import Stored

MODEL_TYPES = ("olmo2",)
ARCHITECTURES = ("Olmo2ForCausalLM",)


def build(keys: Keys, name: str) -> ModelConfig:
    """Keys of Olmo2Config."""
    D, N = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    bias = keys.flag("attention_bias", False)
    max_seq = keys.whole("max_position_embeddings", default=2048)
    attention = Attention(
        n_heads=N,
        n_kv_heads=keys.whole("num_key_value_heads", default=N),
        d_head=keys.head_dim(D, N),
        q_bias=bias,
        kv_bias=bias,
        o_bias=bias,
        qk_norm="full",
        rotary=rope(keys, max_seq=max_seq),
    )
    ffn = Mlp(d_ff=keys.whole("intermediate_size"), activation=activation(keys))
    layer = Layer(attention=attention, ffn=ffn, norms="post")
    return ModelConfig(
        name=name,
        family="olmo2",
        d_model=D,
        vocab=keys.whole("vocab_size"),
        groups=(LayerGroup(layer=layer, count=keys.layers("num_hidden_layers")),),
        tied_embeddings=keys.flag("tie_word_embeddings", False),
        max_seq=max_seq,
        norm=rms_norm(keys, 1e-5),
    )


def layer_names(config: ModelConfig, layer: Layer) -> dict[str, Stored]:
    """Tensors of a layer."""
    return usual(config, layer)
