"""Gemma 1, 2 and 3 (text): wide heads, tied embeddings, local and global attention from 2 on."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, Mlp
from shardwise.models.families._layers import grouped, in_order
from shardwise.models.families._names import OUTER as OUTER
from shardwise.models.families._names import usual
from shardwise.models.families._numbers import activation, rms_norm, rope, scaling
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import Rope
from shardwise.models.stored import Stored

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
    ffn = Mlp(d_ff=text.whole("intermediate_size"), activation=_activation(text))
    max_seq = text.whole("max_position_embeddings", default=131_072 if third else 8192)
    near, far = _rotary(text, max_seq) if third else (rope(text, max_seq=max_seq),) * 2
    wide = text.number("query_pre_attn_scalar", default=256.0) if second or third else H
    softcap, logit_softcap = _softcaps(text, second) if second or third else (None, None)

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
            rotary=near if is_local else far,
            scale=None if wide == H else wide**-0.5,
            softcap=softcap,
        )
        return Layer(attention=attention, ffn=ffn, norms="both" if second or third else "pre")

    return ModelConfig(
        name=name,
        family="gemma3" if third else "gemma2" if second else "gemma",
        d_model=D,
        vocab=text.whole("vocab_size", **({"default": 262_208} if third else {})),
        groups=grouped(local, layer),
        order=in_order(local),
        tied_embeddings=tied,
        max_seq=max_seq,
        norm=rms_norm(text, plus_one=True),
        scaled_embeddings=True,
        logit_softcap=logit_softcap,
    )


def _activation(text: Keys) -> str:
    """Tanh GELU; `hidden_act` of Gemma 1 says gelu and means it."""
    told = activation(text, "hidden_activation", text.text("hidden_act", "gelu_pytorch_tanh"))
    return "gelu_tanh" if told == "gelu" else told


def _softcaps(text: Keys, second: bool) -> tuple[float | None, float | None]:
    """Of attention and of logits; Gemma 3 has none."""
    return (
        text.maybe_number("attn_logit_softcapping", 50.0 if second else None),
        text.maybe_number("final_logit_softcapping", 30.0 if second else None),
    )


def _rotary(text: Keys, max_seq: int) -> tuple[Rope, Rope]:
    """Of local and of global layers of Gemma 3: only global ones are scaled."""
    base = text.number("rope_local_base_freq", default=10_000.0)
    told = text.inner("rope_parameters")
    if told is text or told.inner("full_attention") is told:
        return Rope(theta=base), rope(text, max_seq=max_seq, theta=1e6)
    near, far = told.inner("sliding_attention"), told.inner("full_attention")
    return (
        Rope(theta=near.number("rope_theta", default=base), scaling=scaling(text, near, max_seq)),
        Rope(theta=far.number("rope_theta", default=1e6), scaling=scaling(text, far, max_seq)),
    )


def _local(text: Keys, n_layers: int, *, second: bool, third: bool) -> list[bool]:
    """Which layers are local: none in Gemma 1, every other in 2, five of six in 3."""
    if not (second or third):
        return [False] * n_layers
    every = text.whole("sliding_window_pattern", default=6) if third else 2
    return text.layer_types(n_layers, lambda i: (i + 1) % every != 0)


def layer_names(config: ModelConfig, layer: Layer) -> dict[str, Stored]:
    """Tensors of a layer."""
    return usual(config, layer)
