"""Qwen2, Qwen2.5 (biases on queries, keys and values) and Qwen3 (norms on heads instead).

Also read by `qwen_moe`, whose attention is the same.
"""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, Mlp
from shardwise.models.families._layers import grouped, in_order
from shardwise.models.families._names import OUTER as OUTER
from shardwise.models.families._names import usual
from shardwise.models.families._numbers import activation, rms_norm, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.stored import Stored

MODEL_TYPES = ("qwen2", "qwen3")
ARCHITECTURES = ("Qwen2ForCausalLM", "Qwen3ForCausalLM")


def build(keys: Keys, name: str) -> ModelConfig:
    """Keys of Qwen2Config and Qwen3Config."""
    D, third = keys.whole("hidden_size"), keys.says("qwen3")
    n_layers, window = keys.layers("num_hidden_layers"), sliding_window(keys)
    first_local = keys.whole("max_window_layers", default=28, low=0)
    local = keys.layer_types(n_layers, lambda i: window is not None and i >= first_local)
    d_ff, act = keys.whole("intermediate_size"), activation(keys)
    heads = {"head_dim_default": 128, "kv_default": 32} if third else {"kv_default": 32}

    def layer(is_local: bool) -> Layer:
        a = attention(keys, D, window if is_local else None, third=third, **heads)
        return Layer(attention=a, ffn=Mlp(d_ff=d_ff, activation=act))

    return ModelConfig(
        name=name,
        family="qwen3" if third else "qwen2",
        d_model=D,
        vocab=keys.whole("vocab_size"),
        groups=grouped(local, layer),
        order=in_order(local),
        tied_embeddings=keys.flag("tie_word_embeddings", False),
        max_seq=keys.whole("max_position_embeddings", default=32768),
        norm=rms_norm(keys),
    )


def sliding_window(keys: Keys) -> int | None:
    """`sliding_window`, which counts only where `use_sliding_window` is true; else it may be 0."""
    used = keys.flag("use_sliding_window", False)
    window = keys.maybe("sliding_window", 4096, low=1 if used else 0)
    return window if used else None


def attention(
    keys: Keys,
    D: int,
    window: int | None,
    *,
    third: bool,
    kv_default: int,
    head_dim_default: int | None = None,
) -> Attention:
    """Attention of either generation: Qwen2 biases q, k and v; Qwen3 norms each head instead."""
    N = keys.whole("num_attention_heads")
    all_biases = third and keys.flag("attention_bias", False)
    qkv_bias = all_biases if third else keys.flag("qkv_bias", True)
    return Attention(
        n_heads=N,
        n_kv_heads=keys.whole("num_key_value_heads", default=kv_default),
        d_head=keys.head_dim(D, N, head_dim_default),
        window=window,
        q_bias=qkv_bias,
        kv_bias=qkv_bias,
        o_bias=all_biases,
        qk_norm="head" if third else "",
        rotary=rope(keys, max_seq=keys.whole("max_position_embeddings", default=32768)),
    )


def layer_names(config: ModelConfig, layer: Layer) -> dict[str, Stored]:
    """Tensors of a layer."""
    return usual(config, layer)
