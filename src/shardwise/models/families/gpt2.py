"""GPT-2, and GPT-3 and the Megatron models in its keys: learned positions, biases everywhere."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, LayerGroup, Mlp
from shardwise.models.families._numbers import activation
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import Norm

MODEL_TYPES = ("gpt2",)
ARCHITECTURES = ("GPT2LMHeadModel", "GPT2Model")


def build(keys: Keys, name: str) -> ModelConfig:
    """Keys of GPT2Config."""
    D, N = keys.whole("n_embd"), keys.whole("n_head")
    attention = Attention(
        n_heads=N,
        n_kv_heads=N,
        d_head=keys.even_heads("n_head", N, "n_embd", D),
        q_bias=True,
        kv_bias=True,
        o_bias=True,
        rope=False,
        scale=None if keys.flag("scale_attn_weights", True) else 1.0,
    )
    ffn = Mlp(
        d_ff=keys.whole("n_inner", default=4 * D),
        gated=False,
        bias=True,
        activation=activation(keys, "activation_function", "gelu_new"),
    )
    layer = Layer(attention=attention, ffn=ffn, norm_bias=True)
    positions = keys.whole("n_positions", default=1024)
    return ModelConfig(
        name=name,
        family="gpt2",
        d_model=D,
        vocab=keys.whole("vocab_size"),
        groups=(LayerGroup(layer=layer, count=keys.layers("n_layer")),),
        tied_embeddings=keys.flag("tie_word_embeddings", True),
        n_positions=positions,
        final_norm_bias=True,
        max_seq=positions,
        norm=Norm(kind="layer", eps=keys.number("layer_norm_epsilon", default=1e-5)),
    )
