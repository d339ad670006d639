"""SmolLM3: Llama with layers without positions, by default every fourth."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, Mlp
from shardwise.models.families._layers import layer_groups, layer_order, rope_layers
from shardwise.models.families._names import OUTER_NAMES as OUTER_NAMES
from shardwise.models.families._names import llama_tensors
from shardwise.models.families._numbers import activation, rms_norm, rope
from shardwise.models.families.qwen import sliding_window
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import PLAIN_ROPE

MODEL_TYPES = ("smollm3",)
ARCHITECTURES = ("SmolLM3ForCausalLM",)


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of SmolLM3Config."""
    D = keys.integer("hidden_size")
    N = keys.integer("num_attention_heads")
    n_layers = keys.layer_count("num_hidden_layers")
    bias = keys.flag("attention_bias", False)
    max_seq = keys.integer("max_position_embeddings", default=32_768)
    rotary = rope(keys, max_seq=max_seq, theta=2e6)
    window = sliding_window(keys)
    rope_flags = rope_layers(keys, n_layers)
    local_flags = keys.local_layers(n_layers, lambda i: window is not None and not rope_flags[i])
    kinds = list(zip(local_flags, rope_flags, strict=False))
    ffn = Mlp(
        d_ff=keys.integer("intermediate_size"),
        bias=keys.flag("mlp_bias", False),
        activation=activation(keys),
    )

    def build_layer(kind: tuple[bool, bool]) -> Layer:
        is_local, has_rope = kind
        attention = Attention(
            n_heads=N,
            n_kv_heads=keys.integer("num_key_value_heads", default=4),
            d_head=keys.head_dim(D, N),
            window=window if is_local else None,
            q_bias=bias,
            kv_bias=bias,
            o_bias=bias,
            rope=has_rope,
            rotary=rotary if has_rope else PLAIN_ROPE,
        )
        return Layer(attention=attention, ffn=ffn)

    return ModelConfig(
        name=name,
        family="smollm3",
        d_model=D,
        vocab=keys.integer("vocab_size"),
        groups=layer_groups(kinds, build_layer),
        order=layer_order(kinds),
        tied_embeddings=keys.flag("tie_word_embeddings", True),
        max_seq=max_seq,
        norm=rms_norm(keys),
    )


layer_tensors = llama_tensors
