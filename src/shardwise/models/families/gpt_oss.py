"""GPT-OSS: experts with biases, local attention in every other layer, attention sinks."""

from __future__ import annotations

import dataclasses

from shardwise.models.config import Attention, Layer, Moe
from shardwise.models.families._layers import layer_groups, layer_order
from shardwise.models.families._names import LAYER_PREFIX, fused_gate_up, llama_tensors
from shardwise.models.families._names import OUTER_NAMES as OUTER_NAMES
from shardwise.models.families._numbers import (
    activation,
    expert_count,
    rms_norm,
    rope,
    rope_scaling_keys,
    yarn_mscale,
)
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import ClampedGlu, Rope, RopeScaling, Routing
from shardwise.models.tensor_layout import TensorLayout, untransposed_layout
from shardwise.models.weights import layer_weights

MODEL_TYPES = ("gpt_oss",)
ARCHITECTURES = ("GptOssForCausalLM",)

_DEFAULTS = {"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128}


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of GptOssConfig."""
    keys.set_defaults(_DEFAULTS)
    D = keys.integer("hidden_size")
    N = keys.integer("num_attention_heads")
    bias = keys.flag("attention_bias", True)
    local_flags = keys.local_layers(keys.layer_count("num_hidden_layers"), lambda i: i % 2 == 0)
    vocab = keys.integer("vocab_size")
    moe = Moe(
        n_experts=expert_count(keys, "num_local_experts", default=128),
        experts_per_token=keys.integer("num_experts_per_tok", "experts_per_token", default=4),
        d_ff=keys.integer("intermediate_size"),
        router_bias=True,
        bias=True,
        activation=activation(keys),
        clamp=ClampedGlu(
            alpha=keys.number("swiglu_alpha", default=1.702),
            limit=keys.number("swiglu_limit", default=7.0),
        ),
        routing=Routing(aux_loss=keys.number("router_aux_loss_coef", default=0.001)),
    )
    max_seq = keys.integer("max_position_embeddings", default=131_072)
    global_attention = Attention(
        n_heads=N,
        n_kv_heads=keys.integer("num_key_value_heads"),
        d_head=keys.head_dim(D, N),
        q_bias=bias,
        kv_bias=bias,
        o_bias=bias,
        sinks=True,
        rotary=_rotary(keys, max_seq),
    )
    window = keys.optional_integer("sliding_window")
    local_attention = dataclasses.replace(global_attention, window=window)
    attentions = {False: global_attention, True: local_attention}

    def build_layer(is_local: bool) -> Layer:
        return Layer(attention=attentions[is_local], ffn=moe)

    return ModelConfig(
        name=name,
        family="gpt_oss",
        d_model=D,
        vocab=vocab,
        groups=layer_groups(local_flags, build_layer),
        order=layer_order(local_flags),
        tied_embeddings=keys.flag("tie_word_embeddings", False),
        max_seq=max_seq,
        norm=rms_norm(keys, 1e-5),
    )


def _rotary(keys: Keys, max_seq: int) -> Rope:
    """Read rotary positions; a file without a scaling means the YaRN scaling of GptOssConfig."""
    if rope_scaling_keys(keys):
        return rope(keys, max_seq=max_seq, theta=150_000.0)
    yarn = RopeScaling(
        kind="yarn",
        factor=32.0,
        original=4096,
        truncate=False,
        attention_factor=yarn_mscale(32.0),
    )
    return Rope(theta=keys.number("rope_theta", default=150_000.0), scaling=yarn)


_FUSED_NAMES = {
    "w_gate": "gate_up_proj",
    "w_up": "gate_up_proj",
    "b_gate": "gate_up_proj_bias",
    "b_up": "gate_up_proj_bias",
}
_DOWN_NAMES = {"w_down": "down_proj", "b_down": "down_proj_bias"}


def layer_tensors(config: ModelConfig, layer: Layer) -> dict[str, TensorLayout]:
    """Layouts of a layer's weights in a bf16 (not MXFP4) checkpoint.

    Experts are stacked in one tensor, in which columns of gate and up alternate.
    """
    router_names = {"router": "mlp.router.weight", "b_router": "mlp.router.bias"}
    layouts = llama_tensors(config, layer, router_names)
    prefix = f"{LAYER_PREFIX}mlp.experts."
    for weight in layer_weights(config, layer):
        if weight.name in _FUSED_NAMES:
            tensor_name = prefix + _FUSED_NAMES[weight.name]
            layouts[weight.name] = fused_gate_up(weight, tensor_name, interleaved=True)
        if weight.name in _DOWN_NAMES:
            tensor_name = prefix + _DOWN_NAMES[weight.name]
            layouts[weight.name] = untransposed_layout(weight, tensor_name)
    return layouts
