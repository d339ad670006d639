"""GPT-NeoX and Pythia: attention and MLP in parallel, biases everywhere, untied embeddings."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, LayerGroup, Mlp
from shardwise.models.families._names import (
    fused_qkv,
    norm_names,
    output_and_mlp_names,
    separate_tensors,
)
from shardwise.models.families._numbers import activation, partial_rope, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import Norm
from shardwise.models.tensor_layout import TensorLayout

MODEL_TYPES = ("gpt_neox",)
ARCHITECTURES = ("GPTNeoXForCausalLM",)


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of GPTNeoXConfig."""
    D = keys.integer("hidden_size")
    N = keys.integer("num_attention_heads")
    bias = keys.flag("attention_bias", True)
    H = keys.even_heads("num_attention_heads", N, "hidden_size", D)
    max_seq = keys.integer("max_position_embeddings", default=2048)
    theta = keys.number("rotary_emb_base", default=10_000.0)
    rotary = rope(keys, max_seq=max_seq, theta=theta)
    attention = Attention(
        n_heads=N,
        n_kv_heads=N,
        d_head=H,
        q_bias=bias,
        kv_bias=bias,
        o_bias=bias,
        rotary=partial_rope(keys, rotary, H, 0.25, "rotary_pct"),
    )
    ffn = Mlp(
        d_ff=keys.integer("intermediate_size"),
        gated=False,
        bias=True,
        activation=activation(keys, default="gelu"),
    )
    layer = Layer(
        attention=attention,
        ffn=ffn,
        norm_bias=True,
        parallel=keys.flag("use_parallel_residual", True),
    )
    return ModelConfig(
        name=name,
        family="gpt_neox",
        d_model=D,
        vocab=keys.integer("vocab_size"),
        groups=(LayerGroup(layer=layer, count=keys.layer_count("num_hidden_layers")),),
        tied_embeddings=keys.flag("tie_word_embeddings", False),
        final_norm_bias=True,
        max_seq=max_seq,
        norm=Norm(kind="layer", eps=keys.number("layer_norm_eps", default=1e-5)),
    )


OUTER_NAMES = {
    "embedding": "gpt_neox.embed_in.weight",
    "final_norm": "gpt_neox.final_layer_norm.weight",
    "b_final_norm": "gpt_neox.final_layer_norm.bias",
    "unembedding": "embed_out.weight",
}


def layer_tensors(config: ModelConfig, layer: Layer) -> dict[str, TensorLayout]:
    """Layouts of a layer's weights; query_key_value fuses wq, wk and wv by head."""
    prefix = "gpt_neox.layers.{layer}."
    names = norm_names(layer) | output_and_mlp_names("attention")
    layouts = separate_tensors(config, layer, prefix, names)
    return layouts | fused_qkv(config, layer, f"{prefix}attention.query_key_value")
