"""EXAONE 4: norms after each block and of each head; global layers may have no positions."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, Mlp
from shardwise.models.families._layers import layer_groups, layer_order
from shardwise.models.families._names import OUTER_NAMES as OUTER_NAMES
from shardwise.models.families._names import llama_tensors
from shardwise.models.families._numbers import activation, rms_norm, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import PLAIN_ROPE

MODEL_TYPES = ("exaone4",)
ARCHITECTURES = ("Exaone4ForCausalLM",)


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of Exaone4Config."""
    D = keys.integer("hidden_size")
    N = keys.integer("num_attention_heads")
    max_seq = keys.integer("max_position_embeddings", default=2048)
    rotary = rope(keys, max_seq=max_seq)
    window = keys.optional_integer("sliding_window", 4096)

    def is_local(i: int) -> bool:  # the pattern may be text in files that have `layer_types`
        return window is not None and (i + 1) % keys.integer(_PATTERN, default=4) != 0

    local_flags = keys.local_layers(keys.layer_count("num_hidden_layers"), is_local)
    ffn = Mlp(d_ff=keys.integer("intermediate_size"), activation=activation(keys))

    def build_layer(is_local: bool) -> Layer:
        has_rope = is_local or window is None
        attention = Attention(
            n_heads=N,
            n_kv_heads=keys.integer("num_key_value_heads", default=32),
            d_head=keys.head_dim(D, N),
            window=window if is_local else None,
            qk_norm="head",
            rope=has_rope,
            rotary=rotary if has_rope else PLAIN_ROPE,
        )
        return Layer(attention=attention, ffn=ffn, norms="post")

    return ModelConfig(
        name=name,
        family="exaone4",
        d_model=D,
        vocab=keys.integer("vocab_size"),
        groups=layer_groups(local_flags, build_layer),
        order=layer_order(local_flags),
        tied_embeddings=keys.flag("tie_word_embeddings", False),
        max_seq=max_seq,
        norm=rms_norm(keys, 1e-5),
    )


_PATTERN = "sliding_window_pattern"

layer_tensors = llama_tensors
