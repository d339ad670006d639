"""Llama 4 (text): chunked attention with every fourth layer global, a shared and routed experts."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, Mlp, Moe
from shardwise.models.families._layers import layer_groups, layer_order, rope_layers
from shardwise.models.families._names import (
    LAYER_PREFIX,
    expert_names,
    fused_gate_up,
    llama_tensors,
)
from shardwise.models.families._names import OUTER_NAMES as OUTER_NAMES
from shardwise.models.families._numbers import activation, expert_count, rms_norm, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import PLAIN_ROPE, Routing, Temperature
from shardwise.models.tensor_layout import TensorLayout, untransposed_layout
from shardwise.models.weights import layer_weights

MODEL_TYPES = ("llama4", "llama4_text")
ARCHITECTURES = ("Llama4ForConditionalGeneration", "Llama4ForCausalLM")

_DEFAULTS = {"head_dim": 128, "attention_chunk_size": 8192}


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of Llama4TextConfig.

    Norms on queries and keys have no parameters in this family.
    """
    tied_embeddings = keys.flag("tie_word_embeddings", False)
    text = keys.inner("text_config")
    text.set_defaults(_DEFAULTS)
    D = text.integer("hidden_size")
    n_layers = text.layer_count("num_hidden_layers")
    moe = _moe(text)
    mlp = Mlp(d_ff=text.integer("intermediate_size_mlp"), activation=moe.activation)
    max_seq = text.integer("max_position_embeddings", default=131_072)
    rope_flags = rope_layers(text, n_layers)
    local_flags = text.local_layers(n_layers, rope_flags.__getitem__)
    kinds = list(zip(local_flags, rope_flags, _routed_layers(text, n_layers), strict=False))
    attentions = _attentions(text, D, max_seq)

    def build_layer(kind: tuple[bool, bool, bool]) -> Layer:
        is_local, has_rope, is_routed = kind
        attention = attentions[is_local, has_rope]
        if is_routed:
            return Layer(attention=attention, ffn=moe)
        return Layer(attention=attention, ffn=mlp)

    return ModelConfig(
        name=name,
        family="llama4",
        d_model=D,
        vocab=text.integer("vocab_size"),
        groups=layer_groups(kinds, build_layer),
        order=layer_order(kinds),
        tied_embeddings=tied_embeddings,
        max_seq=max_seq,
        norm=rms_norm(text, 1e-5),
    )


def _moe(text: Keys) -> Moe:
    d_ff = text.integer("intermediate_size")
    return Moe(
        n_experts=expert_count(text, "num_local_experts", default=16),
        experts_per_token=text.integer("num_experts_per_tok", default=1),
        d_ff=d_ff,
        n_shared_experts=1,
        d_ff_shared=d_ff,
        activation=activation(text),
        routing=Routing(
            score="sigmoid",
            normalized=False,
            on_input=True,
            aux_loss=text.number("router_aux_loss_coef", default=0.001),
        ),
    )


def _routed_layers(text: Keys, n_layers: int) -> list[bool]:
    """Whether each layer has experts: from `moe_layers`, else by `interleave_moe_layer_step`."""
    period = text.integer("interleave_moe_layer_step", default=1)
    moe_layers = text.items("moe_layers", int)
    if moe_layers is None:
        return [(i + 1) % period == 0 for i in range(n_layers)]
    routed = set(moe_layers)
    return [i in routed for i in range(n_layers)]


def _attentions(text: Keys, D: int, max_seq: int) -> dict[tuple[bool, bool], Attention]:
    """The attention of each kind of layer, by (is_local, has_rope); local layers are chunked."""
    N = text.integer("num_attention_heads")
    K = text.integer("num_key_value_heads", default=8)
    H = text.head_dim(D, N)
    bias = text.flag("attention_bias", False)
    chunk = text.optional_integer("attention_chunk_size")
    qk_unit = text.flag("use_qk_norm", True)
    rotary = {
        False: PLAIN_ROPE,
        True: rope(text, max_seq=max_seq, theta=500_000.0, interleaved=True),
    }
    temperature = {False: _temperature(text), True: None}
    window: dict[bool, int | None] = {False: None, True: chunk}
    attentions = {}
    for is_local in (False, True):
        for has_rope in (False, True):
            attentions[is_local, has_rope] = Attention(
                n_heads=N,
                n_kv_heads=K,
                d_head=H,
                window=window[is_local],
                chunked=window[is_local] is not None,
                rope=has_rope,
                rotary=rotary[has_rope],
                qk_unit=qk_unit and has_rope,
                temperature=temperature[has_rope],
                q_bias=bias,
                kv_bias=bias,
                o_bias=bias,
            )
    return attentions


def _temperature(text: Keys) -> Temperature | None:
    floor = text.number("floor_scale", default=8192.0)
    scale = text.number("attn_scale", default=0.1)
    if not text.flag("attn_temperature_tuning", True):
        return None
    return Temperature(floor=floor, scale=scale)


def layer_tensors(config: ModelConfig, layer: Layer) -> dict[str, TensorLayout]:
    """Layouts of a layer's weights; experts are stacked, and gate_up_proj has gate, then up."""
    if not isinstance(layer.ffn, Moe):
        return llama_tensors(config, layer, ffn_module="feed_forward")
    names = expert_names(layer, "feed_forward", "shared_expert")
    names["router"] = "feed_forward.router.weight"
    layouts = llama_tensors(config, layer, names, ffn_module="feed_forward")
    module = f"{LAYER_PREFIX}feed_forward.experts"
    for weight in layer_weights(config, layer):
        if weight.name in ("w_gate", "w_up"):
            tensor_name = f"{module}.gate_up_proj"
            layouts[weight.name] = fused_gate_up(weight, tensor_name, interleaved=False)
        if weight.name == "w_down":
            layouts[weight.name] = untransposed_layout(weight, f"{module}.down_proj")
    return layouts
