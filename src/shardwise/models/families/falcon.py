"""Falcon 7B, 40B, 180B: multi-query or grouped attention beside the MLP, tied embeddings."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, LayerGroup, Mlp
from shardwise.models.families._names import alone, fused_groups, norms, out_projections
from shardwise.models.families._numbers import activation, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import Norm
from shardwise.models.stored import Stored

MODEL_TYPES = ("falcon", "RefinedWeb", "RefinedWebModel")
ARCHITECTURES = ("FalconForCausalLM", "RWForCausalLM")


def build(keys: Keys, name: str) -> ModelConfig:
    """Keys of FalconConfig."""
    D, N = keys.whole("hidden_size", "n_embed"), keys.whole("num_attention_heads", "n_head")
    grouped, multi_query = (
        keys.flag("new_decoder_architecture", False),
        keys.flag("multi_query", True),
    )
    K = keys.whole("num_kv_heads", "n_head_kv", default=N)
    bias, parallel = keys.flag("bias", False), keys.flag("parallel_attn", True)
    n_norms = keys.whole("num_ln_in_parallel_attn", default=2 if grouped else 1)
    alibi = keys.flag("alibi", False)
    max_seq = keys.whole("max_position_embeddings", default=2048)
    attention = Attention(
        n_heads=N,
        n_kv_heads=K if grouped or not multi_query else 1,
        d_head=keys.even_heads("num_attention_heads", N, "hidden_size", D),
        q_bias=bias,
        kv_bias=bias,
        o_bias=bias,
        rope=not alibi,
        rotary=rope(keys, max_seq=max_seq),
        alibi=alibi,
    )
    ffn = Mlp(
        d_ff=keys.whole("ffn_hidden_size", default=4 * D),
        gated=False,
        bias=bias,
        activation=activation(keys, "activation", "gelu"),
    )
    layer = Layer(
        attention=attention,
        ffn=ffn,
        norms="shared" if parallel and n_norms == 1 else "pre",
        norm_bias=True,
        parallel=parallel,
    )
    return ModelConfig(
        name=name,
        family="falcon",
        d_model=D,
        vocab=keys.whole("vocab_size"),
        groups=(LayerGroup(layer=layer, count=keys.layers("num_hidden_layers", "n_layer")),),
        tied_embeddings=keys.flag("tie_word_embeddings", True),
        final_norm_bias=True,
        max_seq=max_seq,
        norm=Norm(kind="layer", eps=keys.number("layer_norm_epsilon", default=1e-5)),
    )


OUTER = {
    "embedding": "transformer.word_embeddings.weight",
    "final_norm": "transformer.ln_f.weight",
    "b_final_norm": "transformer.ln_f.bias",
    "unembedding": "lm_head.weight",
}


def layer_names(config: ModelConfig, layer: Layer) -> dict[str, Stored]:
    """Tensors of a layer; one holds, for each key head, its queries, the key and the value."""
    prefix = "transformer.h.{layer}."
    found = norms(layer)
    if layer.parallel and layer.norms == "pre":
        found = {
            f"{b}{ours}_norm": f"{theirs}.{kind}"
            for ours, theirs in (("attention", "ln_attn"), ("ffn", "ln_mlp"))
            for b, kind in (("", "weight"), ("b_", "bias"))
        }
    return alone(config, layer, prefix, found | out_projections("self_attention")) | (
        fused_groups(config, layer, f"{prefix}self_attention.query_key_value")
    )
