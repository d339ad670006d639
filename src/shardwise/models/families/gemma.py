"""Gemma 1, 2 and 3 (text): wide heads, tied embeddings, local and global attention from 2 on."""

from __future__ import annotations

import dataclasses

from shardwise.models.config import Attention, Layer, Mlp
from shardwise.models.families._layers import layer_groups, layer_order
from shardwise.models.families._names import OUTER_NAMES as OUTER_NAMES
from shardwise.models.families._names import llama_tensors
from shardwise.models.families._numbers import activation, local_and_global_rope, rms_norm, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import Rope

MODEL_TYPES = ("gemma", "gemma2", "gemma3", "gemma3_text")
ARCHITECTURES = (
    "GemmaForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
)

# Defaults of GemmaConfig, Gemma2Config and Gemma3TextConfig, by generation.
_DEFAULTS: dict[int, dict[str, float]] = {
    1: {"num_key_value_heads": 16, "head_dim": 256, "max_position_embeddings": 8192},
    2: {
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 8192,
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256.0,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    3: {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256.0,
        "vocab_size": 262_208,
    },
}


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of GemmaConfig, Gemma2Config or Gemma3TextConfig."""
    generation = _generation(keys)
    tied_embeddings = keys.flag("tie_word_embeddings", True)
    text = keys.inner("text_config")
    text.set_defaults(_DEFAULTS[generation])
    text.refuse_flag("use_bidirectional_attention", "attention to later tokens")
    D = text.integer("hidden_size")
    vocab = text.integer("vocab_size")
    n_layers = text.layer_count("num_hidden_layers")
    ffn = Mlp(d_ff=text.integer("intermediate_size"), activation=_activation(text))
    max_seq = text.integer("max_position_embeddings")
    attentions = _attentions(text, generation, D, max_seq)
    local_flags = _local_layers(text, n_layers, generation)
    logit_softcap = None
    norms = "pre"
    if generation > 1:
        logit_softcap = text.optional_number("final_logit_softcapping")
        norms = "both"

    def build_layer(is_local: bool) -> Layer:
        return Layer(attention=attentions[is_local], ffn=ffn, norms=norms)

    return ModelConfig(
        name=name,
        family=MODEL_TYPES[generation - 1],
        d_model=D,
        vocab=vocab,
        groups=layer_groups(local_flags, build_layer),
        order=layer_order(local_flags),
        tied_embeddings=tied_embeddings,
        max_seq=max_seq,
        norm=rms_norm(text, plus_one=True),
        scaled_embeddings=True,
        logit_softcap=logit_softcap,
    )


def _generation(keys: Keys) -> int:
    if keys.is_type("gemma3"):
        return 3
    if keys.is_type("gemma2"):
        return 2
    return 1


def _attentions(text: Keys, generation: int, D: int, max_seq: int) -> dict[bool, Attention]:
    """The attention of global layers (key False) and of local layers (key True)."""
    N = text.integer("num_attention_heads")
    H = text.head_dim(D, N)
    bias = text.flag("attention_bias", False)
    qk_norm = ""
    if generation == 3:
        qk_norm = "head"
        local_rotary, global_rotary = _rotary(text, max_seq)
    else:
        global_rotary = rope(text, max_seq=max_seq)
        local_rotary = global_rotary
    window = None
    scale = None
    softcap = None
    if generation > 1:
        window = text.optional_integer("sliding_window")
        query_scalar = text.number("query_pre_attn_scalar", default=256.0)
        if query_scalar != H:
            scale = query_scalar**-0.5
        softcap = text.optional_number("attn_logit_softcapping")
    global_attention = Attention(
        n_heads=N,
        n_kv_heads=text.integer("num_key_value_heads"),
        d_head=H,
        q_bias=bias,
        kv_bias=bias,
        o_bias=bias,
        qk_norm=qk_norm,
        rotary=global_rotary,
        scale=scale,
        softcap=softcap,
    )
    local_attention = dataclasses.replace(global_attention, window=window, rotary=local_rotary)
    return {False: global_attention, True: local_attention}


def _activation(text: Keys) -> str:
    """Read the activation; "gelu" in files of Gemma 1 means the tanh GELU."""
    default = text.text("hidden_act", "gelu_pytorch_tanh")
    config_name = activation(text, "hidden_activation", default)
    if config_name == "gelu":
        return "gelu_tanh"
    return config_name


def _rotary(text: Keys, max_seq: int) -> tuple[Rope, Rope]:
    """Rotary positions of local and of global layers of Gemma 3, with separate constants."""
    theta = text.number("rope_local_base_freq", default=10_000.0)
    return local_and_global_rope(text, max_seq=max_seq, local_theta=theta, global_theta=1e6)


def _local_layers(text: Keys, n_layers: int, generation: int) -> list[bool]:
    """Whether each layer is local: none in Gemma 1, every other in 2, five of six in 3."""
    if generation == 1:
        return [False] * n_layers
    period = 2
    if generation == 3:
        period = text.integer("sliding_window_pattern", default=6)
    return text.local_layers(n_layers, lambda i: (i + 1) % period != 0)


layer_tensors = llama_tensors
