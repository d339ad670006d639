"""GPT-OSS: experts with biases, every other layer local, attention sinks."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, Moe
from shardwise.models.families._layers import grouped
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig

MODEL_TYPES = ("gpt_oss",)
ARCHITECTURES = ("GptOssForCausalLM",)


def build(keys: Keys, name: str) -> ModelConfig:
    """Keys of GptOssConfig."""
    D, N = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    K, H = keys.whole("num_key_value_heads", default=8), keys.head_dim(D, N, 64)
    bias, window = keys.flag("attention_bias", True), keys.maybe("sliding_window", 128)
    local = keys.layer_types(keys.layers("num_hidden_layers"), lambda i: i % 2 == 0)
    moe = Moe(
        n_experts=keys.whole("num_local_experts", default=128),
        experts_per_token=keys.whole("num_experts_per_tok", "experts_per_token", default=4),
        d_ff=keys.whole("intermediate_size"),
        router_bias=True,
        bias=True,
    )

    def layer(is_local: bool) -> Layer:
        attention = Attention(
            n_heads=N,
            n_kv_heads=K,
            d_head=H,
            window=window if is_local else None,
            q_bias=bias,
            kv_bias=bias,
            o_bias=bias,
            sinks=True,
        )
        return Layer(attention=attention, ffn=moe)

    return ModelConfig(
        name=name,
        family="gpt_oss",
        d_model=D,
        vocab=keys.whole("vocab_size"),
        groups=grouped(local, layer),
        tied_embeddings=keys.flag("tie_word_embeddings", False),
        max_seq=keys.whole("max_position_embeddings", default=131_072),
    )
