"""Qwen2, Qwen2.5 (biases of queries, keys and values) and Qwen3 (norms of heads instead).

`qwen_moe` uses the same attention.
"""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, Mlp
from shardwise.models.families._layers import layer_groups, layer_order
from shardwise.models.families._names import OUTER_NAMES as OUTER_NAMES
from shardwise.models.families._names import llama_tensors
from shardwise.models.families._numbers import activation, rms_norm, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig

MODEL_TYPES = ("qwen2", "qwen3")
ARCHITECTURES = ("Qwen2ForCausalLM", "Qwen3ForCausalLM")

_DEFAULTS = {
    "qwen2": {"num_key_value_heads": 32},
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128},
}


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of Qwen2Config or Qwen3Config."""
    is_qwen3 = keys.is_type("qwen3")
    family = "qwen3" if is_qwen3 else "qwen2"
    keys.set_defaults(_DEFAULTS[family])
    D = keys.integer("hidden_size")
    window = sliding_window(keys)
    first_local = keys.integer("max_window_layers", default=28, low=0)
    local_flags = keys.local_layers(
        keys.layer_count("num_hidden_layers"), lambda i: window is not None and i >= first_local
    )
    windows = {False: None, True: window}
    ffn = Mlp(d_ff=keys.integer("intermediate_size"), activation=activation(keys))

    def build_layer(is_local: bool) -> Layer:
        return Layer(attention=attention(keys, D, windows[is_local], is_qwen3=is_qwen3), ffn=ffn)

    return ModelConfig(
        name=name,
        family=family,
        d_model=D,
        vocab=keys.integer("vocab_size"),
        groups=layer_groups(local_flags, build_layer),
        order=layer_order(local_flags),
        tied_embeddings=keys.flag("tie_word_embeddings", False),
        max_seq=keys.integer("max_position_embeddings", default=32768),
        norm=rms_norm(keys),
    )


def sliding_window(keys: Keys) -> int | None:
    """Read `sliding_window` if `use_sliding_window` is true; otherwise None, and it may be 0."""
    if keys.flag("use_sliding_window", False):
        return keys.optional_integer("sliding_window", 4096)
    keys.optional_integer("sliding_window", low=0)
    return None


def attention(keys: Keys, D: int, window: int | None, *, is_qwen3: bool) -> Attention:
    """The attention of Qwen2, with biases of q, k and v, or of Qwen3, with norms of each head."""
    N = keys.integer("num_attention_heads")
    o_bias = is_qwen3 and keys.flag("attention_bias", False)
    qkv_bias = o_bias if is_qwen3 else keys.flag("qkv_bias", True)
    return Attention(
        n_heads=N,
        n_kv_heads=keys.integer("num_key_value_heads"),
        d_head=keys.head_dim(D, N),
        window=window,
        q_bias=qkv_bias,
        kv_bias=qkv_bias,
        o_bias=o_bias,
        qk_norm="head" if is_qwen3 else "",
        rotary=rope(keys, max_seq=keys.integer("max_position_embeddings", default=32768)),
    )


layer_tensors = llama_tensors
