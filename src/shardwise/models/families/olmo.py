"""OLMo (norms without parameters), OLMo-2 (norms after each block, and of queries and keys) and
OLMo-3 (OLMo-2 with local layers).
"""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, Mlp
from shardwise.models.families._layers import layer_groups, layer_order, uniform_model
from shardwise.models.families._names import OUTER_NAMES as OUTER_NAMES
from shardwise.models.families._names import llama_tensors
from shardwise.models.families._numbers import activation, local_and_global_rope, rms_norm, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import Norm, Rope

MODEL_TYPES = ("olmo", "olmo2", "olmo3")
ARCHITECTURES = ("OlmoForCausalLM", "Olmo2ForCausalLM", "Olmo3ForCausalLM")


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of OlmoConfig, Olmo2Config or Olmo3Config."""
    max_seq = keys.integer("max_position_embeddings", default=2048)
    if keys.is_type("olmo3"):
        return _olmo3(keys, name, max_seq)
    ffn = _mlp(keys)
    rotary = rope(keys, max_seq=max_seq)
    if keys.is_type("olmo2"):
        layer = Layer(attention=_attention(keys, rotary, qk_norm="full"), ffn=ffn, norms="post")
        norm = rms_norm(keys, 1e-5)
        return uniform_model(keys, name, "olmo2", layer, max_seq=max_seq, norm=norm)
    clip = keys.optional_number("clip_qkv")
    layer = Layer(attention=_attention(keys, rotary, clip=clip), ffn=ffn, norm_scale=False)
    norm = Norm(kind="layer", eps=1e-5)
    return uniform_model(
        keys, name, "olmo", layer, final_norm_scale=False, max_seq=max_seq, norm=norm
    )


def _olmo3(keys: Keys, name: str, max_seq: int) -> ModelConfig:
    n_layers = keys.layer_count("num_hidden_layers")
    local_flags = keys.local_layers(n_layers, lambda i: (i + 1) % 4 != 0)
    theta = keys.number("rope_theta", default=500_000.0)
    rotaries = local_and_global_rope(keys, max_seq=max_seq, local_theta=theta, global_theta=theta)
    windows = {False: None, True: keys.optional_integer("sliding_window", 4096)}
    ffn = _mlp(keys)

    def build_layer(is_local: bool) -> Layer:
        rotary = rotaries[0] if is_local else rotaries[1]
        attention = _attention(keys, rotary, qk_norm="full", window=windows[is_local])
        return Layer(attention=attention, ffn=ffn, norms="post")

    return ModelConfig(
        name=name,
        family="olmo3",
        d_model=keys.integer("hidden_size"),
        vocab=keys.integer("vocab_size"),
        groups=layer_groups(local_flags, build_layer),
        order=layer_order(local_flags),
        tied_embeddings=keys.flag("tie_word_embeddings", False),
        max_seq=max_seq,
        norm=rms_norm(keys, 1e-5),
    )


def _mlp(keys: Keys) -> Mlp:
    return Mlp(d_ff=keys.integer("intermediate_size"), activation=activation(keys))


def _attention(
    keys: Keys,
    rotary: Rope,
    *,
    qk_norm: str = "",
    clip: float | None = None,
    window: int | None = None,
) -> Attention:
    N = keys.integer("num_attention_heads")
    bias = keys.flag("attention_bias", False)
    return Attention(
        n_heads=N,
        n_kv_heads=keys.integer("num_key_value_heads", default=N),
        d_head=keys.head_dim(keys.integer("hidden_size"), N),
        window=window,
        q_bias=bias,
        kv_bias=bias,
        o_bias=bias,
        clip=clip,
        qk_norm=qk_norm,
        rotary=rotary,
    )


layer_tensors = llama_tensors
