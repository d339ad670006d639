"""Gemma 1, 2 and 3 (text): wide heads, tied embeddings, local and global attention from 2 on."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, Mlp
from shardwise.models.families._layers import grouped
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig

MODEL_TYPES = ("gemma", "gemma2", "gemma3", "gemma3_text")
ARCHITECTURES = (
    "GemmaForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
)


def build(keys: Keys, name: str) -> ModelConfig:
    """Keys of GemmaConfig, Gemma2Config and Gemma3TextConfig; published files of 3 omit some."""
    third, second = keys.says("gemma3"), keys.says("gemma2")
    tied = keys.flag("tie_word_embeddings", True)
    text = keys.inner("text_config")
    D, n_layers = text.whole("hidden_size"), text.layers("num_hidden_layers")
    N = text.whole("num_attention_heads", **({"default": 8} if third else {}))
    K = text.whole("num_key_value_heads", default=16 if not (second or third) else 4)
    H, bias = text.head_dim(D, N, 256), text.flag("attention_bias", False)
    local = _local(text, n_layers, second=second, third=third)
    window = text.maybe("sliding_window", 4096) if second or third else None
    ffn = Mlp(d_ff=text.whole("intermediate_size"))

    def layer(is_local: bool) -> Layer:
        attention = Attention(
            n_heads=N,
            n_kv_heads=K,
            d_head=H,
            window=window if is_local else None,
            q_bias=bias,
            kv_bias=bias,
            o_bias=bias,
            qk_norm="head" if third else "",
        )
        return Layer(attention=attention, ffn=ffn, norms="both" if second or third else "pre")

    return ModelConfig(
        name=name,
        family="gemma3" if third else "gemma2" if second else "gemma",
        d_model=D,
        vocab=text.whole("vocab_size", **({"default": 262_208} if third else {})),
        groups=grouped(local, layer),
        tied_embeddings=tied,
        max_seq=text.whole("max_position_embeddings", default=131_072 if third else 8192),
    )


def _local(text: Keys, n_layers: int, *, second: bool, third: bool) -> list[bool]:
    """Which layers are local: none in Gemma 1, every other in 2, five of six in 3."""
    if not (second or third):
        return [False] * n_layers
    every = text.whole("sliding_window_pattern", default=6) if third else 2
    return text.layer_types(n_layers, lambda i: (i + 1) % every != 0)
