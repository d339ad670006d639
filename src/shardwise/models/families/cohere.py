"""Cohere: Command R and R+, and Cohere 2 (Command R7B, Command A) with local layers.

Attention and MLP are parallel after one LayerNorm without a bias, and logits have a factor. In
Cohere 2 global layers have no positions.
"""

from __future__ import annotations

import dataclasses

from shardwise.models.config import Attention, Layer, Mlp
from shardwise.models.families._layers import layer_groups, layer_order
from shardwise.models.families._names import OUTER_NAMES as OUTER_NAMES
from shardwise.models.families._names import llama_tensors
from shardwise.models.families._numbers import activation, layer_norm, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import PLAIN_ROPE
from shardwise.models.tensor_layout import TensorLayout

MODEL_TYPES = ("cohere", "cohere2")
ARCHITECTURES = ("CohereForCausalLM", "Cohere2ForCausalLM")


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of CohereConfig or Cohere2Config."""
    is_cohere2 = keys.is_type("cohere2")
    family = "cohere2" if is_cohere2 else "cohere"
    D = keys.integer("hidden_size")
    max_seq = keys.integer("max_position_embeddings", default=8192)
    attention = _attention(keys, D, max_seq, is_cohere2)
    local_flags = [True] * keys.layer_count("num_hidden_layers")
    attentions = {True: attention}
    if is_cohere2:
        period = keys.integer("sliding_window_pattern", default=4)
        local_flags = keys.local_layers(len(local_flags), lambda i: (i + 1) % period != 0)
        attentions[False] = dataclasses.replace(
            attention, window=None, rope=False, rotary=PLAIN_ROPE
        )
    ffn = Mlp(d_ff=keys.integer("intermediate_size"), activation=activation(keys))

    def build_layer(is_local: bool) -> Layer:
        return Layer(attention=attentions[is_local], ffn=ffn, norms="shared", parallel=True)

    return ModelConfig(
        name=name,
        family=family,
        d_model=D,
        vocab=keys.integer("vocab_size"),
        groups=layer_groups(local_flags, build_layer),
        order=layer_order(local_flags),
        tied_embeddings=keys.flag("tie_word_embeddings", True),
        max_seq=max_seq,
        norm=layer_norm(keys),
        logit_scale=keys.number("logit_scale", default=0.0625),
    )


def _attention(keys: Keys, D: int, max_seq: int, is_cohere2: bool) -> Attention:
    """The attention of Cohere's layers, or of Cohere 2's local layers."""
    N = keys.integer("num_attention_heads")
    bias = keys.flag("attention_bias", False)
    theta = 500_000.0
    window = None
    qk_norm = ""
    if is_cohere2:
        theta = 10_000.0
        window = keys.optional_integer("sliding_window", 4096)
    elif keys.flag("use_qk_norm", False):
        qk_norm = "each"
    return Attention(
        n_heads=N,
        n_kv_heads=keys.integer("num_key_value_heads", default=N),
        d_head=keys.head_dim(D, N),
        window=window,
        q_bias=bias,
        kv_bias=bias,
        o_bias=bias,
        qk_norm=qk_norm,
        rotary=rope(keys, max_seq=max_seq, theta=theta, interleaved=True),
    )


def layer_tensors(config: ModelConfig, layer: Layer) -> dict[str, TensorLayout]:
    """Layouts of a layer's weights; scales of queries and keys have a dim of heads."""
    layouts = llama_tensors(config, layer)
    for name in {"q_norm", "k_norm"} & layouts.keys():
        layout = layouts[name]
        layouts[name] = dataclasses.replace(layout, file_shape=layout.shape)
    return layouts
