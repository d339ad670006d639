"""Falcon 7B, 40B, 180B: multi-query or grouped attention parallel to the MLP, tied embeddings."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, LayerGroup, Mlp
from shardwise.models.families._names import (
    fused_qkv,
    norm_names,
    output_and_mlp_names,
    parameter_names,
    separate_tensors,
)
from shardwise.models.families._numbers import activation, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import Norm
from shardwise.models.tensor_layout import TensorLayout

MODEL_TYPES = ("falcon", "RefinedWeb", "RefinedWebModel")
ARCHITECTURES = ("FalconForCausalLM", "RWForCausalLM")


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of FalconConfig."""
    D = keys.integer("hidden_size", "n_embed")
    N = keys.integer("num_attention_heads", "n_head")
    K = keys.integer("num_kv_heads", "n_head_kv", default=N)
    is_grouped = keys.flag("new_decoder_architecture", False)
    is_multi_query = keys.flag("multi_query", True)
    if is_multi_query and not is_grouped:
        K = 1
    bias = keys.flag("bias", False)
    is_parallel = keys.flag("parallel_attn", True)
    n_norms = keys.integer("num_ln_in_parallel_attn", default=1 + is_grouped)
    norms = "pre"
    if is_parallel and n_norms == 1:
        norms = "shared"
    alibi = keys.flag("alibi", False)
    max_seq = keys.integer("max_position_embeddings", default=2048)
    attention = Attention(
        n_heads=N,
        n_kv_heads=K,
        d_head=keys.even_heads("num_attention_heads", N, "hidden_size", D),
        q_bias=bias,
        kv_bias=bias,
        o_bias=bias,
        rope=not alibi,
        rotary=rope(keys, max_seq=max_seq),
        alibi=alibi,
    )
    ffn = Mlp(
        d_ff=keys.integer("ffn_hidden_size", default=4 * D),
        gated=False,
        bias=bias,
        activation=activation(keys, "activation", "gelu"),
    )
    layer = Layer(attention=attention, ffn=ffn, norms=norms, norm_bias=True, parallel=is_parallel)
    return ModelConfig(
        name=name,
        family="falcon",
        d_model=D,
        vocab=keys.integer("vocab_size"),
        groups=(LayerGroup(layer=layer, count=keys.layer_count("num_hidden_layers", "n_layer")),),
        tied_embeddings=keys.flag("tie_word_embeddings", True),
        final_norm_bias=True,
        max_seq=max_seq,
        norm=Norm(kind="layer", eps=keys.number("layer_norm_epsilon", default=1e-5)),
    )


OUTER_NAMES = {
    "embedding": "transformer.word_embeddings.weight",
    "final_norm": "transformer.ln_f.weight",
    "b_final_norm": "transformer.ln_f.bias",
    "unembedding": "lm_head.weight",
}


def layer_tensors(config: ModelConfig, layer: Layer) -> dict[str, TensorLayout]:
    """Layouts of a layer's weights; query_key_value fuses wq, wk and wv by key head."""
    prefix = "transformer.h.{layer}."
    names = norm_names(layer)
    if layer.parallel and layer.norms == "pre":
        modules = {"attention_norm": "ln_attn", "ffn_norm": "ln_mlp"}
        names = parameter_names(modules, scale_prefix="", bias_prefix="b_")
    names |= output_and_mlp_names("self_attention")
    layouts = separate_tensors(config, layer, prefix, names)
    return layouts | fused_qkv(config, layer, f"{prefix}self_attention.query_key_value")
