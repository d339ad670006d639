"""GPT-NeoX and Pythia: attention and MLP in parallel, biases everywhere, untied."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, LayerGroup, Mlp
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig

MODEL_TYPES = ("gpt_neox",)
ARCHITECTURES = ("GPTNeoXForCausalLM",)


def build(keys: Keys, name: str) -> ModelConfig:
    """Keys of GPTNeoXConfig."""
    D, N = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    bias = keys.flag("attention_bias", True)
    attention = Attention(
        n_heads=N,
        n_kv_heads=N,
        d_head=keys.even_heads("num_attention_heads", N, "hidden_size", D),
        q_bias=bias,
        kv_bias=bias,
        o_bias=bias,
    )
    layer = Layer(
        attention=attention,
        ffn=Mlp(d_ff=keys.whole("intermediate_size"), gated=False, bias=True),
        norm_bias=True,
        parallel=keys.flag("use_parallel_residual", True),
    )
    return ModelConfig(
        name=name,
        family="gpt_neox",
        d_model=D,
        vocab=keys.whole("vocab_size"),
        groups=(LayerGroup(layer=layer, count=keys.layers("num_hidden_layers")),),
        tied_embeddings=keys.flag("tie_word_embeddings", False),
        final_norm_bias=True,
        max_seq=keys.whole("max_position_embeddings", default=2048),
    )
